"""Commands that speak to remotes, as processes: what they load, a terminal, and Ctrl-C."""

import fcntl
import os
import pty
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.ids import short
from store.repository import Repository
from tests.stores import History, commit

Out = Callable[..., str]

_MAIN = """
import signal, sys
signal.signal(signal.SIGINT, signal.default_int_handler)
from moonclip.cli import main
sys.argv[0] = "moonclip"
main()
"""
"""Ctrl-C as it is in a terminal: a shell that runs tests in the background has it ignored."""

_LOADED = """
import os, sys
from moonclip.cli import main
sys.argv[0] = "moonclip"
out, sys.stdout = sys.stdout, open(os.devnull, "w")
try:
    main()
except SystemExit as end:
    assert not end.code, end.code
heavy = ("torch", "numba", "llvmlite", "rich", "boto3", "botocore", "store.remotes")
print([name for name in heavy if name in sys.modules], file=out)
"""


@pytest.fixture
def there(past: History, output: Out, tmp_path: Path) -> Path:
    """A remote that has the branch main."""
    directory = tmp_path / "there"
    directory.mkdir()
    output("remote", "add", "origin", directory)
    output("push")
    return directory


def process(program: str, past: History, *arguments: str) -> list[str]:
    return [sys.executable, "-c", program, "-C", str(past.root), *arguments]


# --- what is loaded -------------------------------------------------------------------------------------------------


@pytest.mark.parametrize(
    "arguments",
    [["--help"], ["push", "--help"], ["clone", "--help"], ["log", "origin/main"], ["branch", "-a"]],
    ids=" ".join,
)
def test_who_does_not_speak_to_a_remote_loads_nothing_for_it(past: History, there: Path, arguments: list[str]) -> None:
    finished = subprocess.run(process(_LOADED, past, *arguments), capture_output=True, check=False, text=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "[]\n", "")


@pytest.mark.parametrize(
    "arguments", [["remote", "-v"], ["remote", "show"], ["ls-remote"], ["push"], ["fetch"]], ids=" ".join
)
def test_directories_need_no_boto3(past: History, there: Path, arguments: list[str]) -> None:
    finished = subprocess.run(process(_LOADED, past, *arguments), capture_output=True, check=False, text=True)
    assert (finished.returncode, finished.stdout, finished.stderr) == (0, "['store.remotes']\n", "")


# --- a terminal -----------------------------------------------------------------------------------------------------


def shown(command: list[str]) -> str:
    """What a command shows on a terminal that is its stderr."""
    ours, theirs = pty.openpty()
    environment = {**os.environ, "TERM": "xterm", "COLUMNS": "120"}
    with subprocess.Popen(command, stdout=subprocess.DEVNULL, stderr=theirs, env=environment):
        os.close(theirs)
        text = b"".join(_until_closed(ours))
    os.close(ours)
    return text.decode()


def _until_closed(descriptor: int) -> Iterator[bytes]:
    while True:
        try:
            block = os.read(descriptor, 4096)
        except OSError:  # Linux says so when the other side is gone
            return
        if not block:
            return
        yield block


def test_a_bar_for_who_watches(past: History, there: Path) -> None:
    with Repository.open(past.root) as repo:
        commit(repo, step=400)
    assert "uploading" in shown(process(_MAIN, past, "push"))


# --- Ctrl-C ---------------------------------------------------------------------------------------------------------


def is_waited_for(path: Path) -> bool:
    """Whether a process waits for the lock that another holds on a file."""
    inode = f":{path.stat().st_ino} "
    return any(inode in line and "->" in line for line in Path("/proc/locks").read_text().splitlines())


def interrupted(lock: Path, command: list[str]) -> tuple[int, str, str]:
    """Ctrl-C once a command waits for a lock: exit code, and what it said."""
    with lock.open("ab") as held:
        fcntl.flock(held, fcntl.LOCK_EX)
        with subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True) as running:
            while not is_waited_for(lock):
                assert running.poll() is None, running.communicate()
            running.send_signal(signal.SIGINT)
            stdout, stderr = running.communicate()
    return running.returncode, stdout, stderr


def test_ctrl_c_in_a_push(past: History, there: Path, output: Out) -> None:
    with Repository.open(past.root) as repo:
        new = commit(repo, step=400)
    said = "\ninterrupted; nothing is lost: `moonclip push` goes on from there\n"
    assert interrupted(there / ".lock", process(_MAIN, past, "push")) == (130, "", said)
    assert output("push").startswith(f"main -> origin/main  {short(past.main[3])}..{short(new)}")
    assert output("fsck").startswith("clean: ")


def test_ctrl_c_in_a_fetch(past: History, there: Path, output: Out, tmp_path: Path) -> None:
    output("clone", there, tmp_path / "other")
    with Repository.open(past.root) as repo:
        new = commit(repo, step=400)
    output("push")
    said = "\ninterrupted; nothing is lost: `moonclip fetch` goes on from there\n"
    command = [sys.executable, "-c", _MAIN, "-C", str(tmp_path / "other"), "fetch"]
    assert interrupted(tmp_path / "other/refs.lock", command) == (130, "", said)
    assert output("-C", tmp_path / "other", "fsck", "--full").startswith("clean: ")
    moved = f"main -> origin/main  {short(past.main[3])}..{short(new)}\n"
    assert output("-C", tmp_path / "other", "fetch") == moved  # all that it takes had come before
