"""Trainings of Trainer, Accelerate and PEFT that are killed and resumed go on as if they had never been, to the bit."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import NamedTuple

import pytest

from moonclip import CheckpointManager
from store.repository import Repository
from tests.killing import check_store
from tests.launching import ROOT

pytestmark = pytest.mark.slow

MICRO_BATCHES = {"trainer": 1, "plain trainer": 1, "accelerate": 2, "load_state": 2, "peft": 1}
"""Losses that a training tells of each step."""
AllTold = tuple[Path, dict[str, dict[str, dict[str, str]]]]
LIBRARIES = ["trainer", "accelerate", "peft"]


class Told(NamedTuple):
    """Where the runs of a training were, and their losses."""

    directory: Path
    curves: dict[str, dict[str, str]]

    def require_end_of_unbroken(self, name: str, losses_before: int) -> None:
        """A run gave all losses of the unbroken one but for so many."""
        expected = {step: loss for step, loss in self.curves["unbroken"].items() if int(step) > losses_before}
        assert self.curves[name] == expected

    def require_sound(self, where: str) -> None:
        with Repository.open(self.directory / where / "store") as repo:
            check_store(repo, [])


@pytest.fixture(scope="module")
def all_told(tmp_path_factory: pytest.TempPathFactory) -> AllTold:
    """All runs of all trainings, by one program that imports the libraries once."""
    directory = tmp_path_factory.mktemp("trainings")
    program = [sys.executable, "-W", "ignore", str(Path(__file__).with_name("training_trials.py")), str(directory)]
    settings = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ended = subprocess.run(program, env=settings, capture_output=True, text=True, check=False)
    assert ended.returncode == 0, ended.stderr
    return directory, json.loads(ended.stdout.splitlines()[-1])


@pytest.fixture
def told(all_told: AllTold, library: str) -> Told:
    directory, curves = all_told
    return Told(directory / library, curves[library])


@pytest.mark.parametrize("library", MICRO_BATCHES)
def test_b4_a_training_killed_between_saves_goes_on_to_the_bit(told: Told, library: str) -> None:
    each = MICRO_BATCHES[library]
    assert len(told.curves["unbroken"]) == 13 * each
    assert 7 * each < len(told.curves["killed"]) < 9 * each
    told.require_end_of_unbroken("resumed", 6 * each)
    told.require_sound("one")


@pytest.mark.parametrize("library", LIBRARIES)
def test_b4_a_training_killed_with_its_worker_in_a_save_goes_on_from_a_whole_one(told: Told, library: str) -> None:
    each = MICRO_BATCHES[library]
    first = min(map(int, told.curves["resumed after that"]))
    assert first in {3 * each + 1, 6 * each + 1}  # the save of step 6 was in the making: it may have been done
    told.require_end_of_unbroken("resumed after that", first - 1)
    told.require_sound("two")


@pytest.mark.parametrize("library", LIBRARIES)
def test_b4_a_training_killed_before_any_save_begins_anew(told: Told, library: str) -> None:
    assert len(told.curves["killed before any"]) < 3 * MICRO_BATCHES[library]
    assert told.curves["begun anew"] == told.curves["unbroken"]


@pytest.mark.parametrize("library", LIBRARIES)
def test_b4_two_trainings_go_on_from_one_commit_on_two_branches(told: Told, library: str) -> None:
    for name in ("branched", "branched again"):
        told.require_end_of_unbroken(name, 3 * MICRO_BATCHES[library])
    with CheckpointManager(told.directory / "one" / "store") as mgr:
        lines = {branch: [each.id for each in mgr.log(branch) if each.step == 3] for branch in ("other", "another")}
        assert lines["other"] == lines["another"]
        tips = mgr.branches()
        assert len({tips["other"], tips["another"]}) == 2


@pytest.mark.parametrize("library", ["trainer"])
def test_b4_a_training_without_files_writes_none(told: Told, library: str) -> None:
    outputs = [path for where in ("unbroken", "one", "two", "three") for path in (told.directory / where).glob("out*")]
    assert outputs
    assert [path for output in outputs for path in output.rglob("*") if path.is_file()] == []


@pytest.mark.parametrize("library", ["peft"])
def test_b4_commits_of_adapters_come_after_their_base_and_have_nothing_of_it(told: Told, library: str) -> None:
    with CheckpointManager(told.directory / "one" / "store") as mgr:
        base = mgr.tags()["base"]
        assert mgr.describe("main").snapshot.id == base
        *_, first, root = mgr.log("french")
        assert root.id == base
        assert first.parents == (base,)
        assert first.metadata["derived-from"] == base
        assert first.items == ("adapter", "files", "formal/adapter", "optimizer", "rng")
