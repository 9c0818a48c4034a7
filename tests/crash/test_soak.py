"""Everybody at work on one store at once, for a few seconds; ``make soak`` does so for five minutes."""

import subprocess
import sys

import pytest


@pytest.mark.slow
def test_d3_nobody_sees_a_fault() -> None:
    command = [sys.executable, "-m", "tools.crash.soak", "--saves", "6"]
    done = subprocess.run(command, check=False, capture_output=True, text=True, timeout=300)
    assert done.returncode == 0, done.stderr
    assert "\n0 faults\n" in done.stdout
