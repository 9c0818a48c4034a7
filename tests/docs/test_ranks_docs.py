"""What docs/ranks.md shows runs: its scripts on two ranks, then on four, and the rest in one process."""

import socket
from pathlib import Path

import pytest

from moonclip import CheckpointManager
from tests.docpages import ROOT, play
from tests.launching import launch


def free_port() -> str:
    with socket.socket() as made:
        made.bind(("127.0.0.1", 0))
        return str(made.getsockname()[1])


@pytest.mark.slow
def test_ranks(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for world_size in (2, 4):
        codes, told = launch("docs_rank.py", tmp_path, world_size, free_port(), free_port())
        assert codes == [0] * world_size, "\n".join(told)
    play(ROOT / "docs" / "ranks.md", {})
    for name, steps in (("checkpoints", 6), ("pipeline", 2), ("by-hand", 8)):
        with CheckpointManager(tmp_path / name, world_size=1) as mgr:
            assert mgr.resume() == steps
    with CheckpointManager(tmp_path / "by-hand", world_size=1) as mgr:
        assert set(mgr.load()["model"]) == {"half0", "half1"}
