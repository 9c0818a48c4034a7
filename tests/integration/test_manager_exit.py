"""The end of the script: what was queued is written, or its loss is told."""

import subprocess
import textwrap
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from tests import preloaded

PRELUDE = """
import os, resource, sys, torch
from moonclip import CheckpointManager
from tests.workers import await_save, refs_held, workers

root = sys.argv[1]
mgr = CheckpointManager(root)
x = torch.full((2_000_000,), 5.0) + torch.arange(2_000_000)

def no_large_file():
    for pid in (os.getpid(), *workers()):
        resource.prlimit(pid, resource.RLIMIT_FSIZE, (1 << 20, resource.RLIM_INFINITY))
"""


def run(root: Path, script: str) -> subprocess.CompletedProcess[str]:
    code = PRELUDE + textwrap.dedent(script)
    return preloaded.run("-W", "error", "-c", code, str(root))


def require_step(root: Path, step: int) -> None:
    with CheckpointManager(root) as mgr:
        assert mgr.step == step
        assert torch.equal(mgr.load()["x"], torch.full((2_000_000,), 5.0) + torch.arange(2_000_000))
        assert mgr.fsck().clean


@pytest.mark.parametrize(
    ("ending", "code"),
    [
        ("", 0),
        ("sys.exit(7)", 7),
        ("raise ValueError('training broke')", 1),
        ("import threading; threading.Thread(target=lambda: mgr.save(step=9, x=x)).start()", 0),
    ],
)
def test_b10_a_save_queued_at_the_very_end_is_written(tmp_path: Path, ending: str, code: int) -> None:
    done = run(tmp_path / "store", f"mgr.save(step=9, x=x)\n{ending}")
    assert done.returncode == code, done.stderr
    require_step(tmp_path / "store", 9)


def test_b10_so_it_is_inside_a_function_that_keeps_no_reference(tmp_path: Path) -> None:
    script = """
    def main():
        CheckpointManager(root, branch="other").save(step=1, x=x)
        mgr.save(step=9, x=x)
    main()
    """
    done = run(tmp_path / "store", script)
    assert (done.returncode, done.stderr) == (0, "")
    require_step(tmp_path / "store", 9)
    with CheckpointManager(tmp_path / "store", branch="other") as mgr:
        assert mgr.step == 1


@pytest.mark.parametrize("ending", ["", "raise ValueError('training broke')", "del mgr"])
def test_b10_a_save_that_is_lost_is_told_and_so_does_the_exit_code(tmp_path: Path, ending: str) -> None:
    script = f"""
mgr.save(step=7, x=x).result()
mgr.save(step=8, x=x).result()  # both arenas are made, which are files as well
print("buffered, and not to be lost", end="")
no_large_file()
mgr.save(step=9, x=torch.randn(2_000_000))
{ending}
"""
    done = run(tmp_path / "store", script)
    assert done.returncode == 1
    assert "moonclip: the save of step 9 failed: " in done.stderr
    assert "not committed" in done.stderr
    assert done.stdout == "buffered, and not to be lost"
    require_step(tmp_path / "store", 8)


def test_b10_so_it_is_where_there_is_no_stderr_to_tell_it(tmp_path: Path) -> None:
    script = """
    mgr.save(step=7, x=x).result()
    mgr.save(step=8, x=x).result()
    no_large_file()
    mgr.save(step=9, x=torch.randn(2_000_000))
    sys.stdout = sys.stderr = None
    """
    assert run(tmp_path / "store", script).returncode == 1
    require_step(tmp_path / "store", 8)


def test_b10_a_failure_that_was_told_does_not_spoil_the_exit_code(tmp_path: Path) -> None:
    script = """
    mgr.save(step=7, x=x).result()
    no_large_file()
    mgr.save(step=9, x=torch.randn(2_000_000))
    try:
        mgr.flush()
    except Exception as error:
        print(type(error).__name__)
    """
    done = run(tmp_path / "store", script)
    assert (done.returncode, done.stdout) == (0, "SaveFailed\n"), done.stderr


def test_b10_a_forked_child_that_exits_leaves_the_save_to_its_parent(tmp_path: Path) -> None:
    script = """
    future = mgr.save(step=9, x=x)
    if os.fork() == 0:
        sys.exit(0)
    _, status = os.wait()
    sys.exit(os.waitstatus_to_exitcode(status))
    """
    done = run(tmp_path / "store", script)
    assert (done.returncode, done.stderr) == (0, "")
    require_step(tmp_path / "store", 9)


def test_b10_a_save_of_an_exit_handler_that_runs_after_the_drain_is_written(tmp_path: Path) -> None:
    script = """
    import atexit
    mgr.close()
    atexit.register(lambda: late.save(step=9, x=x))  # before the manager's own handler: runs after it
    late = CheckpointManager(root)
    """
    done = run(tmp_path / "store", script)
    assert (done.returncode, done.stderr) == (0, "")
    require_step(tmp_path / "store", 9)


def test_b10_what_a_callback_saves_elsewhere_at_the_very_end_is_drained(tmp_path: Path) -> None:
    script = """
    import threading, traceback
    from pathlib import Path
    main = threading.get_ident()
    def on_done(_):
        while "drain" not in [at.name for at in traceback.extract_stack(sys._current_frames()[main])]: pass
        first, second = (CheckpointManager(root, branch="other") for _ in range(2))
        first.save(step=8, x=x).result()
        second.save(step=9, x=x)  # refused: the branch has moved
    with refs_held(Path(root)):  # else it may be done before, and the callback runs here
        mgr.save(step=1, x=x).add_done_callback(on_done)
    """
    done = run(tmp_path / "store", script)
    assert done.returncode == 1
    assert "step 9" in done.stderr and "The commit is kept as branch 'other+" in done.stderr
    assert "not committed" not in done.stderr


def test_b10_a_late_save_that_is_lost_is_told(tmp_path: Path) -> None:
    script = """
    import atexit
    mgr.close()
    atexit.register(lambda: (no_large_file(), late.save(step=9, x=torch.randn(2_000_000))))
    late = CheckpointManager(root)
    late.save(step=7, x=x).result()
    late.save(step=8, x=x).result()
    """
    done = run(tmp_path / "store", script)
    assert done.returncode == 1
    assert "step 9" in done.stderr and "not committed" in done.stderr


@pytest.mark.slow
def test_b10_the_interpreter_never_aborts_at_the_end(tmp_path: Path) -> None:
    """A saving thread that still freed tensors while the interpreter went down aborted one run in eight."""
    codes = [run(tmp_path / f"store{number}", "mgr.save(step=1, y=torch.ones(3))").returncode for number in range(15)]
    assert codes == [0] * 15
