"""A storage that is watched: which requests came, a death at one of them, stale answers."""

from collections.abc import Callable, Iterator, Sequence
from typing import Any

from store.remotes.storages.storage import Advance, Source, Stat, Storage, Unfinished


class Died(BaseException):
    """The process was killed: nothing that handles errors sees it."""


class WatchedStorage:
    """Passes everything on, and writes down what.

    Attributes:
        requests: name of the method and key or prefix, of each call.
        sent_bytes: written so far.
        before: called before each request with its name and key; may raise.
        after: the same, once it was done.
    """

    def __init__(self, storage: Storage) -> None:
        self.storage = storage
        self.requests: list[tuple[str, str]] = []
        self.sent_bytes = 0
        self.before: Callable[[str, str], None] = _nothing
        self.after: Callable[[str, str], None] = _nothing

    @property
    def url(self) -> str:
        return self.storage.url

    def list(self, prefix: str) -> Iterator[Stat]:
        return iter(self._watched("list", prefix, lambda: list(self.storage.list(prefix))))

    def stat(self, key: str) -> Stat | None:
        return self._watched("stat", key, lambda: self.storage.stat(key))  # type: ignore[no-any-return]

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        return self._watched("get", key, lambda: self.storage.get(key, max_bytes))  # type: ignore[no-any-return]

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        self._watched("read_into", key, lambda: self.storage.read_into(key, start, out, advance))

    def put(self, key: str, data: bytes) -> str:
        self.sent_bytes += len(data)
        return self._watched("put", key, lambda: self.storage.put(key, data))  # type: ignore[no-any-return]

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        self.sent_bytes += len(data)
        return self._watched("put_if", key, lambda: self.storage.put_if(key, data, expected))  # type: ignore[no-any-return]

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        self.sent_bytes += source.size_bytes
        self._watched("upload", key, lambda: self.storage.upload(key, source, advance))

    def delete(self, keys: Sequence[str]) -> None:
        self._watched("delete", " ".join(keys), lambda: self.storage.delete(keys))

    def now_ns(self) -> int:
        return self.storage.now_ns()

    def unfinished(self) -> Iterator[Unfinished]:
        return self.storage.unfinished()

    def abort(self, upload: Unfinished) -> None:
        self.storage.abort(upload)

    def close(self) -> None:
        self.storage.close()

    def forget(self) -> None:
        """Count from here."""
        self.requests.clear()
        self.sent_bytes = 0

    def die_at(self, number: int, *, is_done: bool) -> None:
        """Die at a request from here on, the first being 0: before it has any effect, or just after it was done."""
        left = number

        def count(_method: str, _key: str) -> None:
            nonlocal left
            left -= 1
            if left < 0:
                raise Died

        self.before, self.after = (_nothing, count) if is_done else (count, _nothing)

    def live(self) -> None:
        """Pass everything on again."""
        self.before = self.after = _nothing

    def _watched(self, method: str, key: str, call: Callable[[], Any]) -> Any:
        self.requests.append((method, key))
        self.before(method, key)
        result = call()
        self.after(method, key)
        return result


def _nothing(_method: str, _key: str) -> None:
    pass
