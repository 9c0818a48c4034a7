"""Programs of every shape save through a worker: it needs nothing of them, and finds nothing of theirs."""

import os
import subprocess
import sys
import textwrap
from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from tests.indexing import REPOSITORY

SAVING = """
import sys, torch
from moonclip import CheckpointManager
from tests.workers import workers

with CheckpointManager(sys.argv[-1]) as mgr:
    assert len(workers()) == 1
    for step in range(3):
        mgr.save(step=step, x=torch.arange(100_000) + step)
    mgr.flush()
    assert len(workers()) == 1
assert workers() == []
"""


def run(root: Path, *options: str, script: str | None = None, **process: object) -> None:
    """Run a program that saves; all is there, and nothing was said."""
    command = [sys.executable, "-W", "error", *options, str(root)]
    process = {"cwd": REPOSITORY, "input": script, **process}
    done = subprocess.run(command, capture_output=True, text=True, timeout=120, check=False, **process)  # type: ignore[call-overload]
    assert (done.returncode, done.stderr) == (0, "")
    with CheckpointManager(root, async_save=False) as mgr:
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 1, 2]
        assert torch.equal(mgr.load()["x"], torch.arange(100_000) + 2)


def test_a_script_from_stdin(tmp_path: Path) -> None:
    run(tmp_path / "store", "-", script=SAVING)


def test_a_script_without_a_main_guard_whose_other_processes_are_spawned(tmp_path: Path) -> None:
    script = tmp_path / "train.py"
    script.write_text(f"import multiprocessing\nmultiprocessing.set_start_method('spawn')\n{SAVING}")
    run(tmp_path / "store", str(script), env={**os.environ, "PYTHONPATH": str(REPOSITORY)})


def test_a_notebook_whose_main_module_has_no_file(tmp_path: Path) -> None:
    cells = f"import __main__; del __main__.__spec__; exec({SAVING!r}, vars(__main__))"
    run(tmp_path / "store", "-c", cells)


def test_a_directory_that_holds_modules_of_our_names(tmp_path: Path) -> None:
    for name in ("store", "numpy", "logging", "cbor2"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    moved = f"import moonclip, torch, os, tests.workers, store.worker.client; os.chdir({str(tmp_path)!r})\n{SAVING}"
    run(tmp_path / "store_", "-c", moved)


def test_a_path_that_leads_to_other_modules_since(tmp_path: Path) -> None:
    for name in ("store", "numpy", "lmdb", "cbor2"):
        (tmp_path / f"{name}.py").write_text("raise SystemExit('not this one')")
    moved = f"import os; os.environ['PYTHONPATH'] = {str(tmp_path)!r}\n{SAVING}"
    run(tmp_path / "store_", "-c", moved)


def test_a_module_beside_ours_that_has_a_name_of_the_standard_librarys(tmp_path: Path) -> None:
    """Backports of old, as ``dataclasses`` was one, lie beside us, and nobody else ever imports them."""
    packages = tmp_path / "packages"
    packages.mkdir()
    for name in ("store", "moonclip", "tests"):
        (packages / name).symlink_to(REPOSITORY / name)
    for name in ("dataclasses", "socket", "logging"):
        (packages / f"{name}.py").write_text("raise SystemExit('not this one')")
    first = f"import sys; sys.path = [path for path in sys.path if path not in ('', {str(REPOSITORY)!r})]"
    last = f"sys.path.append({str(packages)!r}); import store; assert store.__file__.startswith({str(packages)!r})"
    run(tmp_path / "store", "-c", f"{first}\n{last}\n{SAVING}", cwd="/")


@pytest.mark.slow
def test_b27_twenty_thousand_tensors_with_few_descriptors(tmp_path: Path) -> None:
    script = """
    import resource, sys, torch
    resource.setrlimit(resource.RLIMIT_NOFILE, (256, 256))
    from moonclip import CheckpointManager
    from tests.workers import workers

    tensors = {f"layers.{n}.weight": torch.full((7,), float(n)) for n in range(20_000)}
    with CheckpointManager(sys.argv[-1]) as mgr:
        for step in range(3):
            mgr.save(step=step, many=tensors, x=torch.arange(100_000) + step)
        mgr.flush()
        assert len(workers()) == 1
        assert torch.equal(mgr.load()["many"]["layers.19999.weight"], tensors["layers.19999.weight"])
    """
    run(tmp_path / "store", "-", script=textwrap.dedent(script))


@pytest.mark.parametrize("closing", ["sys.stderr.close()", "sys.stderr = None"])
def test_a_profile_that_nobody_can_read_costs_no_save(tmp_path: Path, closing: str) -> None:
    program = f"import sys; import tests.workers\n{closing}\n{SAVING}"
    environment = {**os.environ, "MOONCLIP_PROFILE": "1"}
    command = [sys.executable, "-c", program, str(tmp_path / "store")]
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, text=True, capture_output=True, check=True, timeout=120
    )
    assert (done.stdout, done.stderr) == ("", "")


def test_a_profile_says_where_the_time_went(tmp_path: Path) -> None:
    command = [sys.executable, "-", str(tmp_path / "store")]
    environment = {**os.environ, "MOONCLIP_PROFILE": "1"}
    done = subprocess.run(
        command, cwd=REPOSITORY, env=environment, input=SAVING, text=True, capture_output=True, check=True, timeout=120
    )
    for phase in ("wait", "flatten", "capture", "written", "encode", "sync"):
        assert done.stderr.count(f"  {phase} ") == 3
    assert "the save of step 2" in done.stderr
    with CheckpointManager(tmp_path / "other") as mgr:
        future = mgr.save(x=torch.ones(1000))
        future.result()
        assert {"wait", "flatten", "capture", "written", "encode"} <= future.profile.keys()
