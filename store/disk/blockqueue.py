"""One thread that works through what it is handed, in order, while the next is prepared."""

import threading
from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

B = TypeVar("B")


class BlockQueue(Generic[B]):
    """Blocks that wait to be written, and blocks that were. For one caller at a time beside the thread.

    The thread starts with the first block and ends with :meth:`finish` or :meth:`stop`, one of which must be called.
    Where no thread can be started (Python 3.12 refuses once the interpreter shuts down) the caller writes.

    Args:
        write: writes a block; what it raises is raised by the caller's next call, whatever it is.
        name: of the thread.
    """

    def __init__(self, write: Callable[[B], None], name: str) -> None:
        self._write = write
        self._name = name
        self._lock = threading.RLock()  # entered by itself: no interrupt comes between its taking and the block
        self._changed = threading.Condition(self._lock)
        self._waiting: deque[B] = deque()
        self._written: deque[B] = deque()
        self._error: BaseException | None = None
        self._is_ending = False
        self._has_ended = False
        self._thread: threading.Thread | None = None

    def put(self, block: B) -> None:
        """Have a block written; it must not be touched until it comes back. Raises what an earlier write raised.

        Raises:
            ValueError: the queue was stopped.
        """
        self._require_intact()
        if self._write is _refused:
            _refused(block)
        if self._thread is None and not self._start():
            self._write(block)
            self._written.append(block)
            return
        with self._lock:
            self._waiting.append(block)
            self._changed.notify_all()

    def poll(self) -> B | None:
        """A block that was written, if there is one. Raises what a write raised."""
        self._require_intact()
        with self._lock:
            return self._written.popleft() if self._written else None

    def get(self) -> B:
        """The next block that was written, once it is; one must have been handed over. Raises what a write raised."""
        with self._lock:
            self._changed.wait_for(lambda: self._written or self._error)
        self._require_intact()
        return self._written.popleft()

    def finish(self) -> None:
        """Wait until every block is written, and end the thread. Raises what a write raised."""
        self._end()
        self._require_intact()

    def stop(self) -> None:
        """End the thread: what it is writing is written, what waits is not. Nothing may be handed over any more."""
        with self._lock:
            self._waiting.clear()
        self._end()
        self._write = _refused  # not the method of whoever holds this queue any more: that would be a cycle

    def _start(self) -> bool:
        thread = threading.Thread(target=self._work, name=self._name, daemon=True)
        try:
            thread.start()
        except RuntimeError:
            return False
        self._thread = thread
        return True

    def _work(self) -> None:
        try:
            while (block := self._take()) is not None:
                self._write(block)
                with self._lock:
                    self._written.append(block)
                    self._changed.notify_all()
        except BaseException as error:  # noqa: BLE001 - carried to the caller, whatever it is
            self._error = error
        with self._lock:
            self._has_ended = True
            self._changed.notify_all()

    def _take(self) -> B | None:
        with self._lock:
            self._changed.wait_for(lambda: self._waiting or self._is_ending)
            return self._waiting.popleft() if self._waiting else None

    def _end(self) -> None:
        with self._lock:
            self._is_ending = True
            self._changed.notify_all()
            if self._thread is None:
                return
            # Joining is not enough: once an interrupt has ended a join, the next one waits for nothing (Python 3.11).
            self._changed.wait_for(lambda: self._has_ended)
        self._thread.join()

    def _require_intact(self) -> None:
        if self._error is not None:
            raise self._error


def _refused(_: object) -> None:
    raise ValueError("a block is handed over to a queue that was stopped")
