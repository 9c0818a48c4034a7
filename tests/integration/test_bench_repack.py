"""The bench of repacking saves, repacks and loads what it says, and finds that fine-tunes have a base."""

from pathlib import Path

import pytest
import torch

from tools.bench import repacking
from tools.bench.workloads.forest import Forest


def weights(path: Path, base: torch.Tensor, seed: int) -> Path:
    noise = torch.randn(base.shape, generator=torch.Generator().manual_seed(seed))
    torch.save({"w": base + 1e-3 * noise * base}, path)
    return path


def test_fine_tunes_and_branches_are_saved_and_repacked(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    base = torch.randn(400, 300, generator=torch.Generator().manual_seed(0))
    forest = Forest(
        base=weights(tmp_path / "base.pt", base, 1),
        tunes=tuple(weights(tmp_path / f"tune-{number}.pt", base, 2 + number) for number in range(3)),
        branches=tuple(
            tuple(
                weights(tmp_path / f"branch-{number}-{commit}.pt", base, 10 + 5 * number + commit)
                for commit in range(2)
            )
            for number in range(2)
        ),
    )
    monkeypatch.setattr(repacking, "forest", lambda: forest)
    monkeypatch.setattr(repacking, "LOAD_COUNT", 2)
    bench = repacking.measure()
    for name, element_bytes in (("bf16 weights", 2), ("fp32 weights", 4)):
        found = bench.figures[name]
        assert found["raw_bytes"] == (1 + 3 + 4) * base.numel() * element_bytes
        assert found["small_bytes"] < found["saved_bytes"] < found["raw_bytes"]
        assert min(found["chain_s"], found["tip_s"], found["full_s"]) > 0
    assert [bar.what.split(":")[0] for bar in bench.bars] == ["bf16 weights"] * 2 + ["fp32 weights"] * 2
