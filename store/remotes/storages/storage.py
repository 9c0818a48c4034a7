"""The seam between remotes and the places that hold them: keys, bytes, and one conditional write.

A key is text of at most ``MAX_KEY_BYTES``, without a leading ``/``; no key is a directory of another. Whatever does
this can be a remote: docs/remotes.md shows one in sixty lines, and ``tests/conformance`` is what it has to pass.

Errors are of the tree below :class:`~store.errors.RemoteError`; none of them, nor any name here, holds credentials.
"""

from collections.abc import Callable, Iterator, Sequence
from typing import BinaryIO, NamedTuple, Protocol

Advance = Callable[[int], None]
"""Told of bytes that went over the wire since it was last told. May be called by several threads at once; may end the
transfer by raising."""


class Stat(NamedTuple):
    """What a storage tells of a key.

    Attributes:
        key: the key.
        size_bytes: length of what it holds.
        version: changes whenever the content does; opaque, and no hash to be relied on.
        modified_ns: when it was written, by the *storage's* clock, nanoseconds since the epoch.
    """

    key: str
    size_bytes: int
    version: str
    modified_ns: int


class Unfinished(NamedTuple):
    """An upload in parts that was begun and neither completed nor aborted.

    Attributes:
        key: what it was to become.
        upload_id: the storage's name for it.
        started_ns: since when, by the storage's clock.
    """

    key: str
    upload_id: str
    started_ns: int


class Source(Protocol):
    """What is uploaded: bytes that can be had again from the start, since uploads are tried again."""

    @property
    def size_bytes(self) -> int:
        """How many there are."""
        ...

    def open(self) -> BinaryIO:
        """A reader at the first byte, not seekable. Errors of reading it end the upload as they are."""
        ...


class Storage(Protocol):
    """A place for keys. Thread-safe, and usable in a forked child.

    Every method raises, beside what it says itself:

        RemoteUnavailable: no answer, or none that is of use, also when asked again for a while.
        RemoteDenied: credentials are missing, wrong or expired, or do not allow this.
        RemoteMissing: the bucket or directory does not exist.
        RemoteUnsupported: the server does not know how to do this.
    """

    @property
    def url(self) -> str:
        """What people call it, without secrets."""
        ...

    def list(self, prefix: str) -> Iterator[Stat]:
        """All keys that begin with ``prefix``, in any order. One request for each thousand."""
        ...

    def stat(self, key: str) -> Stat | None:
        """What there is under a key, ``None`` if nothing."""
        ...

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small object and its version; ``None`` if there is none.

        Raises:
            Corrupt: it is longer than ``max_bytes``; no more than these were read.
        """
        ...

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        """Fill ``out`` with what lies under a key from byte ``start`` on. A body that is cut is asked for from there.

        Raises:
            NotFound: there is no such key (any more).
            Corrupt: it ends too early.
        """
        ...

    def put(self, key: str, data: bytes) -> str:
        """Write a small object, whatever was there; returns its version. Durable on return."""
        ...

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        """Write a small object if what is there has this version; ``None`` if nothing may be there.

        Only as good as the server: see :mod:`store.remotes.storages.conditional`.

        Returns:
            Its version.

        Raises:
            Conflict: it has another version, or is there, or is gone. Nothing was written. Whoever did not hear the
                answer to a write of his own may see it as this: look what is there.
        """
        ...

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        """Write an object of any length, in parts if it is long. It appears at once, whole, and is durable on return.

        Memory: a few parts.

        Raises:
            Corrupt: what arrived has another length.
        """
        ...

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys; those that are not there are passed over."""
        ...

    def now_ns(self) -> int:
        """What time it is by the storage's clock."""
        ...

    def unfinished(self) -> Iterator[Unfinished]:
        """Uploads in parts that were begun and are not done; none where there is no such thing."""
        ...

    def abort(self, upload: Unfinished) -> None:
        """End one of these; one that is gone is passed over."""
        ...

    def close(self) -> None:
        """Let go of connections; again does nothing."""
        ...
