"""All that an index holds, taken apart record by record, for whoever checks it. LMDB has no part in it."""

from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from ..ids import ID_BYTES, CommitId, ObjectId, PackId
from .records import (
    LAYOUT,
    LAYOUT_KEY,
    SEQUENCE_KEY,
    BrokenIndex,
    CommitRow,
    Place,
    decode_place,
    decode_row,
    delta_key,
    unseal,
)
from .snapshot import read_snapshot
from .transaction import COMMITS, DELTAS, LAYOUTS, NUMBERS, OBJECTS, PACKS, SEQUENCE
from .treepages import Unsound, check_pages, records

_SHOWN = 5
"""Records of one table that are named; of the others only the number is told."""


@dataclass(slots=True)
class Contents:
    """What an index holds.

    Attributes:
        packs: packs that it has read.
        places: places of each object, those of copies that are known to be bad among them.
        bad: objects and packs of such copies.
        rows: commits.
        problems: what contradicts itself, in words.
    """

    packs: set[PackId] = field(default_factory=set)
    places: dict[ObjectId, list[Place]] = field(default_factory=dict)
    bad: set[tuple[ObjectId, PackId]] = field(default_factory=set)
    rows: dict[CommitId, CommitRow] = field(default_factory=dict)
    problems: list[str] = field(default_factory=list)


def read_contents(path: Path) -> Contents:
    """Read all of an index, and see whether it agrees with itself.

    Args:
        path: the environment's directory.

    Raises:
        BrokenIndex: it cannot be read: the file is missing, cut off or garbled.
        Busy: it is written to as fast as it is read.
        OSError: the disk fails.

    Cost: 10 µs a record; the memory of the file, and 500 B an object.
    """
    snapshot = read_snapshot(path)
    tables: dict[bytes, dict[bytes, bytes]] = {}
    try:
        check_pages(snapshot.file, snapshot.meta)
        for key, value in records(snapshot.file, snapshot.meta):
            tables.setdefault(key[:1], {})[key[1:]] = value
    except Unsound as error:
        raise BrokenIndex(f"index at {path} is garbled ({error})", path=str(path)) from error
    return _Reading(tables).contents


class _Reading:
    """Takes the tables apart in an order in which each needs only what came before."""

    def __init__(self, tables: dict[bytes, dict[bytes, bytes]]) -> None:
        self._tables = tables
        self._packs: dict[bytes, PackId] = {}
        self.contents = Contents()
        known = {bytes(table) for table in (OBJECTS, PACKS, NUMBERS, COMMITS, SEQUENCE, DELTAS, LAYOUTS)}
        self._tell("are in no table", [table for table in tables if table not in known])
        self._read_packs()
        self._read_places()
        self._read_deltas()
        self._read_rows()
        self._read_sequence()

    def _read_packs(self) -> None:
        self._packs = {key: PackId(pack) for key, pack in self._unsealed(PACKS, bytes)}
        numbers = dict(self._unsealed(NUMBERS, bytes))
        self.contents.packs = set(self._packs.values())
        inverse = {pack: number for number, pack in self._packs.items()}
        self._tell("number packs in two ways", sorted(dict(numbers.items() ^ inverse.items())))
        layout = dict(self._unsealed(LAYOUTS, bytes))
        if self._packs and layout != {LAYOUT_KEY: LAYOUT}:
            self.contents.problems.append("it was made by another version")

    def _read_places(self) -> None:
        lost: list[bytes] = []
        garbled: list[bytes] = []
        for key, record in self._tables.get(OBJECTS, {}).items():
            pack = self._packs.get(key[ID_BYTES:])
            if pack is None:
                lost.append(key)
                continue
            try:
                place, is_bad = decode_place(key, record, pack)
            except BrokenIndex:
                garbled.append(key)
                continue
            object_id = ObjectId(key[:ID_BYTES])
            self.contents.places.setdefault(object_id, []).append(place)
            if is_bad:
                self.contents.bad.add((object_id, pack))
        self._tell("are in packs of unknown number", lost)
        self._tell("are garbled", garbled)

    def _read_deltas(self) -> None:
        """Which copies are stored against what: all that are, and no others."""
        numbers = {pack: number for number, pack in self._packs.items()}
        expected = {
            delta_key(place.base, object_id + numbers[place.pack])
            for object_id, places in self.contents.places.items()
            for place in places
            if place.base is not None
        }
        found = {key for key, _ in self._unsealed(DELTAS, bytes)}
        self._tell("tell of deltas otherwise than their places do", sorted(expected ^ found))

    def _read_rows(self) -> None:
        garbled: list[bytes] = []
        for key, record in self._tables.get(COMMITS, {}).items():
            try:
                self.contents.rows[CommitId(ObjectId(key))] = decode_row(CommitId(ObjectId(key)), record)
            except BrokenIndex:
                garbled.append(key)
        self._tell("are garbled", garbled)

    def _read_sequence(self) -> None:
        """Commits are numbered without gaps, and the number 0 stands for the last."""
        arrived = dict(self._unsealed(SEQUENCE, bytes))
        rows = {SEQUENCE_KEY.pack(row.sequence): bytes(row.id) for row in self.contents.rows.values()}
        if rows:
            rows[SEQUENCE_KEY.pack(0)] = SEQUENCE_KEY.pack(len(rows))
        self._tell("number commits in two ways", sorted(dict(arrived.items() ^ rows.items())))

    def _unsealed(self, table: bytes, make: Callable[[bytes], bytes]) -> Iterator[tuple[bytes, bytes]]:
        garbled: list[bytes] = []
        for key, record in self._tables.get(table, {}).items():
            try:
                body = unseal(key, record)
            except BrokenIndex:
                garbled.append(key)
            else:
                yield key, make(body)
        self._tell("are garbled", garbled)

    def _tell(self, what: str, keys: list[bytes]) -> None:
        if keys:
            names = ", ".join(key[:ID_BYTES].hex() for key in keys[:_SHOWN])
            more = f" and {len(keys) - _SHOWN} more" if len(keys) > _SHOWN else ""
            self.contents.problems.append(f"records {what}: {names}{more}")
