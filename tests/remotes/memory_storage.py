"""A remote of one's own: keys in a dictionary. Whatever does what this does can be pushed to and fetched from."""

import threading
import time
from collections.abc import Iterator, Sequence

from store.errors import Conflict, Corrupt, NotFound
from store.remotes.storages.storage import Advance, Source, Stat, Unfinished


class MemoryStorage:
    """Keys in memory. Threads may share it."""

    url = "memory:"

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._objects: dict[str, tuple[bytes, int, int]] = {}
        self._count = 0

    def list(self, prefix: str) -> Iterator[Stat]:
        with self._lock:
            keys = [key for key in self._objects if key.startswith(prefix)]
        return (found for key in keys if (found := self.stat(key)) is not None)

    def stat(self, key: str) -> Stat | None:
        found = self._objects.get(key)
        return None if found is None else Stat(key, len(found[0]), str(found[1]), found[2])

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        found = self._objects.get(key)
        if found is not None and len(found[0]) > max_bytes:
            raise Corrupt(f"{key} is longer than {max_bytes} bytes", key=key)
        return None if found is None else (found[0], str(found[1]))

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        if key not in self._objects:
            raise NotFound(f"there is no {key}", key=key)
        data = self._objects[key][0][start : start + len(out)]
        if len(data) < len(out):
            raise Corrupt(f"{key} ends too early", key=key)
        out[:] = data
        advance(len(data))

    def put(self, key: str, data: bytes) -> str:
        with self._lock:
            return self._put(key, data)

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        with self._lock:
            found = self._objects.get(key)
            if expected != (None if found is None else str(found[1])):
                raise Conflict(f"{key} is not as expected", key=key)
            return self._put(key, data)

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        with source.open() as reader:
            data = reader.read()
        if len(data) != source.size_bytes:
            raise Corrupt(f"{key}: another length arrived", key=key)
        self.put(key, data)
        advance(len(data))

    def delete(self, keys: Sequence[str]) -> None:
        with self._lock:
            for key in keys:
                self._objects.pop(key, None)

    def now_ns(self) -> int:
        return time.time_ns()

    def unfinished(self) -> Iterator[Unfinished]:
        return iter(())

    def abort(self, upload: Unfinished) -> None:
        """Nothing is ever unfinished."""

    def close(self) -> None:
        """Nothing is held open."""

    def _put(self, key: str, data: bytes) -> str:
        self._count += 1
        self._objects[key] = data, self._count, self.now_ns()
        return str(self._count)
