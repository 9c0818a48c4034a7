"""What is said of items beforehand, and the callbacks of a manager: B18, B25, B34 and what goes with them."""

import logging
import signal
import threading
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, Event, Incompatible, ItemSpec, SaveFailed, Snapshot
from store.errors import WorkerEnded
from store.repository import Repository
from tests import preloaded, workers

SPECS = {"model": ItemSpec(required=True), "optimizer": ItemSpec(required=True), "notes": ItemSpec()}
SYNC_OR_ASYNC = pytest.mark.parametrize("async_save", [True, False])


def refused(error: BaseException | None) -> BaseException:
    """What a Future's failure comes from."""
    assert isinstance(error, SaveFailed)
    assert error.__cause__ is not None
    return error.__cause__


# --- schema -------------------------------------------------------------------------------------------------------


def test_b18_a_save_that_lacks_required_items_or_has_unknown_ones_is_refused_and_all_are_listed(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, items=SPECS, strict_schema=True) as mgr:
        with pytest.raises(Incompatible, match=r"optimizer: required, and missing in the save") as error:
            mgr.save(model=1, extra=2, other=3)
        assert error.value.details == {"missing": ["optimizer"], "unknown": ["extra", "other"]}
        assert mgr.list_snapshots() == []
        mgr.save(model=1, optimizer=2, rng=True).result()  # generators are asked for by name
        mgr.save("named", {"model": 1, "optimizer": None, "notes": "b"}).result()


