"""A client and its worker, without torch: orders, errors, bases, and what a worker is."""

import errno
import json
import logging
import os
import subprocess
import sys
import threading
import traceback
import weakref
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.errors import Incompatible, MoonclipError, NotUnchanged, WorkerEnded
from store.ids import CommitId
from store.naming.refnames import tag_name
from store.reading.packs import pack_path
from store.repository import Repository
from store.saving.arenas import Arena
from store.saving.inputs import ItemInput, TensorInput, UnchangedInput
from store.saving.saver import SaveRequest
from store.worker.client import Client
from store.worker.messages import Order, Outcome, heard, told
from tests.indexing import REPOSITORY
from tests.mounting import small_file_system
from tests.workers import Asked, becomes_true, ends, kill, only_worker, stopped, stored, workers


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


@pytest.fixture
def client(repo: Repository) -> Iterator[Client]:
    client = Client(repo)
    yield client
    client.close()
    assert workers() == []


def noise(seed: int, size: int = 300_000) -> bytes:
    return Random(seed).randbytes(size)


def test_what_is_asked_for_is_stored(client: Client, repo: Repository) -> None:
    asked = Asked(3, noise(1))
    client.submit(asked)
    commit = asked.commit()
    assert asked.outcome().counts is not None
    assert asked.outcome().seconds["encode"] > 0
    assert repo.commit(commit).step == 3
    assert stored(repo.layout.root) == noise(1)


def test_a_worker_is_a_quiet_process_of_its_own(client: Client, repo: Repository) -> None:
    asked = Asked(0, noise(0))
    client.submit(asked)
    asked.commit()
    worker = only_worker()
    assert os.getpriority(os.PRIO_PROCESS, worker) == 19
    assert os.getsid(worker) == worker
    ignored = int(_status(worker, "SigIgn"), 16)
    assert all(ignored >> (number - 1) & 1 for number in (1, 2, 3, 10, 12, 15))  # HUP, INT, QUIT, USR1, USR2, TERM
    held = {str(link.readlink()) for link in Path(f"/proc/{worker}/fd").iterdir()}
    assert not any(name.startswith("pipe:") for name in held)  # else who reads from a pipeline never sees its end


def _status(pid: int, field: str) -> str:
    lines = dict(line.split(":", 1) for line in Path(f"/proc/{pid}/status").read_text().splitlines())
    return lines[field].strip()


def test_a_worker_loads_the_engine_only() -> None:
    program = "import store.worker.loop, json, sys; print(json.dumps([n for n in sys.modules if '.' not in n]))"
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    loaded = set(json.loads(done.stdout))
    assert "numpy" in loaded
    assert loaded.isdisjoint({"torch", "moonclip", "numba", "boto3", "rich", "click"})


def test_a_worker_collects_garbage_seldom() -> None:
    program = """
import gc
from store.worker import __main__, loop
__main__.quieten_collector()
print(gc.get_threshold()[0], gc.get_freeze_count())
"""
    done = subprocess.run([sys.executable, "-c", program], cwd=REPOSITORY, check=True, capture_output=True, text=True)
    threshold, frozen_count = map(int, done.stdout.split())
    assert threshold >= 100_000
    assert frozen_count > 10_000


def test_a_last_save_in_memory_is_what_the_next_is_compared_with(client: Client, repo: Repository) -> None:
    data = noise(1, 9 << 20)
    first = Asked(0, data)
    client.submit(first)
    last = first.commit()
    second = Asked(1, data[:-1] + b"!", last, last=last)
    client.submit(second)
    second.commit()
    counts = second.outcome().counts
    assert counts is not None
    assert counts.unchanged_count == counts.chunk_count - 1
    assert stored(repo.layout.root) == data[:-1] + b"!"


@pytest.mark.parametrize("how", ["not claimed", "another commit", "the same arena"])
def test_a_last_save_that_may_have_been_written_over_is_not(client: Client, how: str, repo: Repository) -> None:
    first = Asked(0, noise(1))
    client.submit(first)
    commit = first.commit()
    second = Asked(1, noise(2), commit)
    client.submit(second)
    tip = second.commit()
    claimed = {"not claimed": None, "another commit": commit, "the same arena": tip}[how]
    arena = second.arena if how == "the same arena" else None
    if arena is None:
        second.arena.memory[:] = bytes(len(second.arena.memory))  # as a capture that failed would leave it
    third = Asked(2, noise(2), tip, arena=arena, last=claimed)
    client.submit(third)
    third.commit()
    counts = third.outcome().counts
    assert counts is not None
    assert (counts.unchanged_count, counts.known_count) == (0, counts.chunk_count)
    assert stored(repo.layout.root) == noise(2)


