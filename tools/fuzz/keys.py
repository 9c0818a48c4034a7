"""A remote in memory, whose content a fuzzer changes."""

from collections.abc import Iterator, Sequence

from store.errors import Conflict, Corrupt, NotFound
from store.remotes.storages.storage import Advance, Source, Stat, Unfinished


class Keys:
    """Keys in a dictionary; see :class:`~store.remotes.storages.storage.Storage`.

    Args:
        content: what there is; changed by whoever writes.

    Attributes:
        content: the same.
        url: what it is called.
    """

    url = "memory:"

    def __init__(self, content: dict[str, bytes]) -> None:
        self.content = content

    def list(self, prefix: str) -> Iterator[Stat]:
        """Keys that begin with ``prefix``."""
        return (self._stat(key) for key in sorted(self.content) if key.startswith(prefix))

    def stat(self, key: str) -> Stat | None:
        """What there is under a key."""
        return self._stat(key) if key in self.content else None

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small object and its version.

        Raises:
            Corrupt: it is longer than ``max_bytes``.
        """
        data = self.content.get(key)
        if data is not None and len(data) > max_bytes:
            raise Corrupt(f"{key} is longer than {max_bytes} bytes", key=key)
        return None if data is None else (data, _version(data))

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        """Fill ``out``.

        Raises:
            NotFound: there is no such key.
            Corrupt: it ends too early.
        """
        if key not in self.content:
            raise NotFound(f"there is no {key}", key=key)
        data = self.content[key][start : start + len(out)]
        if len(data) < len(out):
            raise Corrupt(f"{key} ends too early", key=key)
        out[:] = data
        advance(len(data))

    def put(self, key: str, data: bytes) -> str:
        """Write a key."""
        self.content[key] = bytes(data)
        return _version(data)

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        """Write a key if it has this version.

        Raises:
            Conflict: it has another.
        """
        found = self.stat(key)
        if expected != (found and found.version):
            raise Conflict(f"{key} is not as expected", key=key)
        return self.put(key, data)

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        """Write a long object."""
        with source.open() as reader:
            self.put(key, reader.read())
        advance(source.size_bytes)

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys."""
        for key in keys:
            self.content.pop(key, None)

    def now_ns(self) -> int:
        """It is always the same time."""
        return 10**18

    def unfinished(self) -> Iterator[Unfinished]:
        """Nothing is."""
        return iter(())

    def abort(self, upload: Unfinished) -> None:
        """Nothing to do."""

    def close(self) -> None:
        """Nothing to do."""

    def _stat(self, key: str) -> Stat:
        data = self.content[key]
        return Stat(key, len(data), _version(data), 10**18)


def _version(data: bytes) -> str:
    return f"{len(data)}-{hash(bytes(data)):x}"