def test_b18_a_load_is_held_to_the_same_schema_unless_it_says_what_part_it_wants(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(model={"w": torch.ones(2)}, extra=2)
    target = torch.zeros(2)
    with CheckpointManager(tmp_path, items=SPECS, strict_schema=True) as mgr:
        for load in (lambda: mgr.load(into={"model": {"w": target}, "extra": 0}), lambda: mgr.resume(extra=0)):
            with pytest.raises(Incompatible, match="optimizer: required, and missing in the targets") as error:
                load()
            assert error.value.details["unknown"] == ["extra"]
        for lazy in (False, True):
            with pytest.raises(Incompatible, match="optimizer: required, and missing in commit"):
                mgr.load(lazy=lazy)
        assert target.sum() == 0
        assert mgr.load(items=["model"])["model"]["w"].sum() == 2
        assert mgr.load(into={"model": {"w": target}}, names=["w"])["model"]["w"] is target


def test_items_that_nothing_was_said_of_are_as_they_were_without_a_strict_schema(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, items={"model": ItemSpec(required=True)}) as mgr:
        mgr.save(model=1, extra=2)
        assert mgr.load() == {"model": 1, "extra": 2}


def test_a_spec_that_is_none_is_refused_before_there_is_a_store(tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="'model' has a str; give an ItemSpec"):
        CheckpointManager(tmp_path / "none", items={"model": "bf16"})  # type: ignore[dict-item]
    with pytest.raises(Incompatible, match="no dtype 'b16' for 'model'"):
        CheckpointManager(tmp_path / "none", items={"model": ItemSpec(dtype="b16")})
    assert not (tmp_path / "none").exists()


# --- dtype --------------------------------------------------------------------------------------------------------


def test_an_items_dtype_goes_before_save_dtype_and_keeps_to_that_item(tmp_path: Path) -> None:
    odd = torch.full((8,), 1 + 2**-12)
    items = {"half": ItemSpec(dtype="fp16"), "exact": ItemSpec(dtype="none"), "halves": ItemSpec()}
    with CheckpointManager(tmp_path, save_dtype="bf16", items=items) as mgr:
        mgr.save("x", {"half": odd, "exact": {"a": odd}, "halves": {"a": odd}, "other": odd})
        kinds = {name: tensor.stored_dtype for name, tensor in mgr.describe().tensors.items()}
    assert kinds == {"half": "float16", "exact::a": None, "halves::a": "bfloat16", "other": "bfloat16"}


def test_an_items_dtype_is_not_that_of_an_item_whose_name_begins_with_its_name_and_a_slash(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, items={"a": ItemSpec(dtype="bf16")}) as mgr:
        mgr.save("x", {"a": {"w": torch.rand(9)}, "a/b": {"w": torch.rand(9)}})
        kinds = {name: tensor.stored_dtype for name, tensor in mgr.describe().tensors.items()}
    assert kinds == {"a::w": "bfloat16", "a/b::w": None}


# --- requires_copy ------------------------------------------------------------------------------------------------


@SYNC_OR_ASYNC
def test_an_item_that_requires_no_copy_is_stored_as_it_is(tmp_path: Path, async_save: bool) -> None:
    lent = {"w": torch.arange(100_000.0), "tiny": torch.ones(2), "n": 3}
    with CheckpointManager(tmp_path, async_save=async_save, items={"lent": ItemSpec(requires_copy=False)}) as mgr:
        for step in range(3):
            mgr.save(step=step, lent=lent, own={"w": torch.zeros(9)}).result()
            with mgr.lock():
                lent["w"] += 1  # type: ignore[operator]
        for step in range(3):
            assert torch.equal(mgr.load(f"step:{step}")["lent"]["w"], torch.arange(100_000.0) + step)


# --- callbacks on either side of a publication --------------------------------------------------------------------


@SYNC_OR_ASYNC
def test_b25_callbacks_see_a_commit_before_and_after_anybody_else_does(tmp_path: Path, async_save: bool) -> None:
    seen: list[tuple[str, Snapshot, bool]] = []

    def is_visible(snapshot: Snapshot) -> bool:
        with Repository.open(tmp_path) as repo:
            tip = repo.refs.read("branches/main")
            return tip is not None and tip.hex() == snapshot.id

    with CheckpointManager(
        tmp_path,
        async_save=async_save,
        pre_finalize=lambda snapshot: seen.append(("before", snapshot, is_visible(snapshot))),
        finalize=lambda snapshot: seen.append(("after", snapshot, is_visible(snapshot))),
    ) as mgr:
        commits = [mgr.save(step=step, w=torch.full((9,), step), metadata={"loss": 1.5}).result() for step in (4, 5)]
    assert [(when, one.id, visible) for when, one, visible in seen] == [
        (when, commit, when == "after") for commit in commits for when in ("before", "after")
    ]
    assert [(one.step, one.metadata, one.items) for _, one, _ in seen[:2]] == [(4, {"loss": 1.5}, ("w",))] * 2


def test_b25_what_pre_finalize_raises_keeps_a_commit_from_being_published_and_the_next_save_works(
    tmp_path: Path,
) -> None:
    def check(snapshot: Snapshot) -> None:
        if snapshot.step == 1:
            raise LookupError("not this one")

    with CheckpointManager(tmp_path, pre_finalize=check) as mgr:
        mgr.save(step=0, w=torch.zeros(100_000)).result()
        failed = mgr.save("tag", {"w": torch.ones(100_000)}, step=1)
        assert isinstance(refused(failed.exception(60)), LookupError)
        with pytest.raises(SaveFailed, match="step 1 failed: LookupError: not this one"):
            mgr.save(step=2, w=torch.full((100_000,), 2.0))
        mgr.flush()
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 2]
        assert mgr.load()["w"][0] == 2
        assert "tag" not in mgr.tags()


def test_b25_what_pre_finalize_raises_is_raised_as_it_is_by_a_save_that_is_waited_for(tmp_path: Path) -> None:
    def check(_: Snapshot) -> None:
        raise LookupError("not this one")

    with CheckpointManager(tmp_path, async_save=False, pre_finalize=check) as mgr:
        with pytest.raises(LookupError, match="not this one"):
            mgr.save(w=1)
        assert mgr.list_snapshots() == []


