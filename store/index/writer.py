"""What is read and written within one transaction of the index."""

from collections.abc import Callable, Collection, Iterable, Sequence
from functools import cache, partial
from typing import Final

from ..errors import Corrupt, Incompatible
from ..format.pack import TableEntry
from ..ids import ID_BYTES, CommitId, ObjectId, PackId
from ..limits import MAX_CHAIN_DEPTH
from .depths import resolve_depths
from .records import (
    LAYOUT,
    LAYOUT_KEY,
    PACK_NUMBER,
    SEQUENCE_KEY,
    BrokenIndex,
    CommitRow,
    Place,
    Version,
    decode_place,
    decode_row,
    delta_key,
    encode_place,
    encode_row,
    is_good,
    place_key,
    seal,
    unseal,
)
from .removal import Copy, Numbers, Unremoved, lower_depths, remove_copies
from .transaction import COMMITS, DELTAS, LAYOUTS, NUMBERS, OBJECTS, PACKS, SEQUENCE, Transaction

_LAST: Final = SEQUENCE_KEY.pack(0)
"""Where the last sequence is kept: keys that are lost at the end of the table would not be missed."""


class BasesMissing(Corrupt):
    """Deltas whose base is nowhere, or whose chain is a cycle; ``details["objects"]`` lists them in hex."""

    kind = "bases-missing"


