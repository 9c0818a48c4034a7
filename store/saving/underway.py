"""Saves under way on a branch, for whoever is about to read where it is, to go on from there.

A trainer that is killed leaves a worker that finishes its save. A run that is restarted at once would read the branch
just before that, and its own first save would be refused: so it waits. A save holds a file of its branch locked
together with others that do; the kernel drops the lock when the saver dies.
"""

import time
from pathlib import Path

from ..disk.files import FileLock, Files
from ..errors import Busy
from ..limits import UNDERWAY_PAUSE_SECONDS, UNDERWAY_WAIT_SECONDS
from ..naming.refnames import branch_name


def saving(root: Path, files: Files, branch: str) -> FileLock:
    """Say that a save on ``branch`` (short name) is under way, until the lock is closed.

    Raises:
        Incompatible: no legal name.
        OSError: the file cannot be made.
    """
    path = _path(root, branch)
    files.make_directory(path.parent)
    return files.lock_shared(path)


def await_saves(root: Path, files: Files, branch: str) -> None:
    """Wait until no save on ``branch`` is under way; not for ever, since one that hangs is no reason to hang as well.

    Raises:
        Incompatible: no legal name.
        OSError: the file is there, and cannot be opened.
    """
    end = time.monotonic() + UNDERWAY_WAIT_SECONDS
    while True:
        try:
            files.lock_exclusive(_path(root, branch), blocking=False, create=False).close()
        except FileNotFoundError:
            return  # nobody has saved there yet
        except Busy:
            if time.monotonic() > end:
                return
            time.sleep(UNDERWAY_PAUSE_SECONDS)
        else:
            return


def _path(root: Path, branch: str) -> Path:
    return root / "writers" / branch_name(branch).replace("/", "~")
