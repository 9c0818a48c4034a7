"""All places of the index, told apart by whether their objects have to stay."""

import struct
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from ..batches import batches
from ..format.objects import Kind
from ..ids import ID_BYTES, ObjectId, PackId
from ..index import Copy, WalkedPlace
from ..repository import Repository
from .marking import LOOKUP_BATCH, Marks

_RECORD: Final = struct.Struct(f"<{ID_BYTES}sII")
_BAD: Final = 1 << 31
"""Beside the stored length, which takes 27 bits."""


@dataclass(slots=True)
class Tally:
    """What the index has of one pack.

    Attributes:
        number: its place among the packs.
        place_count: places.
        stored_bytes: what these take.
        doomed_count: of these, places of objects that nothing needs.
        doomed_bytes: what those take.
        copied_count: places of objects that stay and have a good one in another pack, which is counted there.
        copied_bytes: what those take.
    """

    number: int
    place_count: int = 0
    stored_bytes: int = 0
    doomed_count: int = 0
    doomed_bytes: int = 0
    copied_count: int = 0
    copied_bytes: int = 0


class Doomed(NamedTuple):
    """A copy whose object nothing needs.

    Attributes:
        copy: the copy.
        stored_bytes: its length.
    """

    copy: Copy
    stored_bytes: int


class Survey:
    """What the index has.

    Args:
        marks: what has to stay.

    Attributes:
        packs: packs that have a place.
        lacking: marked objects without a good copy.
        bad: marked objects of which a copy is known to be bad.
    """

    def __init__(self, marks: Marks) -> None:
        self.packs: dict[PackId, Tally] = {}
        self.lacking: set[ObjectId] = set()
        self.bad: set[ObjectId] = set()
        self._marks = marks
        self._doomed: dict[int, bytearray] = {}
        self._bases: set[ObjectId] = set()
        self._good_count = 0
        self._last_good = b""
        self._last = Tally(0), 0, 0

    def doomed(self) -> Iterator[Doomed]:
        """Copies that nothing needs, the deepest first and then by id.

        So bases come after what is stored against them, and neighbours in the index together. What is marked by the
        time it would be its turn is left out.
        """
        packs = list(self.packs)
        for depth in sorted(self._doomed, reverse=True):
            for object_id, number, stored_bytes in _RECORD.iter_unpack(self._doomed[depth]):
                if object_id not in self._marks.objects:
                    yield Doomed(Copy(object_id, packs[number]), stored_bytes & ~_BAD)

    def take(self, repository: Repository, go_on: Callable[[], None]) -> None:
        """Walk over all places, and mark the bases of what stays.

        Commits' own objects stay, also of commits that nothing reaches: the index numbers commits without gaps.

        Args:
            repository: the store.
            go_on: called now and then: whoever is told may want to hold it up, or stop it.

        Cost: 2 µs a place; 40 bytes of memory for each that can go.
        """
        for page in repository.index.places_by_id():
            self._see(page)
            go_on()
        self._marks.add_bases(self._bases)
        if self._bases:
            self._spare_marked()
        if self._good_count < len(self._marks.objects):
            self.lacking = _lacking(repository, self._marks)

    def _see(self, page: Sequence[WalkedPlace]) -> None:
        """Count places, of which those of one object come one after another. Everything is at hand: it is a million."""
        marked, packs, bases, commit = self._marks.objects, self.packs, self._bases, int(Kind.COMMIT)
        good_count, last_good, last = self._good_count, self._last_good, self._last
        for object_id, pack, kind, stored_bytes, depth, base, is_bad in page:
            tally = packs.get(pack) or self._tally(pack)
            tally.place_count += 1
            tally.stored_bytes += stored_bytes
            if object_id in marked:
                if is_bad:
                    self.bad.add(object_id)
                    continue
                if object_id != last_good:
                    good_count += 1
                    last_good, last = object_id, (tally, stored_bytes, depth)
                else:
                    last = _count_copy(last, (tally, stored_bytes, depth))
                if base is not None and base not in marked:
                    bases.add(base)
            elif kind != commit:
                tally.doomed_count += 1
                tally.doomed_bytes += stored_bytes
                self._doom(
                    depth, _RECORD.pack(object_id, tally.number, stored_bytes | _BAD if is_bad else stored_bytes)
                )
        self._good_count, self._last_good, self._last = good_count, last_good, last

    def _tally(self, pack: PackId) -> Tally:
        tally = self.packs[pack] = Tally(len(self.packs))
        return tally

    def _doom(self, depth: int, record: bytes) -> None:
        self._doomed.setdefault(depth, bytearray()).extend(record)

    def _spare_marked(self) -> None:
        """Spare what was walked over before it was marked as a base."""
        tallies = list(self.packs.values())
        good: set[ObjectId] = set()
        for depth in sorted(self._doomed):  # the shallowest copy is the one that is read
            for object_id, number, length in _RECORD.iter_unpack(self._doomed[depth]):
                if object_id in self._marks.objects:
                    self._spare(tallies[number], object_id, length, good)
        self._good_count += len(good)

    def _spare(self, tally: Tally, object_id: ObjectId, length: int, good: set[ObjectId]) -> None:
        stored_bytes = length & ~_BAD
        tally.doomed_count -= 1
        tally.doomed_bytes -= stored_bytes
        if length & _BAD:
            self.bad.add(object_id)
        elif object_id in good:
            tally.copied_count += 1
            tally.copied_bytes += stored_bytes
        else:
            good.add(object_id)


_Seen = tuple[Tally, int, int]
"""A copy: the pack it is in, its length, and its depth."""


def _count_copy(read: _Seen, other: _Seen) -> _Seen:
    """Count the deeper one of two copies of an object as one that need not be; returns the one that is read."""
    if other[2] < read[2]:
        read, other = other, read
    tally, stored_bytes, _ = other
    tally.copied_count += 1
    tally.copied_bytes += stored_bytes
    return read


def _lacking(repository: Repository, marks: Marks) -> set[ObjectId]:
    lacking: set[ObjectId] = set()
    for batch in batches(marks.objects, LOOKUP_BATCH):
        lacking.update(each for each, places in repository.index.places_of_each(batch).items() if not places)
    return lacking