def test_b25_a_worker_that_is_killed_while_it_waits_for_an_answer_publishes_nothing(tmp_path: Path) -> None:
    asked, let_go = threading.Event(), threading.Event()

    def wait(_: Snapshot) -> None:
        asked.set()
        assert let_go.wait(60)

    with CheckpointManager(tmp_path, pre_finalize=wait) as mgr:
        saving = mgr.save(step=0, w=1)
        assert asked.wait(60)
        workers.kill(workers.only_worker())
        let_go.set()
        assert isinstance(refused(saving.exception(60)), WorkerEnded)
        with pytest.raises(SaveFailed):
            mgr.flush()
        assert mgr.list_snapshots() == []
        mgr.save(step=1, w=2).result(60)


KILLED = """
import os, signal, sys
from moonclip import CheckpointManager

def check(snapshot):
    if snapshot.step == 1:
        os.kill(os.getpid(), signal.SIGKILL)

mgr = CheckpointManager(sys.argv[1], pre_finalize=check)
sys.stdin.readline()
mgr.save(step=0, w=1).result()
mgr.save(step=1, w=2).result()
"""


def test_b25_a_trainer_that_is_killed_before_it_agrees_publishes_nothing(tmp_path: Path) -> None:
    with preloaded.start("-c", KILLED, str(tmp_path)) as trainer:
        worker = workers.only_worker(trainer.pid)
        trainer.stdin.write("go\n")
        trainer.communicate()
    assert trainer.returncode == -signal.SIGKILL
    assert workers.ends(worker)
    with CheckpointManager(tmp_path) as mgr:
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0]
        mgr.save(step=1, w=3).result(60)


def test_b25_pre_finalize_can_read_back_what_it_is_to_agree_to(tmp_path: Path) -> None:
    found: list[Any] = []
    with CheckpointManager(
        tmp_path, pre_finalize=lambda snapshot: found.append(mgr.load(snapshot.id, verify="full"))
    ) as mgr:
        mgr.save(w=torch.ones(100_000)).result(60)
    assert found[0]["w"].sum() == 100_000


@SYNC_OR_ASYNC
def test_b25_pre_finalize_can_open_the_store_anew_and_waits_for_no_save_then(tmp_path: Path, async_save: bool) -> None:
    found: list[Any] = []

    def check(snapshot: Snapshot) -> None:
        workers.require_no_save(tmp_path)
        with CheckpointManager(tmp_path) as other:
            found.append(other.load(snapshot.id)["w"])

    with CheckpointManager(tmp_path, async_save=async_save, pre_finalize=check) as mgr:
        mgr.save(w=1).result()
    assert found == [1]


def test_b25_what_finalize_raises_is_told_once_and_the_commit_stays(tmp_path: Path) -> None:
    def announce(snapshot: Snapshot) -> None:
        if snapshot.step == 0:
            raise LookupError("no answer")

    with CheckpointManager(tmp_path, finalize=announce) as mgr:
        saving = mgr.save(step=0, w=1)
        assert isinstance(refused(saving.exception(60)), LookupError)
        assert saving.commit == mgr.list_snapshots()[0].id
        with pytest.raises(SaveFailed, match="LookupError: no answer; it is committed all the same, as ") as error:
            mgr.flush()
        assert error.value.details == {"step": 0, "commit": saving.commit}
        mgr.flush()
        mgr.save(step=1, w=2)
    with CheckpointManager(tmp_path) as mgr:
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 1]


def test_b25_a_callback_can_load_and_is_told_that_it_cannot_save(tmp_path: Path) -> None:
    found: list[Any] = []

    def look(snapshot: Snapshot) -> None:
        found.append(mgr.load(snapshot.id)["w"])
        with pytest.raises(Exception, match="Future"):
            mgr.save(w=3)

    with CheckpointManager(tmp_path, finalize=look) as mgr:
        mgr.save(w=1).result(60)
    assert found == [1]


# --- events -------------------------------------------------------------------------------------------------------


