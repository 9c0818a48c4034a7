"""Background pushes of a worker, without torch: what they take, how they wait, and who completes what was cut off."""

import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from random import Random

import pytest

from store.errors import PushFailed, RemoteMissing, WorkerEnded
from store.fsck import fsck
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.remotes.configured import RemoteConfig, add_remote, remove_remote
from store.remotes.storages.credentials import Keys
from store.repository import Repository
from store.worker import pushes as pushes_module
from store.worker.client import Client
from store.worker.messages import Follow
from store.worker.pushes import Pushes
from tests.indexing import REPOSITORY
from tests.pushing import push_count, refs_of_remote_held, remote_at, remote_tip, remote_tips
from tests.workers import PATIENCE_S, Asked, becomes_true, ends, kill, only_worker, workers

TRAINER = """
import sys
from store.repository import Repository
from store.worker.client import Client
from store.worker.messages import Follow
from store.worker.pushes import Pushes
from tests.workers import Asked

repo = Repository.open(sys.argv[1], thread_count=1)
client = Client(repo, Pushes(repo, Follow("origin"), 2))
parent = None
for step in (0, 1):
    asked = Asked(step, b"%d" % step * 5000, parent)
    client.submit(asked)
    parent = asked.commit()
print("saved", flush=True)
sys.stdin.readline()
"""


class Run:
    """A trainer that pushes every so many saves."""

    def __init__(self, repo: Repository, every: int, *, keys: Keys | None = None) -> None:
        self.repo = repo
        self.pushes = Pushes(repo, Follow("origin", keys), every)
        self.client = Client(repo, self.pushes)
        self.tip: CommitId | None = repo.refs.read(branch_name("main"))
        self.step = 0

    def save(self, *, tag: str | None = None) -> CommitId:
        asked = Asked(self.step, Random(self.step).randbytes(50_000), self.tip, tag=tag)
        self.client.submit(asked)
        self.tip = asked.commit()
        self.step += 1
        return self.tip

    def pushed(self) -> dict[str, CommitId | None]:
        """Wait for what is due; what the remote then has."""
        self.pushes.await_all()
        return remote_tips(self.repo)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        remote_at(repo, tmp_path / "remote")
        yield repo


@pytest.fixture
def remote(tmp_path: Path, repo: Repository) -> Path:
    return tmp_path / "remote"


def test_a_push_follows_so_many_saves_and_the_end(repo: Repository) -> None:
    run = Run(repo, 2)
    run.save()
    assert run.pushed() == {}
    second = run.save()
    assert run.pushed() == {"branches/main": second}
    run.save()
    assert run.pushed() == {"branches/main": second}
    fourth, fifth = run.save(), run.save()
    assert run.pushed() == {"branches/main": fourth}
    run.client.close()
    assert remote_tips(repo) == {"branches/main": fifth}
    assert push_count(repo) == 3
    assert workers() == []


def test_a_worker_that_pushes_nothing_loads_nothing_for_it(repo: Repository) -> None:
    done = subprocess.run(
        [sys.executable, "-c", "import store.worker.loop, sys; print([m for m in sys.modules if 'remotes' in m])"],
        cwd=REPOSITORY,
        check=True,
        capture_output=True,
        text=True,
    )
    assert done.stdout == "[]\n"


def test_a_tag_goes_with_its_save_and_stays_where_the_remote_has_it(repo: Repository) -> None:
    run = Run(repo, 1)
    first = run.save(tag="best")
    assert run.pushed() == {"branches/main": first, "tags/best": first}
    repo.delete_ref("tags/best")  # type: ignore[arg-type]
    second = run.save(tag="best")
    assert run.pushed() == {"branches/main": second, "tags/best": first}
    run.client.close()
    assert run.pushes.taken_failure() is None


def test_pushes_that_come_due_while_one_is_under_way_become_one(repo: Repository, remote: Path) -> None:
    run = Run(repo, 1)
    run.save()
    run.pushed()
    with refs_of_remote_held(remote):
        run.save()
        assert becomes_true(lambda: len(list(remote.glob("packs/*.idx"))) > 1)  # under way
        run.save()
        last = run.save()  # saves are made meanwhile
        assert repo.resolve("main") == last
    assert run.pushed() == {"branches/main": last}
    assert push_count(repo) == 3
    run.client.close()


def test_a_save_waits_for_a_remote_that_is_two_pushes_behind(repo: Repository, remote: Path) -> None:
    run = Run(repo, 1)
    run.save()
    run.pushed()
    with refs_of_remote_held(remote):
        run.save()
        assert becomes_true(lambda: len(list(remote.glob("packs/*.idx"))) > 1)
        run.save()
        run.pushes.await_room()  # one under way, one due: there is room
        run.save()
        waiting = threading.Thread(target=run.pushes.await_room)
        waiting.start()
        assert waiting.is_alive()
    waiting.join(PATIENCE_S)
    assert not waiting.is_alive()
    run.pushes.await_all()
    run.client.close()


