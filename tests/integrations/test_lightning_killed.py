"""A trainer of Lightning's that is killed and resumed goes on as if it had never been, to the last bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from moonclip import CheckpointManager
from store.repository import Repository
from tests.killing import check_store
from tests.launching import ROOT

pytestmark = pytest.mark.slow

WAYS = ["lightning, paths", "lightning, store", "pytorch_lightning, paths"]


@pytest.fixture(scope="module")
def told(tmp_path_factory: pytest.TempPathFactory) -> tuple[Path, dict[str, Any]]:
    """Where all runs of all ways were, and their losses by step."""
    directory = tmp_path_factory.mktemp("lightning")
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("lightning_trials.py")), str(directory)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return directory, json.loads(ended.stdout.splitlines()[-1])


def require_sound(root: Path) -> None:
    with Repository.open(root) as repo:
        check_store(repo, [])


def after(curve: dict[str, str], step: int) -> dict[str, str]:
    return {each: loss for each, loss in curve.items() if int(each) >= step}


@pytest.mark.parametrize("way", WAYS)
def test_b4_a_run_killed_in_training_goes_on_to_the_bit(told: tuple[Path, dict[str, Any]], way: str) -> None:
    directory, runs = told
    curves = runs[way]
    assert len(curves["unbroken"]) == 13
    assert curves["killed"] == {step: loss for step, loss in curves["unbroken"].items() if int(step) < 8}
    assert curves["resumed"] == after(curves["unbroken"], 6)
    require_sound(directory / way / "one" / "store")


@pytest.mark.parametrize("way", WAYS)
def test_b4_a_run_killed_with_its_worker_during_a_save_goes_on_from_the_save_before(
    told: tuple[Path, dict[str, Any]], way: str
) -> None:
    directory, runs = told
    curves = runs[way]
    first = min(map(int, curves["resumed after that"]))
    assert first in {3, 6}  # the save at 6 was in the making: it may have been done
    assert curves["resumed after that"] == after(curves["unbroken"], first)
    require_sound(directory / way / "two" / "store")


@pytest.mark.parametrize("way", WAYS)
def test_b4_a_run_killed_before_any_save_begins_anew(told: tuple[Path, dict[str, Any]], way: str) -> None:
    curves = told[1][way]
    assert len(curves["killed before any"]) == 2
    assert curves["begun anew"] == curves["unbroken"]


@pytest.mark.parametrize("way", WAYS)
def test_b4_a_run_goes_on_from_an_old_checkpoint_on_another_branch(told: tuple[Path, dict[str, Any]], way: str) -> None:
    directory, runs = told
    assert runs[way]["branched"] == after(runs[way]["unbroken"], 9)
    with CheckpointManager(directory / way / "one" / "store", world_size=1) as mgr:
        assert [each.step for each in mgr.log("main") if each.step == 12]
        assert mgr.describe("other~1").snapshot.step in {9, 12}
        assert mgr.branches()["main"] != mgr.branches()["other"]


def test_b4_a_run_that_is_told_to_stop_saves_and_goes_on_to_the_bit(told: tuple[Path, dict[str, Any]]) -> None:
    curves = told[1]["lightning, store"]
    assert max(map(int, curves["stopped"])) == 7
    assert curves["taken up"] == after(curves["unbroken"], 8)
