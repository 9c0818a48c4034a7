"""Loading code lazily in a thread, safely beside forks.

A child of ``fork`` has one thread, but the locks of all: if another thread was in the middle of an import, that
import's lock is held for ever, and the child's first use of the module hangs. So whoever imports lazily where other
threads may fork does it under :data:`loading`, and a fork waits until nobody does.
"""

import os
import threading
from types import TracebackType
from typing import Final

_FORK_WAIT_SECONDS: Final = 10.0


class Loading:
    """A re-entrant lock, held while code is loaded and while the process forks.

    Attributes:
        was_cut_off: in a child: a load did not end in time, so what it was loading cannot be used here.
    """

    def __init__(self) -> None:
        self.was_cut_off = False
        self._lock = threading.RLock()
        self._held_for_fork = False
        os.register_at_fork(
            before=self._before_fork,
            after_in_parent=self._after_fork_in_parent,
            after_in_child=self._after_fork_in_child,
        )

    def acquire_at_once(self) -> bool:
        """Take the lock if nobody else has it."""
        return self._lock.acquire(blocking=False)

    def __enter__(self) -> None:
        self._lock.acquire()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.release()

    def release(self) -> None:
        """Give the lock back."""
        self._lock.release()

    def _before_fork(self) -> None:
        self._held_for_fork = self._lock.acquire(timeout=_FORK_WAIT_SECONDS)

    def _after_fork_in_parent(self) -> None:
        if self._held_for_fork:
            self._lock.release()

    def _after_fork_in_child(self) -> None:
        self.was_cut_off = self.was_cut_off or not self._held_for_fork
        self._lock = threading.RLock()


loading: Final = Loading()
"""The one of this process: there is one interpreter to import into."""
