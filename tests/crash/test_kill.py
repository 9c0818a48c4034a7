"""``kill -9`` at random moments of a saving loop: what was acknowledged is there, and the store is sound."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.indexing import REPOSITORY


def kill(kind: str, directory: Path, first_seed: int, trial_count: int) -> None:
    command = [sys.executable, "-m", "tests.killing", kind, str(directory), str(first_seed), str(trial_count)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=500)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(trial_count)]


def test_a3_a_few_kills(tmp_path: Path) -> None:
    kill("engine", tmp_path, 1000, 4)


@pytest.mark.slow
def test_a3_180_kills_of_an_engine_that_saves(tmp_path: Path) -> None:
    kill("engine", tmp_path, 0, 180)


def test_a3_a_few_kills_of_trainer_and_worker(tmp_path: Path) -> None:
    kill("background", tmp_path, 2000, 6)


@pytest.mark.slow
def test_a3_90_kills_of_trainer_and_worker(tmp_path: Path) -> None:
    kill("background", tmp_path, 3000, 90)


@pytest.mark.slow
def test_a3_20_kills_of_a_manager_that_saves(tmp_path: Path) -> None:
    kill("torch", tmp_path, 500, 20)