class IndexWriter:
    """What can be done within one write transaction; valid inside the function that got it.

    Args:
        transaction: the transaction.
        file: see :class:`Version`.
    """

    def __init__(self, transaction: Transaction, file: tuple[int, int]) -> None:
        self._transaction = transaction
        self._file = file
        self._has_marked = False

    @property
    def version(self) -> Version | None:
        """What the index will be once this is committed; ``None`` if nothing was written, or a copy marked as bad."""
        is_told = self._transaction.has_written and not self._has_marked
        return Version(self._file, self._transaction.number) if is_told else None

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies of an object, the shallowest first, as this transaction has it."""
        return places_of(self._transaction, object_id)

    def lacking(self, object_ids: Sequence[ObjectId]) -> list[ObjectId]:
        """Of some objects, those that have no good copy. Cost: 2 µs each."""
        pack_of = cache(partial(_pack_of, self._transaction))
        found = self._transaction.each_prefixed(OBJECTS, object_ids)
        return [
            object_id
            for object_id, records in zip(object_ids, found, strict=True)
            if not any(is_good(key, record, pack_of(key[ID_BYTES:])) for key, record in records)
        ]

    def add_pack(self, pack: PackId, entries: Iterable[TableEntry]) -> dict[ObjectId, tuple[Place]]:
        """Add the places of a pack's objects that are not there yet, and say which. A large pack may come in parts.

        Copies that are known to be bad are good again: who adds a pack has written it, in place of what was damaged.

        Raises:
            BasesMissing: deltas whose base is nowhere.
            Incompatible: a chain deeper than ``MAX_CHAIN_DEPTH``.
        """
        number = self._number_of(pack)
        if number is None:
            resolved = self._resolved(pack, list(entries))
            return self._put_places(pack, self._number_pack(pack), resolved)
        new = [entry for entry in entries if not self._is_good(entry.id + number, pack)]
        return self._put_places(pack, PACK_NUMBER.unpack(number)[0], self._resolved(pack, new))

    def _is_good(self, key: bytes, pack: PackId) -> bool:
        record = self._transaction.get(OBJECTS, key)
        return record is not None and is_good(key, record, pack)

    def _resolved(self, pack: PackId, listed: Sequence[TableEntry]) -> list[tuple[TableEntry, int]]:
        bases = {entry.base for entry in listed if entry.base is not None}
        known = places_of_each(self._transaction, bases)
        depths = {base: places[0].depth for base, places in known.items() if places}
        resolved, too_deep, unresolved = resolve_depths(listed, depths.get)
        if too_deep:
            name = too_deep[0].id.hex()
            raise Incompatible(f"object {name}: a delta chain of {MAX_CHAIN_DEPTH + 1}", object=name)
        if unresolved:
            raise BasesMissing(
                f"pack {pack.hex()}: {len(unresolved)} deltas lack their base",
                objects=[entry.id.hex() for entry in unresolved],
            )
        return resolved

    def add_places(self, pack: PackId, resolved: Iterable[tuple[TableEntry, int]]) -> None:
        """Add places whose depths are known. A pack that is known already is left as it is."""
        if self._transaction.get(NUMBERS, pack) is not None:
            return
        self._put_places(pack, self._number_pack(pack), resolved)

    def _put_places(
        self, pack: PackId, number: int, resolved: Iterable[tuple[TableEntry, int]]
    ) -> dict[ObjectId, tuple[Place]]:
        places: dict[ObjectId, tuple[Place]] = {}
        deltas: list[bytes] = []
        for entry, depth in sorted(resolved, key=lambda each: each[0].id):  # in key order LMDB fills page by page
            place = Place(pack, entry.offset, entry.stored_bytes, entry.raw_bytes, entry.kind, entry.base, depth)
            key = place_key(entry.id, number)
            self._transaction.put(OBJECTS, key, encode_place(key, place, is_bad=False))
            places[entry.id] = (place,)
            if entry.base is not None:
                deltas.append(delta_key(entry.base, key))
        for key in sorted(deltas):
            self._transaction.put(DELTAS, key, seal(key, b""))
        return places

    def remove_places(self, copies: Iterable[Copy], *, spare_last: bool) -> list[Unremoved]:
        """Remove copies of objects; depths of what was read by way of them are derived anew.

        Deltas may go together with their bases, in any order.

        Args:
            copies: which; those that are not there are passed over.
            spare_last: refuse the last good copy of an object, whether anything is stored against it or not.

        Returns:
            Those that stay, since something that stays could not be read without them, or too deep, or as they are the
            last and ``spare_last``.

        Raises:
            BrokenIndex: a record is garbled or lost, or the index was made before it could tell what is stored against
                an object.

        Cost: 10 µs a copy, and 10 for each delta that gets deeper.
        """
        return remove_copies(self._transaction, copies, self._numbers(), spare_last=spare_last)

    def lower_depths(self, object_ids: Iterable[ObjectId]) -> None:
        """Derive depths anew of what is stored against objects that may have got shallower copies.

        Depths that are greater than they have to be do no harm but this: chains seem long that are not.

        Raises:
            BrokenIndex: as :meth:`remove_places` does.

        Cost: 5 µs an object, and 10 for each delta that gets less deep.
        """
        lower_depths(self._transaction, object_ids, self._numbers())

    def remove_pack(self, pack: PackId, object_ids: Iterable[ObjectId]) -> bool:
        """Forget a pack of which no place is left.

        Args:
            pack: the pack; one that is unknown is forgotten already.
            object_ids: all that its table names.

        Returns:
            Whether it is forgotten; if not, a place refers to it.
        """
        number = self._number_of(pack)
        if number is None:
            return True
        if any(self._transaction.get(OBJECTS, object_id + number) is not None for object_id in object_ids):
            return False
        self._transaction.delete(PACKS, number)
        self._transaction.delete(NUMBERS, pack)
        return True

    def add_commit(self, row: CommitRow) -> CommitRow:
        """Add a commit and return its row with the sequence it got; one that is known keeps its own."""
        known = row_of(self._transaction, row.id)
        if known is not None:
            return known
        sequence = last_sequence(self._transaction) + 1
        added = CommitRow(row.id, row.parents, row.step, row.time_ns, row.branch, sequence)
        self._transaction.put(COMMITS, row.id, encode_row(added))
        key = SEQUENCE_KEY.pack(sequence)
        self._transaction.put(SEQUENCE, key, seal(key, row.id))
        self._transaction.put(SEQUENCE, _LAST, seal(_LAST, key))
        return added

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Remember that a copy failed its check: it is no copy any more."""
        number = self._number_of(pack)
        if number is None:
            return
        key = object_id + number
        record = self._transaction.get(OBJECTS, key)
        if record is not None:
            self._has_marked = True
            place, _ = decode_place(key, record, pack)
            self._transaction.put(OBJECTS, key, encode_place(key, place, is_bad=True))

    def _number_of(self, pack: PackId) -> bytes | None:
        number = self._transaction.get(NUMBERS, pack)
        return None if number is None else unseal(pack, number)

    def _numbers(self) -> Numbers:
        record = self._transaction.get(LAYOUTS, LAYOUT_KEY)
        if record is None or unseal(LAYOUT_KEY, record) != LAYOUT:
            raise BrokenIndex("index: it does not tell what is stored against an object; run `moonclip reindex`")
        return Numbers(cache(self._number_of), cache(partial(_pack_of, self._transaction)))

    def _number_pack(self, pack: PackId) -> int:
        last = self._transaction.last_item(PACKS)
        if last is not None:
            unseal(*last)  # a garbled number must not be counted on from
        else:
            self._transaction.put(LAYOUTS, LAYOUT_KEY, seal(LAYOUT_KEY, LAYOUT))
        number: int = PACK_NUMBER.unpack(last[0])[0] + 1 if last is not None else 0
        key = PACK_NUMBER.pack(number)
        self._transaction.put(PACKS, key, seal(key, pack))
        self._transaction.put(NUMBERS, pack, seal(pack, key))
        return number


