"""The index, doubted: what it does not know is sought in the packs before it is called missing.

A page that a flipped bit garbled loses keys without an error, and an index may be older than the packs beside it.
Neither must make a commit unreadable. Writers ask the index itself: most of what they look for is new.
"""

import os
import threading
from collections.abc import Callable, Iterable, Iterator
from contextlib import suppress
from typing import Protocol, TypeVar

from .errors import MoonclipError
from .ids import CommitId, ObjectId, PackId
from .index import BrokenIndex, CommitRow, IndexWriter, MemoryIndex, Place
from .packs import PackStore
from .reindex import digest_packs

T = TypeVar("T")


class Index(Protocol):
    """An index of either kind; see ``store.index.LmdbIndex``."""

    @property
    def writable(self) -> bool:
        """Whether :meth:`write` can be used."""
        ...

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies, the shallowest first."""
        ...

    def commit(self, commit_id: CommitId, /) -> CommitRow | None:
        """The row of a commit."""
        ...

    def commits_with_prefix(self, prefix: str, /) -> list[CommitId]:
        """Ids of commits by the first hex digits."""
        ...

    def commits_since(self, sequence: int) -> Iterator[CommitRow]:
        """Commits by arrival."""
        ...

    def packs(self) -> list[PackId]:
        """All packs whose objects are indexed."""
        ...

    def write(self, body: Callable[[IndexWriter], T], /) -> T:
        """Change the index in one transaction."""
        ...

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Remember that a copy failed its check."""
        ...

    def close(self) -> None:
        """Let go of it."""
        ...


class Lookup:
    """Asks the index, then the packs. Thread-safe.

    Args:
        index: the index.
        packs: the packs it speaks of.
    """

    def __init__(self, index: Index, packs: PackStore) -> None:
        self._index = index
        self._packs = packs
        self._locks: dict[int, threading.Lock] = {}
        self._pack_ids: list[PackId] = []
        self._sought = MemoryIndex([], [])

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies, the shallowest first; of what the index does not know, whatever copies packs hold.

        Cost: an index look-up; for what it lacks, the tables of all packs, which are kept.
        """
        with suppress(BrokenIndex):
            if known := self._index.places(object_id):
                return known
        return self._from_packs().places(object_id)

    def commit(self, commit_id: CommitId, /) -> CommitRow | None:
        """The row of a commit, or ``None`` if neither index nor packs know it. Cost: as :meth:`places`."""
        with suppress(BrokenIndex):
            if known := self._index.commit(commit_id):
                return known
        return self._from_packs().commit(commit_id)

    def commits_with_prefix(self, prefix: str, /) -> Iterable[CommitId]:
        """Ids of commits whose hex form begins with ``prefix``; of what the index does not know, those in packs."""
        with suppress(BrokenIndex):
            if known := self._index.commits_with_prefix(prefix):
                return known
        return self._from_packs().commits_with_prefix(prefix)

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Tell the index of a copy that failed its check, as far as it can be told. Readers must not fail for it."""
        if self._index.writable:
            with suppress(MoonclipError, OSError):
                self._index.mark_bad(object_id, pack)

    def _from_packs(self) -> MemoryIndex:
        with self._locks.setdefault(os.getpid(), threading.Lock()):  # a forked child must not wait for a lost thread
            pack_ids = self._packs.pack_ids()
            if pack_ids != self._pack_ids:
                digest = digest_packs(self._packs)
                self._sought = MemoryIndex(digest.tables.items(), digest.rows)
                self._pack_ids = pack_ids
            return self._sought
