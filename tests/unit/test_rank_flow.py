"""Saves of several ranks without torch.distributed, and what is said where there are several and nothing was stated."""

from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.tensor import Shard

from moonclip import CheckpointManager
from store.errors import Conflict, Incompatible, PartsMissing, SnapshotGone
from store.ids import CommitId
from store.naming.refs import NotDurable
from store.saving.publish import Approve
from store.saving.snapshots import Snapshot
from tests.ranks import rank_of, spread


def test_ranks_that_are_told_an_id_make_one_commit(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr, CheckpointManager(tmp_path) as other:
        snapshot = mgr.create_snapshot(7, world_size=2, message="by hand")
        mgr.save_rank(snapshot, 0, {"model": {"a": torch.arange(300)}, "lr": 0.5})
        with pytest.raises(PartsMissing, match="1"):
            mgr.finalize_snapshot(snapshot)
        assert mgr.branches() == {}
        other.save_rank(snapshot, 1, {"model": {"b": torch.arange(5)}, "lr": 0.5})
        commit = mgr.finalize_snapshot(snapshot)
        assert commit == mgr.head
        assert mgr.step == 7
        loaded = mgr.load()
        assert loaded["lr"] == 0.5
        assert loaded["model"]["a"].equal(torch.arange(300))
        assert loaded["model"]["b"].equal(torch.arange(5))
        with pytest.raises(SnapshotGone):
            mgr.finalize_snapshot(snapshot)
        with pytest.raises(SnapshotGone):
            other.save_rank(snapshot, 1, {"model": {"b": torch.arange(5)}})
        mgr.save(step=8, model={"a": torch.arange(3)}).result(60)
        assert len(mgr.list_snapshots()) == 2


def test_ranks_that_do_not_talk_cast_what_they_have_all_of(tmp_path: Path) -> None:
    rules = {"*/a": "fp8_e4m3", "*/b": "bf16", "*": "none"}
    given = {"a": torch.randn(900) * 1e-6, "b": torch.randn(700), "c": torch.randn(300)}
    with CheckpointManager(tmp_path / "alone", save_dtype=rules, async_save=False) as mgr:
        mgr.save(model=given)
        expected = mgr.load()["model"]
    with CheckpointManager(tmp_path / "store", save_dtype=rules) as mgr:
        snapshot = mgr.create_snapshot(world_size=3)
        for rank, (name, tensor) in enumerate(given.items()):
            mgr.save_rank(snapshot, rank, {"model": {name: tensor}})
        mgr.finalize_snapshot(snapshot)
        assert all(tensor.equal(expected[name]) for name, tensor in mgr.load()["model"].items())
        assert not expected["a"].equal(given["a"])
        snapshot = mgr.create_snapshot(world_size=2)
        with rank_of(0, 2) as mesh:
            shard = {"model": {"a": spread(given["a"], mesh, (Shard(0),))}}
            with pytest.raises(Incompatible, match="model::a: float8_e4m3fn takes the largest number of the whole"):
                mgr.save_rank(snapshot, 0, shard)


def test_a_snapshot_is_given_up_when_its_manager_closes(tmp_path: Path) -> None:
    mgr = CheckpointManager(tmp_path)
    snapshot = mgr.create_snapshot(world_size=1)
    mgr.save_rank(snapshot, 0, {"model": {"a": torch.arange(300)}})
    mgr.close()
    with CheckpointManager(tmp_path) as again:
        assert again.head is None
        with pytest.raises(SnapshotGone):
            again.save_rank(snapshot, 0, {"model": {"a": torch.arange(300)}})


def test_the_same_elements_from_two_ranks_are_refused(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        snapshot = mgr.create_snapshot(world_size=2)
        for rank in range(2):
            mgr.save_rank(snapshot, rank, {"model": {"a": torch.arange(300)}})
        with pytest.raises(Incompatible, match="model::a"):
            mgr.finalize_snapshot(snapshot)


def test_a_launcher_of_several_with_nothing_said_is_an_error(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("WORLD_SIZE", "2")
    monkeypatch.setenv("RANK", "1")
    with pytest.raises(Incompatible, match="rank 1 of 2 processes"):
        CheckpointManager(tmp_path / "store")
    with pytest.raises(Incompatible, match="init_process_group"):
        CheckpointManager(tmp_path / "store", world_size="auto")
    assert not (tmp_path / "store").exists()
    with CheckpointManager(tmp_path / "store", world_size=1) as mgr:
        mgr.save(model={"a": torch.ones(2)})


def test_a_snapshot_is_committed_to_the_branch_that_it_was_begun_on(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        base = mgr.save(step=0, model={"a": torch.arange(3)}).result(60)
        mgr.branch("exp")
        snapshot = mgr.create_snapshot(1, world_size=1)
        mgr.save_rank(snapshot, 0, {"model": {"a": torch.arange(4)}})
        mgr.switch("exp")
        commit = mgr.finalize_snapshot(snapshot)
        assert mgr.branches() == {"main": commit, "exp": base}
        assert mgr.head == base
        after = mgr.save(step=2, model={"a": torch.arange(5)}).result(60)
        assert mgr.branches() == {"main": commit, "exp": after}


def test_the_next_save_follows_a_snapshot_whose_branch_had_moved(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr, CheckpointManager(tmp_path) as other:
        snapshot = mgr.create_snapshot(1, world_size=1)
        mgr.save_rank(snapshot, 0, {"model": {"a": torch.arange(4)}})
        first = other.save(step=0, model={"a": torch.arange(3)}).result(60)
        with pytest.raises(Conflict) as conflict:
            mgr.finalize_snapshot(snapshot)
        kept, commit = conflict.value.details["kept"], conflict.value.details["commit"]
        after = mgr.save(step=2, model={"a": torch.arange(5)}).result(60)
        assert mgr.branches() == {"main": first, kept: after}
        assert mgr.list_snapshots()[0].id == commit
        with pytest.raises(SnapshotGone, match="not in the making here"):
            mgr.finalize_snapshot(snapshot)


def test_the_next_save_follows_a_snapshot_that_the_disk_did_not_confirm(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with CheckpointManager(tmp_path) as mgr:
        snapshot = mgr.create_snapshot(1, world_size=1)
        mgr.save_rank(snapshot, 0, {"model": {"a": torch.arange(4)}})
        finalize = Snapshot.finalize

        def unconfirmed(begun: Snapshot, approve: Approve | None = None) -> CommitId:
            commit = finalize(begun, approve)
            raise NotDurable("the disk failed", ref="refs/heads/main", commit=commit.hex())

        with monkeypatch.context() as patched, pytest.raises(NotDurable):
            patched.setattr(Snapshot, "finalize", unconfirmed)
            mgr.finalize_snapshot(snapshot)
        commit = mgr.branches()["main"]
        mgr.save(step=2, model={"a": torch.arange(5)}).result(60)
        assert mgr.list_snapshots()[0].id == commit


def test_a_snapshot_that_a_callback_refused_can_be_finalized_again(tmp_path: Path) -> None:
    refusals = [Conflict("not yet")]

    def approve(_: Any) -> None:
        if refusals:
            raise refusals.pop()

    with CheckpointManager(tmp_path, pre_finalize=approve) as mgr:
        snapshot = mgr.create_snapshot(1, world_size=1)
        mgr.save_rank(snapshot, 0, {"model": {"a": torch.arange(4)}})
        with pytest.raises(Conflict, match="not yet"):
            mgr.finalize_snapshot(snapshot)
        assert mgr.branches() == {}
        commit = mgr.finalize_snapshot(snapshot)
        assert mgr.branches() == {"main": commit}
