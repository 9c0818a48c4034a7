"""Puts servers for tests under `.cache/s3`: whole or not at all, once for all processes, and never into the system."""

import fcntl
import hashlib
import os
import platform
import shutil
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

CACHE = Path(__file__).parents[2] / ".cache" / "s3"
LOCKS = Path(__file__).parent / "locks"

_COMPLETE = "complete"
"""Written last. It holds the recipe's digest, so that a changed recipe is followed anew."""

_NETWORK_TRIES = "3"


class Unavailable(Exception):
    """A server cannot be had on this machine; the message says what is lacking."""


class Failed(Exception):
    """A program of a server did not do what it is there for; the message has its last words."""


@contextmanager
def locked(path: Path, *, how: int = fcntl.LOCK_EX) -> Iterator[None]:
    """Hold a file's lock, waiting for it.

    Raises:
        OSError: the file cannot be made or locked.
    """
    path.parent.mkdir(parents=True, exist_ok=True)
    descriptor = os.open(path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
    try:
        fcntl.flock(descriptor, how)
        yield
    finally:
        os.close(descriptor)


def installed(name: str, recipe: str, build: Callable[[Path], None]) -> Path:
    """The folder of an installation that is complete: made now, unless it was there.

    Args:
        name: of the folder in the cache.
        recipe: all that decides what is built; another one means building again.
        build: fills the folder, which is there and empty.

    Raises:
        Unavailable: `build` failed, or says that this machine lacks something.
    """
    folder = CACHE / name
    digest = hashlib.sha256(recipe.encode()).hexdigest()
    with locked(CACHE / f"{name}.lock"):
        marker = folder / _COMPLETE
        if not (marker.exists() and marker.read_text(encoding="utf-8") == digest):
            shutil.rmtree(folder, ignore_errors=True)
            folder.mkdir(parents=True)
            try:
                build(folder)
            except Failed as failure:
                raise Unavailable(str(failure)) from failure
            marker.write_text(digest, encoding="utf-8")
    return folder


def installed_by_pip(name: str) -> Path:
    """The `bin` folder of an environment that holds what `locks/<name>.txt` lists.

    Raises:
        Unavailable: pip did not get it.
    """
    lock = LOCKS / f"{name}.txt"

    def build(folder: Path) -> None:
        # Without a pip of its own: ours installs into it, and that saves half of the time.
        run([sys.executable, "-m", "venv", "--without-pip", str(folder)])
        pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "--quiet", "--retries", _NETWORK_TRIES]
        python = str(folder / "bin" / "python")
        run([*pip, "--python", python, "install", "--no-deps", "--no-compile", "--requirement", str(lock)])

    recipe = f"{platform.python_version()} {platform.machine()}\n{lock.read_text(encoding='utf-8')}"
    return installed(name, recipe, build) / "bin"


def run(command: list[str], *, folder: Path | None = None) -> str:
    """What a command prints.

    Raises:
        Failed: there is no such command, or it did not succeed; says how.
    """
    try:
        done = subprocess.run(command, cwd=folder, capture_output=True, text=True, check=False)
    except FileNotFoundError as error:
        raise Failed(f"{command[0]} is not here: install it, or leave this server out") from error
    if done.returncode:
        last = (done.stderr.strip() or done.stdout.strip() or "no message").splitlines()[-1]
        raise Failed(f"`{' '.join(command[:4])} ...` ended with {done.returncode}: {last}")
    return done.stdout
