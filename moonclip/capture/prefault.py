"""Pages of arenas: which there are, and making them ahead of the first save.

A page comes to be when it is first written, which makes copying three to five times as slow. So once a state's size is
known, they are made: at once if somebody asked for that, else by a thread of the lowest priority.
"""

import os
import threading
import weakref
from collections.abc import Sequence
from contextlib import suppress
from typing import Final
from weakref import WeakKeyDictionary

from store.limits import PREFAULT_BYTES
from store.parallel import Threads
from store.saving.arenas import Arena

_LOWEST_PRIORITY: Final = 19


class Pages:
    """Which pages of arenas there are. Thread-safe."""

    def __init__(self) -> None:
        self._made_bytes: WeakKeyDictionary[Arena, int] = WeakKeyDictionary()
        self._reached_bytes: WeakKeyDictionary[Arena, int] = WeakKeyDictionary()

    def made_bytes(self, arena: Arena) -> int:
        """Bytes from an arena's start all of which have their pages: writing there takes no more memory."""
        return self._made_bytes.get(arena, 0)

    def reached_bytes(self, arena: Arena) -> int:
        """Bytes from an arena's start beyond which it has no page: what it takes at most."""
        return self._reached_bytes.get(arena, 0)

    def set_made(self, arena: Arena, size_bytes: int) -> None:
        """Note that so many bytes from its start have been written."""
        self._made_bytes[arena] = max(size_bytes, self.made_bytes(arena))
        self.set_reached(arena, size_bytes)

    def set_reached(self, arena: Arena, size_bytes: int) -> None:
        """Note that some of so many bytes from its start have been written."""
        self._reached_bytes[arena] = max(size_bytes, self.reached_bytes(arena))

    def make(self, arenas: Sequence[Arena], size_bytes: int, threads: Threads) -> None:
        """Make the first pages of arenas, where there are none yet.

        Raises:
            MemoryError: there is no room for them.

        Cost: 0.3 s of CPU time for 500 MB of each, shared by the threads, without the GIL.
        """
        pieces = [
            (arena, start) for arena in arenas for start in range(self.made_bytes(arena), size_bytes, PREFAULT_BYTES)
        ]
        for arena in arenas:
            self.set_reached(arena, size_bytes)
        threads.run(lambda piece: piece[0].populate(piece[1], min(piece[1] + PREFAULT_BYTES, size_bytes)), pieces)
        for arena in arenas:
            self.set_made(arena, size_bytes)

    def make_ahead(self, arenas: Sequence[Arena], size_bytes: int) -> None:
        """Make the first pages of arenas, in a thread that has only what time nobody else wants. Returns at once.

        Where there is no room, or no thread to be had, it leaves them to whoever copies.

        Cost: 0.3 s of CPU time for 500 MB of each.
        """
        known = [weakref.ref(arena) for arena in arenas]
        thread = threading.Thread(target=self._make, args=(known, size_bytes), name="moonclip-pages", daemon=True)
        with suppress(RuntimeError):
            thread.start()

    def _make(self, known: "Sequence[weakref.ref[Arena]]", size_bytes: int) -> None:
        with suppress(OSError):
            os.setpriority(os.PRIO_PROCESS, threading.get_native_id(), _LOWEST_PRIORITY)
        with suppress(MemoryError):
            for known_arena in known:
                for start in range(0, size_bytes, PREFAULT_BYTES):
                    self._make_some(known_arena(), start, min(start + PREFAULT_BYTES, size_bytes))

    def _make_some(self, arena: Arena | None, start: int, stop: int) -> None:
        """Make some pages of an arena, unless it was given up: it is held no longer than this takes."""
        memory = b"" if arena is None else arena.memory  # held here, so that it stays mapped
        if arena is not None and len(memory) >= stop:
            arena.populate(start, stop)
            self.set_made(arena, stop)
