"""Retention by a manager: what is dropped while a run saves, and that it costs no save."""

import logging
import os
from contextlib import suppress
from datetime import timedelta
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, Incompatible, Keep, NotFound, Pruned, SaveFailed
from store.fsck import fsck
from store.repository import Repository
from tests.workers import becomes_true, only_worker, stopped

LAST = Keep(last=1)


@pytest.fixture
def root(tmp_path: Path) -> Path:
    return tmp_path / "checkpoints"


def weights(step: int) -> torch.Tensor:
    return torch.full((200,), float(step))


def state(step: int) -> dict[str, torch.Tensor]:
    return {"w": weights(step)}


def pruned_steps(root: Path) -> list[int]:
    with CheckpointManager(root) as mgr:
        return [snapshot.step for snapshot in mgr.list_snapshots() if snapshot.absent]  # type: ignore[misc]


@pytest.mark.parametrize("async_save", [True, False])
def test_h1_a_run_keeps_what_its_policy_says(root: Path, async_save: bool) -> None:
    losses = [0.5, 0.1, 0.4, 0.3, 0.2, 0.6]
    with CheckpointManager(root, keep=Keep(last=2, best=("loss", "min", 1)), async_save=async_save) as mgr:
        for step, loss in enumerate(losses):
            mgr.save(step=step, model=state(step), metadata={"loss": loss})
    assert pruned_steps(root) == [0, 2, 3]
    with CheckpointManager(root) as mgr:
        for revision, step in (("main", 5), ("main~1", 4), ("main~4", 1)):
            assert torch.equal(mgr.load(revision)["model"]["w"], weights(step))
        with pytest.raises(Pruned, match="was pruned"):
            mgr.load("step:0")
        model = state(9)
        assert mgr.resume(model=model) == 6
        assert torch.equal(model["w"], weights(5))
        with pytest.raises(Pruned):
            mgr.resume(rev="step:0", branch="again", model=model)
        assert mgr.branches().keys() == {"main"}
    with Repository.open(root, read_only=True) as repo:
        assert fsck(repo, full=True).clean


def open_packs(pid: int) -> set[str]:
    """Packs that a process has open: they take space, whoever removes them."""
    found = set()
    for link in Path(f"/proc/{pid}/fd").iterdir():
        with suppress(FileNotFoundError):
            found.add(str(link.readlink()))
    return {name for name in found if "/packs/" in name}


