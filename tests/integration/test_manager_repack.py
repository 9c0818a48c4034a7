"""Repacking by way of a manager that goes on saving."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from store.errors import Incompatible


def test_a_run_repacks_and_goes_on(tmp_path: Path) -> None:
    weight = torch.randn(64, 64, generator=torch.Generator().manual_seed(1))
    states = [weight + step * 1e-4 for step in range(6)]
    with CheckpointManager(tmp_path / "store") as manager:
        for step, state in enumerate(states[:4]):
            manager.save(step=step, model={"w": state})
        assert manager.repack("size", dry_run=True).made_count == 0
        assert manager.repack().made_count == 1
        manager.save(step=4, model={"w": states[4]})
        manager.repack("restore")
        manager.save(step=5, model={"w": states[5]})
        manager.flush()
        for step, state in enumerate(states):
            assert torch.equal(manager.load(f"step:{step}")["model"]["w"], state)
        assert manager.fsck(full=True).clean
        with pytest.raises(Incompatible, match="speed"):
            manager.repack("speed")  # type: ignore[arg-type]
