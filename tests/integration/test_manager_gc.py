"""``CheckpointManager.gc``, beside the worker that goes on saving."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from store.errors import MoonclipError
from store.upkeep.retention import Keep


def state(step: int) -> dict[str, torch.Tensor]:
    return {"w": torch.full((3000,), float(step)) + torch.arange(3000), "same": torch.arange(900.0)}


def pack_bytes(root: Path) -> int:
    return sum(path.stat().st_size for path in (root / "packs").iterdir())


def test_what_was_pruned_gives_its_space_back_and_saving_goes_on(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as manager:
        commits = [manager.save(step=step, model=state(step)).result() for step in range(8)]
        assert len(manager.prune(Keep(last=2))) == 6
        told = manager.gc(dry_run=True)
        before_bytes = pack_bytes(tmp_path)
        done = manager.gc()
        assert told.freed_bytes == done.freed_bytes == before_bytes - pack_bytes(tmp_path) > 0
        for step in (6, 7):
            assert torch.equal(manager.load(commits[step])["model"]["w"], state(step)["w"])
        with pytest.raises(MoonclipError, match="was pruned"):
            manager.load(commits[0])
        manager.save(step=8, model=state(8))
        manager.flush()
        assert manager.fsck(full=True).clean
        assert torch.equal(manager.load()["model"]["w"], state(8)["w"])
        assert manager.gc().object_count == 0
