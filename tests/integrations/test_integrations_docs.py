"""The code in docs/integrations.md runs, in the order in which it stands, and so do the examples."""

import os
import subprocess
import sys
from pathlib import Path

import pytest
import torch

from store.fsck import fsck
from store.repository import Repository
from tests.docpages import ROOT, play

pytestmark = pytest.mark.filterwarnings("ignore")


@pytest.mark.slow
def test_the_page_can_be_followed(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setenv("HF_HUB_OFFLINE", "1")
    torch.manual_seed(0)
    play(ROOT / "docs" / "integrations.md", {})
    with Repository.open(tmp_path / "checkpoints") as repo:
        assert {"branches/main", "branches/accelerated", "branches/french", "tags/best"} <= repo.refs.list().keys()
        assert fsck(repo, full=True).clean


@pytest.mark.slow
@pytest.mark.parametrize(
    ("example", "says"),
    [
        ("hf_trainer.py", "the rest of the curve is the same: True"),
        ("accelerate_loop.py", "the rest of the curve is the same: True"),
        ("peft_adapters.py", "same answers: True True"),
    ],
)
def test_examples_run(example: str, says: str, tmp_path: Path) -> None:
    command = [sys.executable, "-W", "ignore", str(ROOT / "examples" / example), str(tmp_path / "store")]
    settings = {**os.environ, "HF_HUB_OFFLINE": "1", "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    finished = subprocess.run(command, env=settings, capture_output=True, text=True, check=False)
    assert finished.returncode == 0, finished.stderr
    assert says in finished.stdout
