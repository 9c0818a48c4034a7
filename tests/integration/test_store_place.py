"""A store stays where it was opened, whatever becomes of the working directory."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager


def test_a_relative_root_does_not_follow_the_working_directory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    (tmp_path / "here").mkdir()
    (tmp_path / "there").mkdir()
    monkeypatch.chdir(tmp_path / "here")
    with CheckpointManager("checkpoints") as mgr:
        mgr.save(step=1, w=torch.ones(100)).result()
        monkeypatch.chdir(tmp_path / "there")
        mgr.save(step=2, w=torch.zeros(100)).result()
        assert torch.equal(mgr.load("step:1")["w"], torch.ones(100))
    assert not list((tmp_path / "there").iterdir())
    with CheckpointManager(tmp_path / "here" / "checkpoints") as mgr:
        assert [snapshot.step for snapshot in mgr.log()] == [2, 1]