def test_c7_neither_a_run_nor_its_worker_keeps_packs_open_between_saves(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for step in range(3):
            mgr.save(step=step, model=state(step))
    with CheckpointManager(root) as mgr:
        mgr.resume(model=state(0))
        assert open_packs(os.getpid())
        for step in range(3, 6):
            mgr.save(step=step, model=state(step)).result()
        assert not open_packs(os.getpid())
        worker = only_worker()
        assert becomes_true(lambda: not open_packs(worker))


def test_without_a_policy_everything_stays(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for step in range(3):
            mgr.save(step=step, model=state(step))
    assert pruned_steps(root) == []


def test_tagged_saves_stay(root: Path) -> None:
    with CheckpointManager(root, keep=LAST) as mgr:
        for step in range(4):
            mgr.save("good" if step == 1 else None, {"model": state(step)}, step=step)
    assert pruned_steps(root) == [0, 2]


def test_it_is_done_in_the_worker_when_the_save_is_over(root: Path) -> None:
    """The Future is resolved first; a worker that then stands still keeps nobody from looking at the commit."""
    with CheckpointManager(root, keep=LAST) as mgr:
        mgr.save(step=0, model=state(0)).result()
        worker = only_worker()
        future = mgr.save(step=1, model=state(1))
        future.result()
        with stopped(worker):
            assert torch.equal(mgr.load("main")["model"]["w"], weights(1))
    assert pruned_steps(root) == [0]


def test_a_policy_that_cannot_be_applied_costs_no_save_and_is_told_once(
    root: Path, caplog: pytest.LogCaptureFixture
) -> None:
    with CheckpointManager(root) as mgr:
        mgr.save(step=0, model=state(0))
    (root / "pins").write_bytes(b"garbled")  # what it protects is not known, so nothing can be dropped
    with caplog.at_level(logging.WARNING), CheckpointManager(root, keep=LAST) as mgr:
        for step in range(1, 4):
            mgr.save(step=step, model=state(step)).result()
    assert caplog.text.count("what the policy does not keep is not dropped") == 1
    (root / "pins").unlink()
    assert pruned_steps(root) == []


def test_the_next_run_catches_up(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for step in range(3):
            mgr.save(step=step, model=state(step))
    with CheckpointManager(root, keep=LAST) as mgr:
        mgr.save(step=3, model=state(3))
    assert pruned_steps(root) == [0, 1, 2]


def test_pruning_by_hand(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for step in range(4):
            mgr.save(step=step, model=state(step), optimizer=state(-step))
        mgr.pin("step:1", "for the paper")
        planned = mgr.prune(LAST, dry_run=True)
        assert [one.step for one in planned] == [0, 2]
        assert all(one.freed_bytes > 0 and one.items is None for one in planned)
        assert pruned_steps(root) == []
        dropped = mgr.prune(items=["optimizer"], older_than=1)
        assert [(one.step, one.items) for one in dropped] == [(0, ("optimizer",)), (2, ("optimizer",))]
        assert mgr.load("step:0", items=["model"]).keys() == {"model"}
        with pytest.raises(Pruned, match="load the others by name"):
            mgr.load("step:0")
        assert mgr.describe("step:0").tensors.keys() == {"model::w"}
        assert [one.step for one in mgr.prune(LAST)] == [0, 2]
        assert mgr.prune(LAST) == []
        assert list(mgr.pins().values()) == ["for the paper"]
        mgr.unpin("step:1")
        assert [one.step for one in mgr.prune(LAST)] == [1]
        with pytest.raises(NotFound, match="not pinned"):
            mgr.unpin("step:1")
    assert pruned_steps(root) == [0, 1, 2]


def test_what_to_prune_must_be_clear(root: Path) -> None:
    with CheckpointManager(root) as mgr:
        for arguments in ({}, {"items": ["model"]}, {"older_than": 1}, {"keep": LAST, "items": ["x"], "older_than": 1}):
            with pytest.raises(Incompatible, match="either a policy"):
                mgr.prune(**arguments)  # type: ignore[arg-type]
        assert mgr.prune(items=["model"], older_than=timedelta(days=1)) == []


def test_a_failed_save_drops_nothing(root: Path) -> None:
    with CheckpointManager(root, keep=LAST) as mgr:
        mgr.save(step=0, model=state(0)).result()
        with Repository.open(root) as other:  # somebody else moves the branch
            tip = other.refs.read("branches/main")
            other.refs.update("branches/main", tip, None, "delete")
        with pytest.raises(SaveFailed):
            mgr.save(step=1, model=state(1)).result()
        with Repository.open(root, read_only=True) as other:
            assert tip is not None
            assert other.absences.of(tip) == frozenset()
        with pytest.raises(SaveFailed):
            mgr.flush()


def test_space_comes_back_between_saves(root: Path) -> None:
    """24 MB of noise a save, of which one is kept: six of them never lie there together for long."""
    generator = torch.Generator().manual_seed(0)
    with CheckpointManager(root, keep=LAST) as mgr:
        for step in range(6):
            weight = torch.randint(0, 256, (24_000_000,), generator=generator, dtype=torch.uint8)
            mgr.save(step=step, model={"w": weight}).result()
        assert becomes_true(lambda: sum(path.stat().st_size for path in (root / "packs").glob("*.pack")) < 80_000_000)
        assert torch.equal(mgr.load("main", verify="full")["model"]["w"], weight)
    with Repository.open(root, read_only=True) as repo:
        assert fsck(repo, full=True).clean


def test_h1_a_step_is_what_was_not_pruned_of_it(root: Path) -> None:
    with CheckpointManager(root, async_save=False) as mgr:
        first = mgr.save("best", {"model": state(1)}, step=1).result()
        for step in (2, 1, 2):  # training was rolled back, and came by again
            mgr.save(step=step, model=state(step + 10))
        assert mgr.snapshot("step:1").id != first
        mgr.prune(Keep(last=1))
        assert mgr.snapshot("step:1").id == first
        assert torch.equal(mgr.load("step:1", items=["model"])["model"]["w"], state(1)["w"])
