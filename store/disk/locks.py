"""Locks between processes and threads, by ``flock`` on files.

A lock belongs to an *open file*, which a forked child shares: it would keep a dead owner's lock alive, and unlocking
it in the child would free the living owner's. So children close what they inherit, at once, without unlocking.
"""

import fcntl
import os
import threading
from pathlib import Path
from typing import Self

from ..errors import Busy
from .calls import Disk

_guard = threading.RLock()
"""Held while a lock's file is opened and entered below, and during a fork: no child inherits one unnoticed.

Reentrant, since a garbage collection may free a forgotten lock at any allocation made while it is held.
"""

_open_fds: set[int] = set()


class FileLock:
    """A held lock; close it to free it. Dies with the process, however that ends.

    In a forked child it is closed and holds nothing. Another process may be sent its descriptor, which it adopts.

    Args:
        fd: the locked file. It becomes the lock's.
    """

    def __init__(self, fd: int) -> None:
        with _guard:
            _open_fds.add(fd)
        self._fd = fd
        self._owner_pid = os.getpid()

    @property
    def fd(self) -> int:
        """The descriptor; -1 once closed."""
        return self._fd

    def leave(self) -> None:
        """Have it held by whoever was sent the descriptor, even if that is still on the way, and no longer by us."""
        self._drop(unlock=False)

    def close(self) -> None:
        """Free the lock; again does nothing."""
        self._drop(unlock=True)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()

    def _drop(self, *, unlock: bool) -> None:
        fd, self._fd = self._fd, -1
        if fd < 0 or self._owner_pid != os.getpid():
            return
        with _guard:
            _open_fds.discard(fd)
            try:
                if unlock:
                    fcntl.flock(fd, fcntl.LOCK_UN)  # closing alone would not free it while a child has it open
            finally:
                os.close(fd)


def acquire(disk: Disk, path: Path, *, exclusive: bool, blocking: bool, create: bool) -> FileLock:
    """Lock ``path``, against other processes and against other threads of this one.

    Args:
        disk: does the calls.
        path: the lock's file; it stays when the lock is freed.
        exclusive: alone, or together with others that are not exclusive.
        blocking: wait for whoever holds it.
        create: make the file if there is none.

    Raises:
        Busy: somebody holds it, and ``blocking`` is false.
        FileNotFoundError: there is no such file, and ``create`` is false.
        OSError: the file cannot be opened or locked.
    """
    with _guard:
        fd = disk.open(path, os.O_RDWR | (os.O_CREAT if create else 0))
        lock = FileLock(fd)
    try:
        fcntl.flock(fd, (fcntl.LOCK_EX if exclusive else fcntl.LOCK_SH) | (0 if blocking else fcntl.LOCK_NB))
    except BlockingIOError:
        lock.close()
        raise Busy(f"{path} is locked by another process or thread; try again later", path=str(path)) from None
    except BaseException:
        lock.close()
        raise
    return lock


def _close_inherited() -> None:
    for fd in _open_fds:
        os.close(fd)
    _open_fds.clear()
    _guard.release()


os.register_at_fork(before=_guard.acquire, after_in_parent=_guard.release, after_in_child=_close_inherited)