def test_no_save_waits_for_a_remote_that_does_not_answer(
    repo: Repository, remote: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(pushes_module, "PUSH_STALL_SECONDS", 0.0)
    run = Run(repo, 1)
    run.save()
    run.pushed()
    with refs_of_remote_held(remote):
        for _ in range(5):
            run.save()
            run.pushes.await_room()
        assert run.pushes.is_under_way
    run.pushes.await_all()
    assert remote_tips(repo) == {"branches/main": run.tip}
    run.client.close()


def test_a_failure_is_told_once_with_how_far_the_remote_is(
    repo: Repository, remote: Path, caplog: pytest.LogCaptureFixture
) -> None:
    run = Run(repo, 1)
    run.save()
    run.pushed()
    remote.rename(remote.with_name("away"))
    run.save()
    run.save()
    run.pushes.await_all()
    failure = run.pushes.taken_failure()
    assert isinstance(failure, PushFailed)
    assert isinstance(failure.__cause__, RemoteMissing)
    assert failure.details == {"remote": "origin", "steps": {"main": 2}, "remote_steps": {"main": 0}}
    assert "step 2 here" in str(failure)
    assert "step 0 there" in str(failure)
    assert run.pushes.taken_failure() is None
    remote.with_name("away").rename(remote)
    third = run.save()
    assert run.pushed() == {"branches/main": third}
    assert run.pushes.taken_failure() is None
    run.client.close()
    assert sum("saves go on" in record.message for record in caplog.records) <= 2


def test_a_failure_that_a_later_push_makes_good_is_none(repo: Repository, remote: Path) -> None:
    run = Run(repo, 1)
    remote.rename(remote.with_name("away"))
    run.save()
    run.pushes.await_all()
    assert run.pushes.has_failure
    remote.with_name("away").rename(remote)
    run.client.close()  # nothing new is due, but what was not brought is tried again
    assert run.pushes.taken_failure() is None
    assert remote_tips(repo) == {"branches/main": run.tip}


def test_what_the_end_could_not_bring_is_told(repo: Repository, remote: Path) -> None:
    run = Run(repo, 5)
    run.save()
    remote.rename(remote.with_name("away"))
    run.client.close()
    failure = run.pushes.taken_failure()
    assert failure is not None
    assert failure.details["steps"] == {"main": 0}
    assert "no step there" in str(failure)
    assert fsck(repo).clean


def test_a_worker_killed_in_a_push_costs_nothing_but_time(repo: Repository, remote: Path) -> None:
    run = Run(repo, 2)
    run.save()
    run.save()
    run.pushed()
    with refs_of_remote_held(remote):
        run.save()
        run.save()
        assert becomes_true(lambda: len(list(remote.glob("packs/*.idx"))) > 1)
        kill(only_worker())
        run.pushes.await_all()
    failure = run.pushes.taken_failure()
    assert failure is not None
    assert isinstance(failure.__cause__, WorkerEnded)
    fifth = run.save()  # at once, not only with the next that is due
    assert run.pushed() == {"branches/main": fifth}
    run.client.close()
    assert fsck(repo).clean


def test_what_a_killed_worker_had_not_pushed_is_pushed_at_the_end(repo: Repository, remote: Path) -> None:
    run = Run(repo, 2)
    run.save()
    tip = run.save()
    run.pushed()
    tip = run.save()
    kill(only_worker())
    assert becomes_true(lambda: workers() == [])
    run.client.close()
    assert remote_tips(repo) == {"branches/main": tip}


def test_the_worker_of_a_killed_trainer_completes_its_push(repo: Repository, remote: Path, tmp_path: Path) -> None:
    root = repo.layout.root
    with subprocess.Popen(
        [sys.executable, "-c", TRAINER, str(root)],
        cwd=REPOSITORY,
        stdin=subprocess.PIPE,
        stdout=subprocess.PIPE,
        text=True,
    ) as trainer:
        assert trainer.stdout is not None
        with refs_of_remote_held(remote):
            assert trainer.stdout.readline() == "saved\n"
            worker = only_worker(trainer.pid)
            trainer.send_signal(signal.SIGKILL)
            trainer.wait()
        assert ends(worker)
    assert remote_tip(root) == repo.resolve("main")
    assert repo.commit(repo.resolve("main")).step == 1


def test_keys_travel_where_nobody_sees_them(repo: Repository, remote: Path) -> None:
    keys = Keys("id-of-someone", "not-to-be-seen")
    run = Run(repo, 1, keys=keys)
    run.save()
    worker = only_worker()
    for secret in (b"id-of-someone", b"not-to-be-seen"):
        assert secret not in Path(f"/proc/{worker}/cmdline").read_bytes()
        assert secret not in Path(f"/proc/{worker}/environ").read_bytes()
        assert secret.decode() not in repr(run.pushes.following)
    run.pushed()
    run.client.close()
    for path in (*repo.layout.root.rglob("*"), *remote.rglob("*")):
        assert not path.is_file() or b"not-to-be-seen" not in path.read_bytes()


def test_a_remote_that_is_forgotten_meanwhile_fails_pushes_and_no_save(repo: Repository) -> None:
    run = Run(repo, 1)
    remove_remote(repo.layout, repo.files, "origin")
    run.save()
    run.pushes.await_all()
    assert "no remote 'origin'" in str(run.pushes.taken_failure())
    run.save()
    run.client.close()
    add_remote(repo.layout, repo.files, RemoteConfig("origin", "s3://elsewhere"))
    assert repo.commit(repo.resolve("main")).step == 1


def test_without_a_worker_pushes_are_made_here(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "executable", "")
    run = Run(repo, 2)
    run.save()
    second = run.save()
    assert run.pushed() == {"branches/main": second}
    third = run.save()
    run.client.close()
    assert remote_tips(repo) == {"branches/main": third}
    assert os.getpid() not in workers()
