"""Whose turn it is with a manager: one thread of the process that made it, and never from within a save."""

import os
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager

from store.errors import MoonclipError


class Turns:
    """Turns of the threads of one process.

    Args:
        is_saving_thread: whether the caller is the thread that saves, as callbacks of Futures are.
    """

    def __init__(self, is_saving_thread: Callable[[], bool]) -> None:
        self._is_saving_thread = is_saving_thread
        self._pid = os.getpid()
        self._lock = threading.RLock()  # re-entered by a handler that runs before the holder is known
        self._holder: int | None = None
        self._aside: set[int] = set()  # threads in the middle of something that others need not wait for

    def for_others(self) -> "Turns":
        """Turns with something else, of the same threads."""
        return Turns(self._is_saving_thread)

    @property
    def is_owner(self) -> bool:
        """Whether this is the process that made it, and no fork of that."""
        return self._pid == os.getpid()

    def require_owner(self) -> None:
        """See that this is no fork.

        Raises:
            MoonclipError: it is.
        """
        if not self.is_owner:
            raise MoonclipError(
                f"this manager belongs to process {self._pid}, of which this one ({os.getpid()}) is a fork; only its"
                " owner saves. Make a manager of its own in this process, on a branch of its own"
            )

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Have a turn. A forked child waits for nobody: it was alone when it began.

        Raises:
            MoonclipError: called in a callback of a save, which would wait for itself, or in a signal handler that
                interrupted the holder, whose half-captured state it would write over.
        """
        if self._is_saving_thread():
            raise MoonclipError(
                "a callback of a save or its Future runs in the saving thread, so it cannot save, resume or close"
            )
        if not self.is_owner:
            yield
            return
        if self._holder == threading.get_ident() or threading.get_ident() in self._aside:
            raise MoonclipError(
                "this thread is in the middle of a save, resume or push of this manager, so neither a callback of it"
                " nor a signal handler that interrupted it can save, resume or close; set a flag there, and do so from"
                " the training loop"
            )
        with self._lock:
            try:
                self._holder = threading.get_ident()
                yield
            finally:
                self._holder = None

    @contextmanager
    def aside(self) -> Iterator[None]:
        """Be in the middle of something for which others need not wait; only this thread's handlers have no turn."""
        ident = threading.get_ident()
        self._aside.add(ident)
        try:
            yield
        finally:
            self._aside.discard(ident)
