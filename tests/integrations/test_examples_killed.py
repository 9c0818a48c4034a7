"""Examples that train go on, killed and run again, as if they had never been, to the last bit."""

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

RANKS = {"plain_pytorch": 1, "dcp_trainer": 2}
Told = tuple[Path, dict[str, Any]]


@pytest.fixture(scope="module", params=RANKS)
def told(tmp_path_factory: pytest.TempPathFactory, request: pytest.FixtureRequest) -> Told:
    """Where all runs of an example were, and their losses by step."""
    directory = tmp_path_factory.mktemp(request.param)
    script = str(Path(__file__).with_name("example_trials.py"))
    program = [sys.executable, "-W", "ignore", script, str(directory), request.param, str(RANKS[request.param])]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    curves = json.loads(ended.stdout.splitlines()[-1])
    assert len(curves["unbroken"]) == 30
    return directory, curves


def require_end_of_unbroken(told: Told, name: str, starts: set[int]) -> None:
    """A run gave the losses of the unbroken one, from one of some steps on."""
    curve, unbroken = told[1][name], told[1]["unbroken"]
    start = min(map(int, curve))
    assert start in starts
    assert curve == {step: loss for step, loss in unbroken.items() if int(step) >= start}


def require_sound(root: Path) -> None:
    with Repository.open(root) as repo:
        check_store(repo, [])


def test_b4_killed_in_training_it_goes_on_to_the_bit(told: Told) -> None:
    require_end_of_unbroken(told, "resumed", {15, 20})  # saved every five steps; the last save was under way
    assert len(told[1]["killed"]) == 22 and told[1]["killed"].items() <= told[1]["unbroken"].items()
    require_sound(told[0] / "one" / "store")


def test_b4_killed_with_what_saves_it_goes_on_from_a_whole_save(told: Told) -> None:
    require_end_of_unbroken(told, "resumed after that", {10, 15})
    require_sound(told[0] / "two" / "store")


def test_b4_killed_before_any_save_it_begins_anew(told: Told) -> None:
    require_end_of_unbroken(told, "begun anew", {0})


def test_b4_it_goes_on_from_an_old_state_on_another_branch(told: Told) -> None:
    require_end_of_unbroken(told, "branched", {25})
    with CheckpointManager(told[0] / "one" / "store", world_size=1) as mgr:
        steps = {name: mgr.describe(name).snapshot.step for name in mgr.branches()}
        assert steps == {"main": 29, "other": 29}
        assert mgr.branches()["main"] != mgr.branches()["other"]


def test_b4_a_run_that_is_told_to_stop_goes_on_to_the_bit(told: Told) -> None:
    if "stopped" not in told[1]:
        return  # the trainer over DCP does not heed signals
    assert max(map(int, told[1]["stopped"])) == 11
    require_end_of_unbroken(told, "resumed after the stop", {12})
