"""Bar 6: any rank of a job is killed at any moment: nobody waits, nothing committed is lost, and it starts again."""

import subprocess
import sys
from pathlib import Path

import pytest

from tests.indexing import REPOSITORY

TRIALS = 20


@pytest.mark.slow
def test_20_kills_of_a_rank_at_random_moments(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "tests.jobkilling", str(tmp_path), "1", str(TRIALS)]
    done = subprocess.run(command, cwd=REPOSITORY, capture_output=True, text=True, check=False, timeout=540)
    assert done.returncode == 0, done.stderr
    assert done.stdout.split() == [str(TRIALS)]
