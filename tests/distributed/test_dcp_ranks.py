"""Real ranks that use torch's distributed checkpointing: one commit of what all of them have, or none."""

import signal
from pathlib import Path

import pytest
import torch
import torch.distributed.checkpoint as dcp

from moonclip import CheckpointManager
from moonclip.dcp import StorageReader, StorageWriter
from store.repository import Repository
from tests.distributed.load_rank import states
from tests.launching import launch, require_done, require_whole

pytestmark = [pytest.mark.slow, pytest.mark.filterwarnings("ignore:torch.distributed is")]


SCRIPT = "dcp_rank.py"


def test_what_ranks_save_any_other_number_of_them_loads(tmp_path: Path) -> None:
    root = tmp_path / "store"
    require_done(SCRIPT, tmp_path, 2, "save_layouts", "trained", "replicated", "sharded_tensors")
    require_done(SCRIPT, tmp_path, 4, "save_layouts", "part_of_the_ranks", "load_layouts", "resumed")
    require_done(SCRIPT, tmp_path, 2, "load_layouts", "resumed")
    with CheckpointManager(root) as mgr:
        for branch in mgr.branches():
            loaded = mgr.load(branch)
            if "/" in branch:
                assert all(torch.equal(loaded["model"][name], full) for name, full in states().items())
                count = int(branch[-1])
                assert set(loaded["own"]) == {"list", *(f"rank{rank}" for rank in range(count))}
                assert loaded["values"] == {"lr": 0.1, "text": "x", **{f"seed{rank}": rank for rank in range(count)}}
        assert mgr.log("step-1").__next__().step == 1
    target = {"model": {name: torch.zeros_like(full) for name, full in states().items()}}
    dcp.load(target, checkpoint_id="s0s1-4/step-4", storage_reader=StorageReader(root))
    assert all(torch.equal(target["model"][name], full) for name, full in states().items())
    require_whole(root)


def test_ranks_that_have_different_items_call_them_the_same_and_hold_no_lease_afterwards(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "lopsided", "leases")
    with CheckpointManager(tmp_path / "store") as mgr:
        loaded = mgr.load("lopsided")
    assert loaded.keys() == {"fc.weight", "model", "optim"}
    assert {key: each["exp_avg"][0].item() for key, each in loaded["optim"]["state"].items()} == {0: 0, 1: 1}
    require_whole(tmp_path / "store")


def test_saves_in_the_background_that_use_plans_again(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "in_background")
    require_whole(tmp_path / "store")


def test_b20_whatever_fails_on_one_rank_fails_on_all_and_the_next_save_works(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "failing")
    require_whole(tmp_path / "store")


@pytest.mark.parametrize("point", ["2 planning", "2 before", "1 stored", "0 stored", "0 finish"])
def test_a_rank_that_is_killed_in_a_save_publishes_nothing_and_the_next_one_works(tmp_path: Path, point: str) -> None:
    root = tmp_path / "store"
    codes, told = launch("dcp_rank.py", tmp_path, 3, "killed", POINT=point)
    assert sorted(codes) == [-signal.SIGKILL, 3, 3], "\n".join(told)
    with Repository.open(root) as repo:
        assert [each.removeprefix("tags/") for each in repo.refs.names("tags/")] == ["before"]
        assert len(list(repo.log([repo.resolve("killed")]))) == 1
    require_whole(root)
    state = {"model": {"w": torch.zeros(300, 100)}}
    dcp.load(state, checkpoint_id="before", storage_reader=StorageReader(root))
    state["model"]["w"] += 1
    writer = StorageWriter(root, branch="killed")
    dcp.save(state, checkpoint_id="after", storage_writer=writer)
    writer.close()
    with CheckpointManager(root, branch="killed") as mgr:
        assert torch.equal(mgr.load()["model"]["w"], torch.arange(30_000.0).view(300, 100) + 1)
    require_whole(root)