def places_of(transaction: Transaction, object_id: ObjectId) -> list[Place]:
    """Good copies of an object, the shallowest first.

    Raises:
        BrokenIndex: a record is garbled.
    """
    return _good_places(transaction.prefixed(OBJECTS, object_id), partial(_pack_of, transaction))


def places_of_each(transaction: Transaction, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
    """Of each object what :func:`places_of` gives.

    Raises:
        BrokenIndex: a record is garbled.
    """
    found = transaction.each_prefixed(OBJECTS, object_ids)
    packs: dict[bytes, PackId] = {}

    def pack_of(number: bytes) -> PackId:
        if number not in packs:
            packs[number] = _pack_of(transaction, number)
        return packs[number]

    return {
        object_id: _good_places(records, pack_of) if records else []
        for object_id, records in zip(object_ids, found, strict=True)
    }


def _good_places(records: Iterable[tuple[bytes, bytes]], pack_of: Callable[[bytes], PackId]) -> list[Place]:
    good: list[Place] = []
    for key, record in records:
        place, is_bad = decode_place(key, record, pack_of(key[ID_BYTES:]))
        if not is_bad:
            good.append(place)
    return sorted(good, key=lambda place: place.depth) if len(good) > 1 else good


def row_of(transaction: Transaction, commit_id: CommitId) -> CommitRow | None:
    """The row of a commit.

    Raises:
        BrokenIndex: the record is garbled.
    """
    record = transaction.get(COMMITS, commit_id)
    return decode_row(commit_id, record) if record is not None else None


def last_sequence(transaction: Transaction) -> int:
    """Sequence of the commit that arrived last, 0 if there is none.

    Raises:
        BrokenIndex: the record is garbled or lost.
    """
    record = transaction.get(SEQUENCE, _LAST)
    if record is not None:
        sequence: int = SEQUENCE_KEY.unpack(unseal(_LAST, record))[0]
        return sequence
    if transaction.last_item(SEQUENCE) is not None:
        raise BrokenIndex("index: how many commits there are is lost; run `moonclip reindex`")
    return 0


def _pack_of(transaction: Transaction, number: bytes) -> PackId:
    record = transaction.get(PACKS, number)
    if record is None:
        raise BrokenIndex(f"index: no pack has number {number.hex()}; run `moonclip reindex`")
    return PackId(unseal(number, record))
