"""The command line as a process: what it loads, pipes, exit codes, and what it must not run."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from store.format.values import Tagged
from store.repository import Repository
from tests.stores import History, commit, history, item

LOOKING_BACK = (
    ["--help"],
    ["log", "--graph"],
    ["log", "--json"],
    ["show"],
    ["show", "main", "settings"],
    ["show", "main", "optimizer::param_groups", "--json"],
    ["ls"],
    ["diff", "main~1", "main", "--stat"],
    ["diff", "main", "main"],
    ["branch"],
    ["tag"],
    ["reflog"],
    ["stats"],
    ["stats", "--family"],
    ["dedup", "--help"],
    ["fsck"],
)

_LOADED = """
import os, sys
import moonclip.cli
sys.argv[0] = "moonclip"
out, sys.stdout = sys.stdout, open(os.devnull, "w")
try:
    moonclip.cli.main()
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "numpy", "numba", "llvmlite", "rich", "safetensors", "boto3")
print([name for name in heavy if name in sys.modules], file=out)
"""

_PICKLE = b"cposix\nsystem\n(S'touch ran'\ntR."


@pytest.fixture(scope="module")
def past(tmp_path_factory: pytest.TempPathFactory) -> History:
    return history(tmp_path_factory.mktemp("process") / "checkpoints")


def moonclip(past: History, *arguments: str, **environment: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "moonclip", "-C", str(past.root), *arguments]
    root = Path(__file__).parents[2]
    variables = {**os.environ, "PYTHONPATH": str(root), **environment}
    return subprocess.run(command, capture_output=True, check=False, env=variables, cwd=past.root.parent)


@pytest.mark.parametrize("arguments", LOOKING_BACK, ids=" ".join)
def test_looking_back_loads_nothing_heavy(past: History, arguments: list[str]) -> None:
    command = [sys.executable, "-c", _LOADED, "-C", str(past.root), *arguments]
    finished = subprocess.run(command, capture_output=True, check=False, text=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "[]\n", "")


def test_exit_codes_and_streams(past: History) -> None:
    done, failed, usage = moonclip(past, "log", "--json"), moonclip(past, "log", "nothing"), moonclip(past, "nonsense")
    assert (done.returncode, done.stderr) == (0, b"")
    assert len(json.loads(done.stdout)) == 4
    assert (failed.returncode, failed.stdout) == (1, b"")
    assert failed.stderr == b"error: no branch, tag or commit 'nothing'\n"
    assert (usage.returncode, usage.stdout) == (2, b"")
    assert usage.stderr.startswith(b"Usage: moonclip ")


def test_a_reader_that_leaves_early_is_no_error(past: History) -> None:
    command = [sys.executable, "-m", "moonclip", "-C", str(past.root), "log", "--all"]
    read_end, write_end = os.pipe()
    os.close(read_end)
    finished = subprocess.run(command, stdout=write_end, stderr=subprocess.PIPE, check=False)
    os.close(write_end)
    assert finished.returncode == 1
    assert finished.stderr == b""


def test_a_disk_that_is_full_is_told_in_a_line(past: History) -> None:
    if not Path("/dev/full").exists():
        pytest.skip("no /dev/full")
    command = [sys.executable, "-m", "moonclip", "-C", str(past.root), "log"]
    with Path("/dev/full").open("wb") as full:
        finished = subprocess.run(command, stdout=full, stderr=subprocess.PIPE, check=False)
    assert finished.returncode == 1
    assert finished.stderr.startswith(b"error: ")
    assert b"Traceback" not in finished.stderr


def test_a_terminal_that_lacks_characters(past: History) -> None:
    result = moonclip(past, "show", "main", "naïve::\u30c1", PYTHONIOENCODING="latin-1")
    assert result.returncode == 1
    assert result.stderr == b"error: no tensor or value is named 'na\xefve::\\u30c1'; `moonclip ls` lists them\n"


def test_completion_scripts(past: History) -> None:
    for shell in ("zsh", "fish"):  # bash has to be there to be asked for its version
        script = moonclip(past, _MOONCLIP_COMPLETE=f"{shell}_source")
        assert (script.returncode, script.stderr) == (0, b"")
        assert b"_MOONCLIP_COMPLETE" in script.stdout


def test_a17_nothing_stored_is_run(tmp_path: Path) -> None:
    hostile = history(tmp_path / "checkpoints")
    evil = Tagged("pickle", ("posix.system", _PICKLE))
    with Repository.open(hostile.root) as repo:
        commit(repo, items=[item("x", {}, {"v": evil})], metadata={"m": evil})
    for arguments in (
        ["log"],
        ["log", "--json"],
        ["show"],
        ["show", "--json"],
        ["show", "HEAD", "x::v"],
        ["show", "HEAD", "x::v", "--json"],
        ["ls"],
        ["diff", "HEAD~1", "HEAD"],
        ["diff", "HEAD", "HEAD~1", "--json"],
        ["stats"],
        ["fsck", "--full"],
        ["reindex"],
    ):
        assert moonclip(hostile, *arguments).returncode == 0
    assert b"pickle(('posix.system', " in moonclip(hostile, "show", "HEAD", "x::v").stdout
    assert not (tmp_path / "ran").exists()
