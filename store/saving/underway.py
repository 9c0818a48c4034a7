"""Saves under way on a branch, for whoever is about to read where it is, to go on from there.

A trainer that is killed leaves a worker that finishes its save. A run that is restarted at once would read the branch
just before that, and its own first save would be refused: so it waits. A save holds a file of its branch locked
together with others that do; the kernel drops the lock when the saver dies. A trainer takes the lock before it hands a
save over and sends it along: a worker that is still starting, or collecting garbage, will make that save as well.
"""

import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path

from ..disk.files import FileLock, Files
from ..errors import Busy
from ..ids import CommitId
from ..limits import UNDERWAY_PAUSE_SECONDS, UNDERWAY_WAIT_SECONDS
from ..naming.refnames import branch_name
from .publish import Approve


def announced(root: Path, files: Files, branch: str, *, blocking: bool = True) -> FileLock:
    """Say that a save on ``branch`` (short name) is under way, or will be: until the lock is closed.

    Raises:
        Incompatible: no legal name.
        Busy: somebody is looking whether one is, and ``blocking`` is false.
        OSError: the file cannot be made.
    """
    path = _path(root, branch)
    files.make_directory(path.parent)
    return files.lock_shared(path, blocking=blocking)


@contextmanager
def saving(
    root: Path, files: Files, branch: str, approve: Approve | None = None, given: FileLock | None = None
) -> Iterator[Approve | None]:
    """Say that a save on ``branch`` (short name) is under way, but for as long as ``approve`` is asked.

    That may take long, and read the store through another manager of the branch, which would wait for this very save.
    A trainer that is killed meanwhile never approves, so there is nothing that the next run would have to wait for.

    Args:
        root: the store.
        files: makes and locks the file.
        branch: short name.
        approve: asked before the branch moves; ``None`` if nobody is.
        given: the lock, if whoever asked for the save announced it.

    Yields:
        What to ask in the place of ``approve``.

    Raises:
        Incompatible: no legal name.
        OSError: the file cannot be made.
    """
    with ExitStack() as held:
        held.enter_context(announced(root, files, branch) if given is None else given)

        def ask(commit: CommitId) -> None:
            assert approve is not None
            held.close()
            approve(commit)
            held.enter_context(announced(root, files, branch))

        yield None if approve is None else ask


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
