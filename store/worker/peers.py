"""Noticing that the other process is gone.

By a pidfd, which becomes readable when its process has ended, however it ended. The end of the socket does not tell:
a forked child may hold it open. Nor does ``PR_SET_PDEATHSIG``: it comes when the *thread* ends that made the child.
"""

import os
import select
from collections.abc import Callable
from typing import Final

_LOOK_MS: Final = 500
"""How often to look where there is no pidfd (before Linux 5.3, or forbidden)."""

_NONE: Final = -1


def pidfd_of(pid: int) -> int:
    """A pidfd, close-on-exec, of a process that cannot have been reaped; -1 where there are none."""
    try:
        return os.pidfd_open(pid)
    except (AttributeError, OSError):
        return _NONE


class Peer:
    """The other process.

    Args:
        pidfd: its pidfd, or -1.
        is_gone: looks whether it has ended, for want of a pidfd.

    Attributes:
        pidfd: as given; it is closed by whoever made it.
    """

    def __init__(self, pidfd: int, is_gone: Callable[[], bool]) -> None:
        self.pidfd = pidfd
        self._is_gone = is_gone

    @property
    def is_gone(self) -> bool:
        """Whether it has ended."""
        if self.pidfd == _NONE:
            return self._is_gone()
        poller = select.poll()  # select.select takes no descriptor beyond 1,023
        poller.register(self.pidfd, select.POLLIN)
        return bool(poller.poll(0))

    def wait(self, *events: tuple[int, int]) -> set[int]:
        """Wait until something happens to one of some descriptors, or the peer ends.

        Args:
            events: descriptors, and the ``select.POLL…`` events they are waited for.

        Returns:
            Those of the descriptors to which something happened. Empty if only the peer has ended.
        """
        poller = select.poll()
        for fd, event in events:
            poller.register(fd, event)
        if self.pidfd != _NONE:
            poller.register(self.pidfd, select.POLLIN)
        while True:
            happened = {fd for fd, _ in poller.poll(None if self.pidfd != _NONE else _LOOK_MS)}
            if happened or self.is_gone:
                return happened - {self.pidfd}
