"""A state on its way into an arena: what of it is there, and how to wait for the rest."""

import threading
from collections.abc import Callable

from store.saving.arenas import Arena
from store.saving.inputs import ItemInput


class Capture:
    """One state, copied or being copied. Thread-safe.

    Args:
        items: what the engine stores; tensors lie in the arena.
        arena: holds the bytes until the capture after the next one, or the next one if there is a single arena.
        keeps_last: whether the last capture's bytes are still what they were: if not, they are no delta bases.

    Attributes:
        items: as given, or with more bytes after :meth:`fill`.
        arena: as given.
        keeps_last: as given.
        fill: copies what the items only call unchanged, for a store that does not have it any more; ``None`` if they
            do so of nothing. Raises :class:`StateChanged` if one has changed since.
    """

    def __init__(self, items: tuple[ItemInput, ...], arena: Arena, *, keeps_last: bool) -> None:
        self.items = items
        self.arena = arena
        self.keeps_last = keeps_last
        self.fill: Callable[[], None] | None = None
        self._lock = threading.RLock()  # entered by itself: no interrupt comes between its taking and the block
        self._changed = threading.Condition(self._lock)
        self._is_done = False
        self._error: BaseException | None = None

    @property
    def is_done(self) -> bool:
        """Whether all is copied and checked, or failed."""
        return self._is_done

    def wait(self) -> None:
        """Wait until all is copied and checked.

        Raises:
            StateChanged: a tensor was altered before it was copied.
            BaseException: whatever else ended the copying.
        """
        self.settle()
        if self._error is not None:
            raise self._error

    def settle(self) -> None:
        """Wait until the copying is over, one way or the other."""
        with self._lock:
            self._changed.wait_for(lambda: self._is_done)

    def finish(self, error: BaseException | None = None) -> None:
        """Say that the copying is over, by whoever does it; what is said first counts."""
        with self._lock:
            if self._is_done:
                return
            self._error = error
            self._is_done = True
            self._changed.notify_all()
