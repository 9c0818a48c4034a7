"""The index, doubted: what it does not know is sought in the packs before it is called missing.

A page that a flipped bit garbled loses keys without an error, and an index may be older than the packs beside it.
Neither must make a commit unreadable. Writers ask the index itself: most of what they look for is new.

What people mistype is most often a commit, and it must not take them as long as reading all packs does. Commits are
numbered without gaps, so that an index can show that it has lost none; then the packs are enough that it has not read.
"""

import os
import threading
from collections.abc import Callable, Collection, Iterable, Iterator
from contextlib import suppress
from dataclasses import replace
from typing import Protocol, TypeVar

from ..errors import MoonclipError
from ..ids import CommitId, ObjectId, PackId
from ..index import BrokenIndex, CommitRow, IndexWriter, MemoryIndex, Place, Version, WalkedPlace
from ..opening.reindex import digest_packs
from .packs import PackStore

T = TypeVar("T")


class Index(Protocol):
    """An index of either kind; see ``store.index.LmdbIndex``."""

    @property
    def writable(self) -> bool:
        """Whether :meth:`write` can be used."""
        ...

    def version(self) -> Version | None:
        """What it is now; ``None`` if that cannot be told."""
        ...

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies, the shallowest first."""
        ...

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """Of each object what :meth:`places` gives."""
        ...

    def places_below(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same, and of their bases, the bases of those, and so on."""
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

    def places_by_id(self) -> Iterator[list[WalkedPlace]]:
        """Every place there is, page by page."""
        ...

    def packs(self) -> list[PackId]:
        """All packs whose objects are indexed."""
        ...

    def write(self, body: Callable[[IndexWriter], T], /) -> T:
        """Change the index in one transaction."""
        ...

    def check(self) -> None:
        """Look for damage that opening may not have looked for; raises BrokenIndex."""
        ...

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Remember that a copy failed its check."""
        ...

    def outdated(self) -> None:
        """Hear that it tells of a pack that went before; it is rebuilt if that is possible from here."""
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
        self._all = _Digested(packs)
        self._unread = _Digested(packs)

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies, the shallowest first; of what the index does not know, whatever copies packs hold.

        Cost: an index look-up; for what it lacks, the tables of all packs, which are kept.
        """
        with suppress(BrokenIndex):
            if known := self._index.places(object_id):
                return known
        return self._from_packs().places(object_id)

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """:meth:`places` of each, in a third of the time."""
        found: dict[ObjectId, list[Place]] = {}
        with suppress(BrokenIndex):
            found = self._index.places_of_each(object_ids)
        return {object_id: found.get(object_id) or self.places(object_id) for object_id in object_ids}

    def commit(self, commit_id: CommitId, /) -> CommitRow | None:
        """The row of a commit, or ``None`` if neither index nor packs know it.

        Cost: an index look-up; for what it lacks, all its commits (8 µs each) and the packs that it has not read.
        """
        with suppress(BrokenIndex):
            return self._index.commit(commit_id) or self._beyond_index().commit(commit_id)
        return self._from_packs().commit(commit_id)

    def commits_with_prefix(self, prefix: str, /) -> Iterable[CommitId]:
        """Ids of commits whose hex form begins with ``prefix``; of what the index does not know, those in packs.

        Cost: as :meth:`commit`.
        """
        with suppress(BrokenIndex):
            return self._index.commits_with_prefix(prefix) or self._beyond_index().commits_with_prefix(prefix)
        return self._from_packs().commits_with_prefix(prefix)

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Tell the index of a copy that failed its check, as far as it can be told. Readers must not fail for it."""
        if self._index.writable:
            with suppress(MoonclipError, OSError):
                self._index.mark_bad(object_id, pack)

    def places_in_packs(self, object_id: ObjectId) -> list[Place]:
        """Copies in the packs that there are, the index having named one that is not. It may be from a backup."""
        with suppress(MoonclipError, OSError):
            self._index.outdated()
        return self._from_packs().places(object_id)

    def _from_packs(self) -> MemoryIndex:
        return self._all.of(self._packs.pack_ids(), 0)

    def _beyond_index(self) -> MemoryIndex:
        """What is in the packs that the index has not read, if it has lost no commit of those that it has.

        Raises:
            BrokenIndex: it has lost some.
        """
        known_count = sum(1 for _ in self._index.commits_since(1))
        read = set(self._index.packs()) if known_count else set()  # that nothing is lost, nothing cannot show
        return self._unread.of([pack for pack in self._packs.pack_ids() if pack not in read], known_count)


class _Digested:
    """An index in memory of some packs, made when it is asked for and again when they are others."""

    def __init__(self, packs: PackStore) -> None:
        self._packs = packs
        self._locks: dict[int, threading.Lock] = {}
        self._made_of: tuple[list[PackId], int] = [], 0
        self._index = MemoryIndex([], [])

    def of(self, pack_ids: list[PackId], known_count: int) -> MemoryIndex:
        """That of these packs, whose commits arrived after ``known_count`` others."""
        with self._locks.setdefault(os.getpid(), threading.Lock()):  # a forked child must not wait for a lost thread
            if self._made_of != (pack_ids, known_count):
                digest = digest_packs(self._packs, pack_ids)
                rows = [replace(row, sequence=known_count + row.sequence) for row in digest.rows]
                self._index = MemoryIndex(digest.tables.items(), rows)
                self._made_of = pack_ids, known_count
            return self._index
