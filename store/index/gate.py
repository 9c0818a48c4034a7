"""Many may pass at a time; closing the gate waits until none is inside, and keeps others out."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager


class _Mine(threading.local):
    """How often this thread is inside."""

    depth = 0


class Gate:
    """Thread-safe.

    A thread that is inside may enter again even while somebody waits to close: it would wait for itself.
    """

    def __init__(self) -> None:
        self.reset()

    def reset(self) -> None:
        """Open and empty: for a forked child, in which whoever was inside or waiting is no more."""
        self._lock = threading.Lock()
        self._changed = threading.Condition(self._lock)
        self._inside_count = 0
        self._is_closed = False
        self._mine = _Mine()

    @property
    def is_inside(self) -> bool:
        """Whether this thread is."""
        return self._depth() > 0

    def enter(self) -> None:
        """Be inside, until as many calls of :meth:`leave`."""
        with self._lock:
            depth = self._depth()
            while self._is_closed and depth == 0:
                self._changed.wait()
            self._inside_count += 1
            self._mine.depth = depth + 1

    def leave(self) -> None:
        """Undo one :meth:`enter`."""
        with self._lock:
            self._mine.depth -= 1
            self._inside_count -= 1
            if self._is_closed:
                self._changed.notify_all()

    @contextmanager
    def closed(self) -> Iterator[None]:
        """Keep everybody else out, once everybody else is out."""
        self.close()
        try:
            yield
        finally:
            self.open()

    def close(self) -> None:
        """Wait until everybody else is out, and keep them out until :meth:`open`."""
        with self._lock:
            self._changed.wait_for(lambda: not self._is_closed)
            self._is_closed = True
            self._changed.wait_for(lambda: self._inside_count == self._depth())

    def open(self) -> None:
        """Let others in again."""
        with self._lock:
            self._is_closed = False
            self._changed.notify_all()

    def _depth(self) -> int:
        return self._mine.depth
