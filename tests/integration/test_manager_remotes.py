"""Managers that have a remote: pushes in the background and on demand, and runs that are taken up elsewhere."""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, Conflict, Incompatible, Keep, MoonclipError, NotFound, PushFailed, RemoteMissing
from moonclip.managing import bringing
from store.disk.files import Files
from store.fsck import fsck
from store.layout import Layout
from store.remotes.configured import remotes
from store.remotes.fetching.fetch import fetch as fetch_here
from store.repository import Repository
from store.upkeep.absences import Why
from tests.pushing import refs_of_remote_held, remote_tip
from tests.workers import becomes_true, only_worker, workers


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    path = tmp_path / "remote"
    path.mkdir()
    return path


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "store"


def state(step: int) -> dict[str, Any]:
    generator = torch.Generator().manual_seed(step)
    return {
        "model": {"weight": torch.randn(300, 200, generator=generator)},
        "optimizer": {"moment": torch.randn(300, 200, generator=generator)},
    }


def zeros() -> dict[str, Any]:
    return {"model": {"weight": torch.zeros(300, 200)}, "optimizer": {"moment": torch.zeros(300, 200)}}


def fill(mgr: CheckpointManager, *steps: int) -> None:
    for step in steps:
        mgr.save(step=step, **state(step))


def requires(found: dict[str, Any], step: int, *items: str) -> None:
    for item in items or ("model", "optimizer"):
        for name, tensor in state(step)[item].items():
            assert torch.equal(found[item][name], tensor), f"{item}::{name}"


def tip_step(root: Path, branch: str = "main") -> int | None:
    """The step that the remote of a store has got to."""
    tip = remote_tip(root, branch)
    with Repository.open(root, thread_count=1) as repo:
        return None if tip is None else repo.commit(tip).step


@pytest.fixture
def pushed(root: Path, remote: Path) -> Iterator[Path]:
    """A remote that has steps 0 to 2 of a run; the run's own store is away."""
    with CheckpointManager(root, remote=remote, push_every=1) as mgr:
        fill(mgr, 0, 1, 2)
    root.rename(root.with_name("first"))
    yield remote
    with CheckpointManager(root.with_name("first")) as mgr:
        assert mgr.fsck().clean


# --- pushing --------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_save", [True, False])
def test_pushes_follow_saves_and_the_end(root: Path, remote: Path, async_save: bool) -> None:
    with CheckpointManager(root, remote=str(remote), push_every=2, async_save=async_save) as mgr:
        fill(mgr, 0, 1)
        mgr.flush()
        assert tip_step(root) == 1
        fill(mgr, 2)
        mgr.flush()
        assert tip_step(root) == 1
        assert mgr.remotes() == {"origin": remote.as_uri()}
    assert tip_step(root) == 2
    assert workers() == []


def test_nothing_is_pushed_unless_asked(root: Path, remote: Path) -> None:
    with CheckpointManager(root, remote=remote) as mgr:
        fill(mgr, 0, 1)
        mgr.flush()
    assert list(remote.rglob("*.pack")) == []
    with CheckpointManager(root) as mgr:  # the store remembers it
        planned = mgr.push(dry_run=True)
        assert (planned.commit_count, list(remote.rglob("*.pack"))) == (2, [])
        done = mgr.push()
        assert [change.why for change in done.changes] == ["new"]
        assert [change.why for change in mgr.sync_now().changes] == ["current"]
    assert tip_step(root) == 1


def test_branches_and_tags_are_pushed_by_name(root: Path, remote: Path) -> None:
    with CheckpointManager(root, remote=remote) as mgr:
        mgr.save("nightly", state(0))
        mgr.flush()
        mgr.branch("lr3")
        mgr.branch("lr4")
        pushed = mgr.push(branches="lr3", tags="nightly")
        assert {change.name for change in pushed.changes} == {"branches/lr3", "tags/nightly"}
        everything = mgr.push(all=True)
        assert {change.name for change in everything.changes} == {"branches/lr3", "branches/lr4", "branches/main"}
        with pytest.raises(NotFound, match="no branch 'lr5'"):
            mgr.push(branches=["lr5"])
        with pytest.raises(NotFound, match="no remote 'elsewhere'"):
            mgr.push("elsewhere")


def test_a_manager_that_is_dropped_pushes_what_it_saved(root: Path, remote: Path) -> None:
    mgr = CheckpointManager(root, remote=remote, push_every=5)
    fill(mgr, 0)
    worker = only_worker()
    del mgr
    assert becomes_true(lambda: not Path(f"/proc/{worker}").exists())
    assert tip_step(root) == 0


