"""Reading windows of a remote's packs, one ahead of the one that is being worked on."""

import threading
from collections import deque
from collections.abc import Callable, Generator, Sequence
from functools import partial
from queue import SimpleQueue
from typing import Final, NamedTuple

from ...errors import Corrupt, NotFound
from ...limits import FETCH_THREADS
from ...parallel import Threads
from ..storages.storage import Storage
from .incoming import Window

_ROOMS: Final = 3
"""Windows in memory: one is stored while another is checked and a third is read."""


class Filled(NamedTuple):
    """A window that was read. Its memory is used again once the one after the next is asked for.

    Attributes:
        window: the window.
        runs: content of each run, or why it could not be had.
    """

    window: Window
    runs: Sequence[memoryview | NotFound | Corrupt]


class _Stopped(Exception):
    """Nobody wants any more of this. Internal."""


def read_windows(
    storage: Storage, windows: Sequence[Window], advance: Callable[[int], None]
) -> Generator[Filled, None, None]:
    """Read windows, in order. Close the iterator when done with it: that ends what is under way.

    Args:
        storage: where packs lie.
        windows: what to read.
        advance: told of bytes that arrived, by any thread.

    Raises:
        RemoteError: the storage failed, for all that it was asked again.
    """
    if not windows:
        return
    reading = _Reading(storage, windows, advance)
    try:
        while (filled := reading.next()) is not None:
            yield filled
    finally:
        reading.stop()


class _Reading:
    """One thread goes through the windows and has others read their runs."""

    def __init__(self, storage: Storage, windows: Sequence[Window], advance: Callable[[int], None]) -> None:
        self._storage = storage
        self._windows = windows
        self._tell = advance
        self._is_stopped = False
        self._room_bytes = max(window.read_bytes for window in windows)
        self._threads = Threads(min(FETCH_THREADS, max(len(window.runs) for window in windows)))
        self._rooms: SimpleQueue[bytearray] = SimpleQueue()
        for _ in range(_ROOMS):
            self._rooms.put(bytearray())
        self._filled: SimpleQueue[tuple[Filled, bytearray] | BaseException | None] = SimpleQueue()
        self._in_use: deque[bytearray] = deque()
        self._thread = threading.Thread(target=self._work, name="moonclip-reading", daemon=True)
        self._thread.start()

    def next(self) -> Filled | None:
        """The next window; ``None`` after the last."""
        if len(self._in_use) == _ROOMS - 1:
            self._rooms.put(self._in_use.popleft())
        found = self._filled.get()
        if isinstance(found, BaseException):
            raise found
        if found is None:
            return None
        filled, room = found
        self._in_use.append(room)
        return filled

    def stop(self) -> None:
        """Read no more, and wait until nothing is being read."""
        self._is_stopped = True
        self._rooms.put(bytearray())
        self._thread.join()
        self._threads.close()

    def _work(self) -> None:
        try:
            for window in self._windows:
                room = self._rooms.get()
                if self._is_stopped:
                    return
                room = room or bytearray(self._room_bytes)
                self._filled.put((self._fill(window, memoryview(room)), room))
            self._filled.put(None)
        except BaseException as error:  # noqa: BLE001 - carried to whoever asks for the next window
            self._filled.put(error)

    def _fill(self, window: Window, room: memoryview) -> Filled:
        runs: list[memoryview | NotFound | Corrupt] = []
        start = 0
        for run in window.runs:
            runs.append(room[start : start + run.size_bytes])
            start += run.size_bytes
        self._threads.run(partial(self._read, window, runs), range(len(runs)))
        return Filled(window, runs)

    def _read(self, window: Window, runs: list[memoryview | NotFound | Corrupt], number: int) -> None:
        run, room = window.runs[number], runs[number]
        assert isinstance(room, memoryview)
        try:
            self._storage.read_into(run.pack.pack_key, run.start, room, self._advance)
        except (NotFound, Corrupt) as error:
            runs[number] = error

    def _advance(self, count: int) -> None:
        if self._is_stopped:
            raise _Stopped
        self._tell(count)
