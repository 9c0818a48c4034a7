"""Descriptors that a program closes although it never opened them, and what gets their numbers next."""

import subprocess
import sys
from pathlib import Path

from moonclip import CheckpointManager
from tests.indexing import REPOSITORY

OPENED = """
import os, sys, torch
from moonclip import CheckpointManager, SaveFailed
from tests.workers import becomes_true, ends, only_worker, stopped, workers

def told(function):
    try:
        function()
    except SaveFailed as error:
        return str(error)

def close_all():
    os.closerange(3, 4096)
    return [open(f"{sys.argv[2]}/{number}", "w+b") for number in range(40)]  # they get the numbers

x = torch.arange(100_000)
mgr = CheckpointManager(sys.argv[1])
mgr.save(step=0, x=x).result()
worker = only_worker()
"""


def run(tmp_path: Path, script: str, *, prefix: str = "") -> None:
    (tmp_path / "files").mkdir()
    command = [sys.executable, "-c", script, str(tmp_path / "store"), str(tmp_path / "files")]
    shell = ["sh", "-c", f'exec "$@" {prefix}', "sh"]
    done = subprocess.run([*shell, *command], cwd=REPOSITORY, capture_output=True, text=True, timeout=120, check=False)
    assert done.returncode == 0, done.stderr


def steps(root: Path) -> list[int | None]:
    with CheckpointManager(root, async_save=False) as mgr:
        assert mgr.fsck(full=True).clean
        return [snapshot.step for snapshot in mgr.list_snapshots()]


def test_a_program_that_closes_all_descriptors_goes_on_saving(tmp_path: Path) -> None:
    script = """
files = close_all()
for step in (1, 2):
    mgr.save(step=step, x=x + step).result()
assert torch.equal(mgr.load()["x"], x + 2)
assert ends(worker)
assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 40
mgr.close()
assert workers() == []
"""
    run(tmp_path, OPENED + script)
    assert steps(tmp_path / "store") == [0, 1, 2]


def test_a_save_that_is_under_way_meanwhile_is_made_and_its_caller_is_told(tmp_path: Path) -> None:
    script = """
with stopped(worker):
    future = mgr.save(step=1, x=x + 1)
    assert becomes_true(lambda: len(mgr._recorder._client._worker._arenas) == 2)
    files = close_all()
assert "os.closerange" in told(future.result)
assert mgr.step == 1  # it was handed over, so it was made
assert [os.fstat(file.fileno()).st_size for file in files] == [0] * 40
os._exit(0)
"""
    run(tmp_path, OPENED + script)
    assert steps(tmp_path / "store") == [0, 1]


def test_a_program_without_standard_streams_keeps_its_store_out_of_their_numbers(tmp_path: Path) -> None:
    script = """
for number in range(3):
    assert os.readlink(f"/proc/self/fd/{number}") == "/dev/null"
    os.write(number, b"printed")
    os.close(number)
os.kill(worker, 9)
assert ends(worker)
mgr.save(step=1, x=x + 1)
mgr.save(step=2, x=x + 2)
mgr.flush()
assert len(workers()) == 1
mgr.close()
"""
    run(tmp_path, OPENED + script, prefix="0<&- 1>&- 2>&-")
    assert steps(tmp_path / "store") == [0, 1, 2]