def test_a_forked_child_leaves_pushes_to_its_parent(root: Path, remote: Path) -> None:
    with CheckpointManager(root, remote=remote, push_every=1) as mgr:
        fill(mgr, 0)
        mgr.flush()
        with refs_of_remote_held(remote):
            fill(mgr, 1)
            assert becomes_true(lambda: len(list(remote.glob("packs/*.idx"))) > 1)  # in the middle of a push
            child = os.fork()
            if child == 0:
                code = 1
                torch.set_num_threads(1)  # OpenMP's threads are not in the child, and its pool waits for them
                try:
                    requires(mgr.load("step:0"), 0)
                    mgr.flush()  # waits for nobody
                    fill(mgr, 2)
                except MoonclipError as error:
                    code = 0 if "is a fork" in str(error) else 2
                finally:
                    os._exit(code)
            assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        mgr.flush()
        assert tip_step(root) == 1


def test_retention_here_deletes_nothing_there(root: Path, remote: Path, tmp_path: Path) -> None:
    with CheckpointManager(root, remote=remote, push_every=1, keep=Keep(last=1)) as mgr:
        for step in range(4):
            fill(mgr, step)
            mgr.flush()
    with CheckpointManager(root) as mgr:
        mgr.prune(Keep(last=1))
        mgr.gc()
        with pytest.raises(NotFound):
            mgr.load("step:0")
        mgr.push()
    with CheckpointManager(tmp_path / "fresh", remote=remote) as mgr:
        mgr.fetch()
        requires(mgr.load("origin/main~3"), 0)


# --- faults ---------------------------------------------------------------------------------------------------------


def test_a_remote_that_is_not_there_is_told_by_flush_and_push_and_costs_no_save(root: Path, remote: Path) -> None:
    mgr = CheckpointManager(root, remote=remote, push_every=1)
    fill(mgr, 0)
    mgr.flush()
    remote.rename(remote.with_name("away"))
    fill(mgr, 1, 2)
    with pytest.raises(PushFailed, match=r"at step 2 here and, as last seen, at step 0 there") as failed:
        mgr.flush()
    assert isinstance(failed.value.__cause__, RemoteMissing)
    mgr.flush()  # told once
    with pytest.raises(RemoteMissing):
        mgr.push()
    remote.with_name("away").rename(remote)
    fill(mgr, 3)
    mgr.flush()
    assert tip_step(root) == 3
    mgr.close()
    assert remote_tip(root) is not None


def test_close_tells_what_could_not_be_pushed_and_keeps_it(root: Path, remote: Path) -> None:
    mgr = CheckpointManager(root, remote=remote, push_every=3)
    fill(mgr, 0, 1)
    remote.rename(remote.with_name("away"))
    with pytest.raises(PushFailed, match="step 1 here"):
        mgr.close()
    mgr.close()
    remote.with_name("away").rename(remote)
    with CheckpointManager(root) as again:
        again.push()
    assert tip_step(root) == 1


def test_a_machine_that_saves_before_it_fetches_overwrites_nothing(root: Path, pushed: Path) -> None:
    mgr = CheckpointManager(root, remote=pushed, push_every=1)
    fill(mgr, 7)
    with pytest.raises(PushFailed, match="Nothing is lost on either side") as failed:
        mgr.flush()
    assert isinstance(failed.value.__cause__, Conflict)
    assert tip_step(root.with_name("first")) == 2
    with pytest.raises(Conflict, match="go on under another name"):
        mgr.push()
    mgr.branch("again")  # as the message says
    mgr.switch("again")
    mgr.push()
    assert tip_step(root, "again") == 7
    mgr.fetch()
    mgr.switch("main")
    mgr.push(force_with_lease=True)
    assert tip_step(root) == 7
    mgr.close()


# --- taking up elsewhere --------------------------------------------------------------------------------------------


def test_resume_on_an_empty_machine_brings_the_newest_and_nothing_else(root: Path, pushed: Path) -> None:
    found = zeros()
    with CheckpointManager(root, remote=pushed) as mgr:
        assert mgr.resume(**found) == 3
        requires(found, 2)
        assert [snapshot.step for snapshot in mgr.log()] == [2, 1, 0]
        assert mgr.fsck(full=True).clean
        fill(mgr, 3)
        assert mgr.push().commit_count == 1
    with Repository.open(root, thread_count=1) as repo:
        assert remotes(repo.layout, repo.files)["origin"].lazy
        records = [record for each in repo.absences.all().values() for record in each]
        steps = {repo.commit(record.commit).step for record in records}
        assert (steps, {record.origin for record in records}) == ({0, 1}, {"origin"})
    assert tip_step(root) == 3
    with CheckpointManager(root) as mgr:
        requires(mgr.load("step:0"), 0)  # read from there now


def test_only_what_is_asked_for_comes(root: Path, pushed: Path) -> None:
    found = zeros()
    with CheckpointManager(root, remote=pushed) as mgr:
        assert mgr.resume(model=found["model"]) == 3
        requires(found, 2, "model")
    with Repository.open(root, thread_count=1) as repo:
        (record,) = repo.absences.records(repo.resolve("main"))
        assert (record.item, record.why) == ("optimizer", Why.PARTIAL)
        assert fsck(repo, full=True).clean


