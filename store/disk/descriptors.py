"""File descriptors that are ours, and how to tell that they still are.

A program may close what it did not open (``os.closerange``, as daemons do), and the next file that is opened gets the
number. Then nothing may be written to that number, sent as what it was, or closed.
"""

import os
from contextlib import suppress
from typing import Final

_NONE: Final = -1


class Descriptor:
    """One descriptor, from here on. It is closed once, and only if it is still what it was.

    Args:
        fd: its number; -1 if there is none.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd
        self._identity = _identity(fd)

    @property
    def fd(self) -> int:
        """Its number; -1 once closed."""
        return self._fd

    @property
    def is_intact(self) -> bool:
        """Whether the number still stands for what it stood for. Cost: 1 µs."""
        return self._identity is not None and _identity(self._fd) == self._identity

    def close(self) -> None:
        """Close it; again does nothing."""
        is_intact = self.is_intact
        fd, self._fd = self._fd, _NONE  # before: a fork in between must not close what gets the number next
        if is_intact:
            os.close(fd)


def occupy_standard_streams() -> None:
    """Have numbers 0 to 2 lead nowhere where they are closed, as in a daemon.

    Else what is opened next gets them, a file of the store for one, and all that is printed goes into it.

    Raises:
        OSError: there is no ``/dev/null``, or no descriptor left.
    """
    for number in range(3):
        if _identity(number) is None:
            opened = os.open(os.devnull, os.O_RDWR)
            if opened != number:
                os.dup2(opened, number)
                os.close(opened)
            os.set_inheritable(number, True)


def _identity(fd: int) -> tuple[int, int] | None:
    """Device and inode; ``None`` if it is closed. Sockets and memfds have an inode each, pidfds only of late."""
    with suppress(OSError):
        found = os.fstat(fd)
        return found.st_dev, found.st_ino
    return None