def test_arenas_that_were_dropped_are_let_go_of(client: Client) -> None:
    asked = Asked(0, noise(0))
    client.submit(asked)
    asked.commit()
    worker = only_worker()
    assert _mapped_count(worker) == 1
    del asked
    client.wait()
    client._wake()
    assert becomes_true(lambda: _mapped_count(worker) == 0)


def _mapped_count(pid: int) -> int:
    return Path(f"/proc/{pid}/maps").read_text().count("memfd:moonclip")


def test_an_error_comes_with_the_workers_traceback_and_costs_no_worker(client: Client, repo: Repository) -> None:
    bad = Asked(0, noise(0))
    entry = TensorInput(0, "float33", (3,), bad.order()[0].request.items[0].entries[""].data)  # type: ignore[union-attr]
    bad._order = bad._order._replace(request=SaveRequest([ItemInput("model", {"": entry})], branch="main"))
    client.submit(bad)
    error = bad.outcome().error
    assert isinstance(error, Incompatible)
    assert "float33" in str(error)
    assert any("In the worker process" in note and "drafts.py" in note for note in error.__notes__)
    worker = only_worker()
    good = Asked(0, noise(0))
    client.submit(good)
    good.commit()
    assert only_worker() == worker


def test_a_tag_that_fails_fails_beside_its_commit(client: Client, repo: Repository) -> None:
    first = Asked(0, noise(0), tag="best")
    client.submit(first)
    commit = first.commit()
    assert repo.refs.read(tag_name("best")) == commit
    second = Asked(1, noise(1), commit, tag="best")
    client.submit(second)
    outcome = second.outcome()
    assert isinstance(outcome.error, MoonclipError)
    assert outcome.commit is not None
    assert repo.resolve("main") == outcome.commit


def test_a_full_disk_is_an_error_of_its_save(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "mounted", 24 << 20) as mounted:
        with Repository.init(mounted / "store", thread_count=1) as repo:
            client = Client(repo)
            first = Asked(0, noise(0))
            client.submit(first)
            tip = first.commit()
            too_big = Asked(1, noise(1, 40 << 20), tip)
            client.submit(too_big)
            error = too_big.outcome().error
            assert isinstance(error, OSError)
            assert error.errno == errno.ENOSPC
            again = Asked(2, noise(2), tip)
            client.submit(again)
            again.commit()
            client.close()
        assert stored(mounted / "store") == noise(2)