def test_the_model_comes_first(root: Path, pushed: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def watched(*arguments: Any, **named: Any) -> Any:
        asked.append(named.get("items"))
        return fetch_here(*arguments, **named)

    monkeypatch.setattr(bringing, "fetch", watched)
    with CheckpointManager(root, remote=pushed) as mgr:
        mgr.resume(**zeros())
    assert asked == [None, ["model"], ["optimizer"]]


def test_a_resume_that_was_cut_off_is_completed_by_the_next(
    root: Path, pushed: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    def cut_off(*arguments: Any, **named: Any) -> Any:
        if named.get("items") == ["optimizer"]:
            raise KeyboardInterrupt
        return fetch_here(*arguments, **named)

    with monkeypatch.context() as patched, CheckpointManager(root, remote=pushed) as mgr:
        patched.setattr(bringing, "fetch", cut_off)
        with pytest.raises(KeyboardInterrupt):
            mgr.resume(**zeros())
        assert mgr.branches() == {}
    found = zeros()
    with CheckpointManager(root, remote=pushed) as mgr:
        assert mgr.resume(**found) == 3
        requires(found, 2)


def test_resume_at_a_revision_brings_that(root: Path, pushed: Path) -> None:
    found = zeros()
    with CheckpointManager(root, remote=pushed) as mgr:
        assert mgr.resume(rev="main~1", branch="again", **found) == 2
        requires(found, 1)
        assert mgr.bound_branch == "again"


def test_the_branch_that_was_not_named_is_the_newest(root: Path, remote: Path) -> None:
    with CheckpointManager(root, branch="exp/a", remote=remote, push_every=1) as mgr:
        fill(mgr, 0)
        mgr.flush()
        mgr.branch("exp/b")
        mgr.switch("exp/b")
        fill(mgr, 1)
    shutil.rmtree(root)
    with CheckpointManager(root, remote=remote) as mgr:
        assert mgr.resume(**zeros()) == 2
        assert mgr.bound_branch == "exp/b"
    with Repository.open(root) as repo:
        assert repo.refs.head() == "exp/b"
    shutil.rmtree(root)
    with CheckpointManager(root, branch="exp/c", remote=remote) as mgr, pytest.raises(NotFound, match="exp/a, exp/b"):
        mgr.resume(**zeros())


def test_an_empty_remote_begins_a_run(root: Path, remote: Path) -> None:
    with CheckpointManager(root, remote=remote, push_every=1) as mgr:
        assert mgr.resume(**zeros()) == 0
        fill(mgr, 0)
    assert tip_step(root) == 0


def test_a_remote_that_is_not_there_begins_no_run(root: Path, pushed: Path) -> None:
    pushed.rename(pushed.with_name("away"))
    with CheckpointManager(root, remote=pushed) as mgr, pytest.raises(RemoteMissing):
        mgr.resume(**zeros())
    pushed.with_name("away").rename(pushed)


def test_a_store_that_has_newer_history_is_not_rolled_back(root: Path, remote: Path) -> None:
    with CheckpointManager(root, remote=remote) as mgr:
        fill(mgr, 0)
        mgr.push()
        fill(mgr, 1, 2)
    with CheckpointManager(root, remote=remote) as mgr:
        assert mgr.resume(**zeros()) == 3
        assert mgr.pull().new.hex() == mgr.head
        assert mgr.step == 2


def test_pull_moves_a_branch_on_to_what_another_machine_saved(root: Path, pushed: Path, tmp_path: Path) -> None:
    with CheckpointManager(root, remote=pushed) as mgr, CheckpointManager(tmp_path / "first", remote=pushed) as first:
        mgr.resume(**zeros())
        fill(mgr, 3)
        mgr.push()
        fill(first, 30)
        with pytest.raises(Conflict, match="each has"):
            first.pull()
        assert first.step == 30
        first.branch("aside")
    with CheckpointManager(tmp_path / "second", remote=pushed) as second:
        second.pull()
        assert second.step == 3
        found = zeros()
        assert second.resume(**found) == 4
        requires(found, 3)
        requires(second.load("main~3"), 0)  # a pull brings all
        fill(second, 4)
        second.push()
    with CheckpointManager(root, remote=pushed) as mgr:
        mgr.pull(items=["model", "optimizer"])
        assert mgr.resume(**zeros()) == 5


# --- what cannot be -------------------------------------------------------------------------------------------------


def test_another_place_for_the_same_name_is_refused(root: Path, remote: Path, tmp_path: Path) -> None:
    CheckpointManager(root, remote=remote).close()
    with pytest.raises(Incompatible, match="moonclip remote remove origin"):
        CheckpointManager(root, remote=tmp_path / "other")
    assert remotes(Layout(root), Files())["origin"].url == remote.as_uri()


def test_a_store_without_a_remote_says_what_to_do(root: Path) -> None:
    with CheckpointManager(root) as mgr, pytest.raises(NotFound, match="moonclip remote add"):
        mgr.push()
