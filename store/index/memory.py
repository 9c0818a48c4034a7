"""An index in memory, built from packs: for a store whose directory cannot be written."""

from collections.abc import Callable, Collection, Iterable, Iterator
from typing import Any, NoReturn

from ..errors import ReadOnly
from ..format.pack import TableEntry
from ..ids import CommitId, ObjectId, PackId
from .depths import resolve_depths, with_bases
from .records import CommitRow, Place, Version, WalkedPlace


class MemoryIndex:
    """Answers what ``LmdbIndex`` answers. Thread-safe for reading; never changes.

    Args:
        packs: tables of all packs.
        rows: all commits, parents before children.
    """

    writable = False

    def __init__(self, packs: Iterable[tuple[PackId, Iterable[TableEntry]]], rows: Iterable[CommitRow]) -> None:
        copies = [_Copy(pack, entry) for pack, entries in packs for entry in entries]
        self._packs = sorted({copy.pack for copy in copies})
        self._copies: dict[ObjectId, list[tuple[int, _Copy]]] = {}
        for copy, depth in resolve_depths(copies, lambda _: None).resolved:
            self._copies.setdefault(copy.id, []).append((depth, copy))
        self._rows = {row.id: row for row in rows}

    def version(self) -> Version | None:
        """``None``: nothing is saved by way of it."""
        return None

    def places(self, object_id: ObjectId) -> list[Place]:
        """Copies of an object, the shallowest first."""
        found = sorted(self._copies.get(object_id, ()), key=lambda each: each[0])
        return [copy.place(depth) for depth, copy in found]

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """Of each object what :meth:`places` gives."""
        return {object_id: self.places(object_id) for object_id in object_ids}

    def places_below(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same, and of their bases, the bases of those, and so on."""
        return with_bases(object_ids, self.places_of_each)

    def commit(self, commit_id: CommitId, /) -> CommitRow | None:
        """The row of a commit, or ``None`` if it is unknown."""
        return self._rows.get(commit_id)

    def commits_with_prefix(self, prefix: str, /) -> list[CommitId]:
        """Ids of all commits whose hex form begins with ``prefix``."""
        return [commit_id for commit_id in self._rows if commit_id.hex().startswith(prefix)]

    def commits_since(self, sequence: int) -> Iterator[CommitRow]:
        """Rows of all commits that arrived at ``sequence`` or later."""
        return (row for row in self._rows.values() if row.sequence >= sequence)

    def places_by_id(self) -> Iterator[list[WalkedPlace]]:
        """Places of each object in turn, those of one object together."""
        for object_id in sorted(self._copies):
            yield [
                (object_id, place.pack, place.kind, place.stored_bytes, place.depth, place.base, False)
                for place in self.places(object_id)
            ]

    def packs(self) -> list[PackId]:
        """All packs that hold objects."""
        return self._packs

    def write(self, _body: Callable[[Any], Any], /) -> NoReturn:
        """Refuse.

        Raises:
            ReadOnly: always.
        """
        raise ReadOnly("this store cannot be written from here: its index is in memory only")

    def check(self) -> None:
        """Nothing can have come to it."""

    def outdated(self) -> None:
        """It stays as it is: whoever asks looks into the packs."""

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Nothing can be remembered."""

    def close(self) -> None:
        """Nothing is open."""


class _Copy:
    """A table entry and the pack it is in."""

    __slots__ = ("_entry", "base", "id", "pack")

    def __init__(self, pack: PackId, entry: TableEntry) -> None:
        self.pack = pack
        self.id = entry.id
        self.base = entry.base
        self._entry = entry

    def place(self, depth: int) -> Place:
        entry = self._entry
        return Place(self.pack, entry.offset, entry.stored_bytes, entry.raw_bytes, entry.kind, entry.base, depth)