def _damaged(root: Path) -> CommitId:
    """Make a store whose one commit has a tree that is damaged, of which the next save tells."""
    with Repository.init(root, thread_count=1) as repo:
        client, asked = Client(repo), Asked(0, noise(0))
        client.submit(asked)
        commit = asked.commit()
        client.close()
        place = repo.index.places(repo.commit(commit).items["model"])[0]
    path = pack_path(root / "packs", place.pack)
    data = bytearray(path.read_bytes())
    data[place.offset + place.stored_bytes // 2] ^= 0xFF
    path.write_bytes(data)
    return commit


def test_what_the_worker_logs_is_logged_here(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    root = tmp_path / "store"
    commit = _damaged(root)
    with Repository.open(root, thread_count=1) as repo, caplog.at_level(logging.WARNING):
        client = Client(repo)
        asked = Asked(1, noise(1), commit)
        client.submit(asked)
        asked.commit()
        client.close()
    records = [record for record in caplog.records if "is damaged" in record.getMessage()]
    assert records
    assert records[0].name == "store.saving.saver"


def test_a_save_whose_worker_is_not_heard_to_the_end_is_not_taken_for_the_next_one(tmp_path: Path) -> None:
    records: list[logging.LogRecord] = []

    def fails_once(record: logging.LogRecord) -> bool:
        records.append(record)
        if len(records) == 1:
            raise LookupError("a filter of the program's own")
        return False

    root = tmp_path / "store"
    commit = _damaged(root)
    logger = logging.getLogger("store.saving.saver")
    logger.addFilter(fails_once)
    try:
        with Repository.open(root, thread_count=1) as repo:
            client = Client(repo, approve=lambda _: None)
            failed, good = Asked(1, noise(1), commit), Asked(2, noise(2), commit)
            client.submit(failed)
            client.submit(good)
            error = failed.outcome().error
            assert isinstance(error, WorkerEnded)
            assert "LookupError: a filter" in str(error)
            assert repo.commit(good.commit()).step == 2
            client.close()
    finally:
        logger.removeFilter(fails_once)
    assert len(records) > 1


def test_a_job_that_ends_its_thread_fails_alone(client: Client) -> None:
    class Exiting(Asked):
        def order(self) -> tuple[Order, Arena]:
            raise SystemExit(3)

    exiting = Exiting(0, noise(0))
    client.submit(exiting)
    assert isinstance(exiting.outcome().error, SystemExit)
    good = Asked(0, noise(0))
    client.submit(good)
    good.commit()


def test_a_worker_that_dies_while_the_state_is_captured_costs_no_save(client: Client) -> None:
    class Capturing(Asked):
        def order(self) -> tuple[Order, Arena]:
            kill(only_worker())
            return super().order()

    first = Asked(0, noise(0))
    client.submit(first)
    tip = first.commit()
    capturing = Capturing(1, noise(1), tip)
    client.submit(capturing)
    capturing.commit()


def test_who_keeps_the_error_of_a_refused_save_keeps_no_arena(repo: Repository) -> None:
    def refuse(_: CommitId) -> None:
        raise LookupError("not this one")

    client = Client(repo, approve=refuse)
    asked = Asked(0, noise(0))
    arena = weakref.ref(asked.arena)
    client.submit(asked)
    error = asked.outcome().error
    client.wait()
    del asked
    assert arena() is None
    assert isinstance(error, LookupError)
    assert "refuse" in "".join(traceback.format_exception(error))
    client.close()


def test_nothing_is_handed_over_to_a_client_that_was_told_to_end(client: Client) -> None:
    client.close()
    with pytest.raises(MoonclipError, match="told to end"):
        client.submit(Asked(0, noise(0)))


def test_a_client_that_is_dropped_ends_without_waiting(repo: Repository) -> None:
    client = Client(repo)
    ended: list[int] = []
    asked = Asked(0, noise(0))
    client.submit(asked)
    worker = only_worker()
    with stopped(worker):
        client.stop(lambda: ended.append(1))
        assert not ended
    asked.commit()
    assert ends(worker)
    assert becomes_true(lambda: ended)


def test_handing_over_does_not_wait_for_a_worker_that_does_not_read(client: Client, repo: Repository) -> None:
    first = Asked(0, noise(0))
    client.submit(first)
    tip = first.commit()
    worker = only_worker()
    entries = {
        f"t{n}": TensorInput(n, "uint8", (4,), first.order()[0].request.items[0].entries[""].data) for n in range(3)
    }  # type: ignore[union-attr]
    long = Asked(1, noise(1), tip)
    request = SaveRequest([ItemInput("model", entries)], branch="main", parent=tip, message="x" * 4_000_000)
    long._order = long._order._replace(request=request)
    with stopped(worker):
        client.submit(long)
        kill(worker)
    assert isinstance(long.outcome().error, MoonclipError)


# --- without a worker ---------------------------------------------------------------------------------------------


@pytest.mark.parametrize("executable", ["", "/bin/false", "/nonexistent/python"])
def test_without_a_worker_saves_are_made_here(
    repo: Repository, executable: str, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(sys, "executable", executable)
    client = Client(repo)
    tip = None
    for step in range(3):
        asked = Asked(step, noise(step), tip, last=tip)
        client.submit(asked)
        client.wait()
        tip = asked.commit()
    assert stored(repo.layout.root) == noise(2)
    assert [r.levelname for r in caplog.records if "no worker can be started" in r.getMessage()] == ["WARNING"]
    client.close()


def test_without_a_thread_no_worker_is_left(repo: Repository) -> None:
    assert repo.threads
    usual = threading.stack_size(1 << 46)  # more than there is address space
    try:
        with pytest.raises(RuntimeError, match="thread"):
            Client(repo)
    finally:
        threading.stack_size(usual)
    assert workers() == []


def test_a_worker_that_is_killed_before_it_is_ready_costs_no_save(client: Client, repo: Repository) -> None:
    worker = only_worker()
    with stopped(worker):
        asked = Asked(0, noise(0))
        client.submit(asked)
        kill(worker)
    if isinstance(error := asked.outcome().error, MoonclipError):  # it had been ready already
        assert "SIGKILL" in str(error)
        asked = Asked(0, noise(0))
        client.submit(asked)
    tip = asked.commit()
    asked = Asked(1, noise(1), tip)
    client.submit(asked)
    asked.commit()
    assert only_worker() != worker
    assert stored(repo.layout.root) == noise(1)


# --- what is said to be unchanged ---------------------------------------------------------------------------------


def test_unchanged_tensors_are_taken_from_the_last_save(repo: Repository) -> None:
    data = {"a": noise(1), "b": noise(2), "tiny": b"1234"}
    given = {name: TensorInput(n, "uint8", (len(raw),), memoryview(raw)) for n, (name, raw) in enumerate(data.items())}
    saved = repo.save(SaveRequest([ItemInput("model", given)], branch="main"))
    for step in range(2):
        again = {name: UnchangedInput(n, "uint8", (len(data[name]),)) for n, name in enumerate(("tiny", "b", "a"))}
        again = again | {"b": TensorInput(1, "uint8", (300_000,), memoryview(noise(3 + step)))}  # type: ignore[dict-item]
        request = SaveRequest([ItemInput("model", again)], branch="main", parent=saved.commit, last=saved.last)
        saved = repo.save(request)
        tree = repo.tree(repo.commit(saved.commit), "model")
        assert bytes(repo.read_tensor(tree["a"])) == data["a"]  # type: ignore[arg-type]
        assert bytes(repo.read_tensor(tree["b"])) == noise(3 + step)  # type: ignore[arg-type]
        assert (tree["tiny"].position, tree["a"].position) == (0, 2)


@pytest.mark.parametrize("given", [UnchangedInput(0, "uint8", (4,)), UnchangedInput(0, "int8", (300_000,))])
def test_what_is_not_as_in_the_last_save_is_refused(repo: Repository, given: UnchangedInput) -> None:
    data = TensorInput(0, "uint8", (300_000,), memoryview(noise(1)))
    saved = repo.save(SaveRequest([ItemInput("model", {"a": data})], branch="main"))
    requests = [
        SaveRequest([ItemInput("model", {"a": given})], branch="main", parent=saved.commit, last=saved.last),
        SaveRequest([ItemInput("model", {"b": given})], branch="main", parent=saved.commit, last=saved.last),
        SaveRequest([ItemInput("model", {"a": UnchangedInput(*data[:3])})], branch="main", parent=saved.commit),
    ]
    for request in requests:
        with pytest.raises(NotUnchanged, match="model::"):
            repo.save(request)
    assert repo.resolve("main") == saved.commit


# --- errors on their way ------------------------------------------------------------------------------------------


def _all_errors(kind: type[MoonclipError] = MoonclipError) -> list[type[MoonclipError]]:
    return [kind, *(error for sub in kind.__subclasses__() for error in _all_errors(sub))]


@pytest.mark.parametrize("kind", _all_errors(), ids=lambda kind: kind.__name__)
def test_errors_arrive_as_they_were(kind: type[MoonclipError]) -> None:
    error = heard(told(Outcome(error=kind("what, where", path="/x", number=3)))).error
    assert type(error) is kind
    assert (str(error), error.details) == ("what, where", {"path": "/x", "number": 3})


def test_an_error_that_cannot_be_sent_arrives_as_what_it_says() -> None:
    class Local(Exception):
        pass

    class Picky(OSError):
        def __init__(self, first: str, second: str) -> None:
            super().__init__(first + second)

    for error in (Local("ab"), Picky("a", "b"), ValueError(lambda: "ab")):
        arrived = heard(told(Outcome(error=error))).error
        assert type(arrived) is MoonclipError
        assert str(arrived).startswith(f"{type(error).__name__}: ")
