"""Ends of runs that push: what a script's end brings, a dead machine's run on another one, and what is told."""

import os
import signal
import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from store.repository import Repository
from tests import preloaded
from tests.pushing import refs_of_remote_held, remote_tip
from tests.workers import ends, only_worker

SCRIPT = """
import os, sys, torch
from moonclip import CheckpointManager, PushFailed
root, remote = sys.argv[1:3]
mgr = CheckpointManager(root, remote=remote, push_every=3)
x = torch.arange(100_000.0)
"""

TRAINING = """
import os, sys, torch
from moonclip import CheckpointManager
from tools.training import Shape, Training

root, remote, save_until, end = sys.argv[1], sys.argv[2], int(sys.argv[3]), int(sys.argv[4])
run = Training(seed=int(sys.argv[5]), shape=Shape(width=20, layer_count=2, context=16, batch=2))
mgr = CheckpointManager(root, remote=remote, push_every=2)
items = {"model": run.model, "optimizer": run.optimizer, "scheduler": run.scheduler}
start = mgr.resume(rng=True, **items)
print("start", start, flush=True)
for step in range(start, end):
    run.step()
    if step < save_until:
        mgr.save(step=step, rng=True, **items)
        mgr.flush()
print("done", flush=True)
if save_until:
    sys.stdin.readline()
torch.save([*(each.state_dict() for each in items.values()), torch.get_rng_state()], sys.argv[6])
"""


@pytest.fixture
def remote(tmp_path: Path) -> Path:
    path = tmp_path / "remote"
    path.mkdir()
    return path


def run_script(root: Path, remote: Path, script: str) -> subprocess.CompletedProcess[str]:
    code = SCRIPT + textwrap.dedent(script)
    return preloaded.run("-W", "error", "-c", code, str(root), str(remote))


def step_there(root: Path) -> int | None:
    tip = remote_tip(root)
    with Repository.open(root, thread_count=1) as repo:
        return None if tip is None else repo.commit(tip).step


@pytest.mark.parametrize(("ending", "code"), [("", 0), ("sys.exit(7)", 7), ("raise ValueError('training broke')", 1)])
def test_what_was_saved_at_the_very_end_is_pushed(tmp_path: Path, remote: Path, ending: str, code: int) -> None:
    done = run_script(tmp_path / "store", remote, f"mgr.save(step=9, x=x)\n{ending}")
    assert done.returncode == code, done.stderr
    assert step_there(tmp_path / "store") == 9


@pytest.mark.parametrize("in_background", [True, False])
def test_what_could_not_be_pushed_is_told_and_so_does_the_exit_code(
    tmp_path: Path, remote: Path, in_background: bool
) -> None:
    script = f"""
    if not {in_background}:
        mgr.close()
        mgr = CheckpointManager(root, remote=remote, push_every=3, async_save=False)
    for step in range(4):
        mgr.save(step=step, x=x + step)
        mgr.flush()
    os.rename(remote, remote + "-away")
    mgr.save(step=4, x=x)
    """
    done = run_script(tmp_path / "store", remote, script)
    assert done.returncode == 1
    assert "moonclip: a push to remote 'origin' failed: " in done.stderr
    assert "is at step 4 here and, as last seen, at step 2 there" in done.stderr
    with CheckpointManager(tmp_path / "store") as mgr:
        assert mgr.step == 4


def test_a_failure_that_was_told_does_not_spoil_the_exit_code_if_the_end_makes_it_good(
    tmp_path: Path, remote: Path
) -> None:
    script = """
    os.rename(remote, remote + "-away")
    for step in range(3):
        mgr.save(step=step, x=x + step)
    try:
        mgr.flush()
    except PushFailed as error:
        print(type(error.__cause__).__name__)
    os.rename(remote + "-away", remote)
    """
    done = run_script(tmp_path / "store", remote, script)
    assert (done.returncode, done.stdout) == (0, "RemoteMissing\n"), done.stderr
    assert step_there(tmp_path / "store") == 2


def test_a_save_of_an_exit_handler_that_runs_after_the_drain_is_pushed(tmp_path: Path, remote: Path) -> None:
    script = """
    import atexit
    mgr.close()
    atexit.register(lambda: late.save(step=9, x=x))
    late = CheckpointManager(root, remote=remote, push_every=3)
    late.save(step=8, x=x)
    """
    done = run_script(tmp_path / "store", remote, script)
    assert done.returncode == 0, done.stderr
    assert step_there(tmp_path / "store") == 9


def test_a_killed_trainer_leaves_its_last_saves_on_the_remote(tmp_path: Path, remote: Path) -> None:
    script = (
        SCRIPT + "for step in range(5):\n    mgr.save(step=step, x=x + step).result()\nprint()\nsys.stdin.readline()"
    )
    with preloaded.start("-c", script, str(tmp_path / "store"), str(remote)) as process:
        with refs_of_remote_held(remote):
            assert process.stdout.readline() == "\n"
            worker = only_worker(process.pid)
            process.send_signal(signal.SIGKILL)
            process.wait()
        assert ends(worker)
    assert step_there(tmp_path / "store") == 4


@pytest.mark.slow
def test_bar_5_a_run_goes_on_bit_by_bit_on_a_machine_that_has_only_the_remote(tmp_path: Path, remote: Path) -> None:
    def training(root: str, save_until: int, end: int, seed: int) -> preloaded.Program:
        arguments = [
            str(tmp_path / root),
            str(remote),
            str(save_until),
            str(end),
            str(seed),
            str(tmp_path / f"{root}.pt"),
        ]
        return preloaded.start("-c", TRAINING, *arguments)

    with training("first", 6, 6, 0) as first:
        assert first.stdout.readline() == "start 0\n"
        assert first.stdout.readline() == "done\n"
        worker = only_worker(first.pid)
        first.send_signal(signal.SIGKILL)
        os.kill(worker, signal.SIGKILL)  # the machine is gone
        first.wait()
        assert ends(worker)
    (tmp_path / "first").rename(tmp_path / "gone")
    with training("second", 0, 10, 1) as second:
        assert second.communicate()[0] == "start 6\ndone\n"
    remote.rename(tmp_path / "kept")
    remote.mkdir()
    with training("unbroken", 0, 10, 0) as unbroken:
        assert unbroken.communicate()[0] == "start 0\ndone\n"
    resumed, expected = (torch.load(tmp_path / f"{name}.pt") for name in ("second", "unbroken"))
    assert _equal(resumed, expected)


def _equal(one: object, other: object) -> bool:
    if isinstance(one, torch.Tensor):
        return isinstance(other, torch.Tensor) and torch.equal(one, other)
    if isinstance(one, dict):
        return isinstance(other, dict) and one.keys() == other.keys() and all(_equal(one[k], other[k]) for k in one)
    if isinstance(one, list | tuple):
        return isinstance(other, list | tuple) and len(one) == len(other) and all(map(_equal, one, other))
    return one == other