@SYNC_OR_ASYNC
def test_b34_each_save_and_load_is_told_of_with_its_phases_bytes_and_seconds(tmp_path: Path, async_save: bool) -> None:
    events: list[Event] = []
    state = {"w": torch.rand(100_000), "n": 7}
    with CheckpointManager(tmp_path, async_save=async_save, on_event=events.append) as mgr:
        first = mgr.save(step=3, model=state).result()
        mgr.save(step=4, model=state)
        mgr.flush()
        mgr.load(into={"model": {"w": torch.empty(100_000), "n": 0}})
        mgr.resume(model={"w": torch.empty(100_000), "n": 0})
        mgr.load_tensors("w")
    saves, loads = events[:2], events[2:]
    assert [(event.kind, event.step, event.error) for event in events] == [
        ("save", 3, None), ("save", 4, None), ("load", 4, None), ("load", 4, None), ("load", 4, None),
    ]  # fmt: skip
    assert saves[0].commit == first
    assert [event.given_bytes for event in events] == [400_000] * 5
    assert (saves[0].new_bytes, saves[1].new_bytes) == (400_000, 0)
    assert 0 < saves[1].stored_bytes < 10_000 < saves[0].stored_bytes
    assert {"wait", "flatten", "capture", "written", "encode"} <= saves[0].seconds.keys()
    assert saves[0].blocked_s >= saves[0].seconds["capture"] + (0 if async_save else saves[0].seconds["written"])
    assert all({"wait", "read"} <= event.seconds.keys() and event.blocked_s > 0 for event in loads)


@SYNC_OR_ASYNC
def test_b34_what_failed_or_was_refused_is_told_of_as_well(tmp_path: Path, async_save: bool) -> None:
    events: list[Event] = []

    def check(snapshot: Snapshot) -> None:
        if snapshot.step == 1:
            raise LookupError("not this one")

    mgr = CheckpointManager(tmp_path, async_save=async_save, on_event=events.append, pre_finalize=check)
    mgr.save(step=0, w=1).result()
    with pytest.raises(Exception, match="not this one"):
        mgr.save(step=1, w=2)
        mgr.flush()
    with pytest.raises(Incompatible):
        mgr.save(step=2, w=object())
    with pytest.raises(KeyError):
        mgr.load("nothing")
    with pytest.raises(Incompatible):
        mgr.load(into={"w": "text"})
    mgr.close()
    told = [(event.kind, event.step, event.commit is not None, type(event.error).__name__) for event in events]
    assert told == [
        ("save", 0, True, "NoneType"),
        ("save", 1, False, "SaveFailed" if async_save else "LookupError"),
        ("save", 2, False, "Incompatible"),
        ("load", None, False, "NotFound"),
        ("load", 0, True, "Incompatible"),
    ]


def test_b34_a_save_that_is_waited_for_is_told_of_whatever_ended_it(tmp_path: Path) -> None:
    events: list[Event] = []
    ends: list[BaseException] = [SaveFailed("another store's"), SystemExit(3), KeyboardInterrupt()]

    def check(snapshot: Snapshot) -> None:
        assert snapshot.step is not None
        raise ends[snapshot.step]

    with CheckpointManager(tmp_path, async_save=False, pre_finalize=check, on_event=events.append) as mgr:
        for step, end in enumerate(ends):
            with pytest.raises(type(end)):
                mgr.save(step=step, w=1)
    assert [(event.step, event.error) for event in events] == list(enumerate(ends))


def test_b34_a_lazy_load_is_told_of_as_well(tmp_path: Path) -> None:
    events: list[Event] = []
    with CheckpointManager(tmp_path, on_event=events.append) as mgr:
        mgr.save(step=3, w=torch.ones(100_000)).result()
        mgr.load(lazy=True)
        with pytest.raises(KeyError):
            mgr.load("nothing", lazy=True)
    loads = [(event.step, event.given_bytes, event.error is None) for event in events if event.kind == "load"]
    assert loads == [(3, 0, True), (None, 0, False)]


def test_b34_a_failure_of_on_event_is_logged_and_costs_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(_: Event) -> None:
        raise LookupError("no metrics today")

    with CheckpointManager(tmp_path, on_event=fail) as mgr, caplog.at_level(logging.ERROR, "moonclip"):
        mgr.save(step=0, w=1).result(60)
        mgr.flush()
        assert mgr.load() == {"w": 1}
    assert caplog.text.count("on_event ended with an error") == 2
