"""Experiment trackers: what they are told of a commit, and the example, where none of them is installed."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager, NotFound
from moonclip.integrations.trackers import tracker_fields
from tests.launching import ROOT


def test_b4_a_tracker_is_told_which_commit_it_is(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "store", async_save=False) as mgr:
        with pytest.raises(NotFound):
            tracker_fields(mgr)
        first = mgr.save("start", {"weight": torch.ones(3)}, step=5).result()
        future = mgr.save(weight=torch.zeros(3))
        assert tracker_fields(mgr, "start") == {
            "moonclip.commit": first,
            "moonclip.short": first[:8],
            "moonclip.branch": "main",
            "moonclip.parents": "",
            "moonclip.step": 5,
            "moonclip.tags": "start",
            "moonclip.store": str(tmp_path / "store"),
        }
        told = tracker_fields(mgr)
        assert told == tracker_fields(mgr, future)
        assert (told["moonclip.commit"], told["moonclip.parents"]) == (future.result(), first)
        assert "moonclip.step" not in told


def test_b4_telling_loads_no_library() -> None:
    program = (
        "import sys, moonclip.integrations.trackers;"
        " print(sorted({'torch', 'numpy', 'mlflow', 'wandb', 'transformers', 'peft'} & set(sys.modules)))"
    )
    finished = subprocess.run([sys.executable, "-c", program], cwd=ROOT, capture_output=True, text=True, check=True)
    assert finished.stdout == "[]\n"


def test_b4_the_example_runs_without_any_tracker(tmp_path: Path) -> None:
    program = (
        "import runpy, sys; sys.modules['mlflow'] = sys.modules['wandb'] = None; sys.argv = sys.argv[1:];"
        " runpy.run_path(sys.argv[0], run_name='__main__')"
    )
    command = [sys.executable, "-c", program, str(ROOT / "examples" / "trackers.py"), str(tmp_path / "store")]
    finished = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert "MLflow is not installed" in finished.stdout
    assert "W&B is not installed" in finished.stdout
    assert "moonclip.commit" in finished.stdout
