"""Removing copies of objects, so that whatever stays can be read; and the depths of what stays.

A copy's depth is that of its base's shallowest copy and one more, or greater: so a reader who takes the shallowest copy
of each object in turn gets to the end. When the shallowest copy of an object goes, all that is stored against the
object gets deeper, and so does what is stored against that; the table of deltas tells what it is. A removal that would
leave a delta without its base, too deep, or in a cycle (which is too deep in the end) is refused, and changes nothing.
"""

from collections.abc import Callable, Iterable, Iterator
from typing import NamedTuple

from ..ids import ID_BYTES, ObjectId, PackId
from ..limits import MAX_CHAIN_DEPTH
from .records import BrokenIndex, Place, decode_place, delta_key, encode_place, unseal
from .transaction import DELTAS, OBJECTS, Transaction


class Copy(NamedTuple):
    """A copy of an object: the one in a pack."""

    id: ObjectId
    pack: PackId


class Unremoved(NamedTuple):
    """A copy that could not be removed.

    Attributes:
        copy: the copy.
        why: what would have come of it, for people.
    """

    copy: Copy
    why: str


class Numbers(NamedTuple):
    """Packs and their numbers, as a transaction has them.

    Attributes:
        of: number of a pack, ``None`` if it is unknown.
        pack: pack of a number.
    """

    of: Callable[[PackId], bytes | None]
    pack: Callable[[bytes], PackId]


def remove_copies(
    transaction: Transaction, copies: Iterable[Copy], numbers: Numbers, *, spare_last: bool
) -> list[Unremoved]:
    """Remove copies, each by itself, the deepest first. Those that are not there are passed over.

    Args:
        transaction: the transaction.
        copies: which.
        numbers: the packs.
        spare_last: refuse the last good copy of an object also where nothing is stored against it.

    Returns:
        Those that stay.

    Raises:
        BrokenIndex: a record is garbled or lost.
    """
    removal = _Removal(transaction, numbers)
    found = [_Found(copy, key, *at) for copy in copies if (key := _key(copy, numbers)) and (at := removal.place(key))]
    refused: list[Unremoved] = []
    for each in sorted(found, key=lambda each: -each.place.depth):  # deltas before their bases
        why = None if each.is_bad else removal.settle(each, spare_last=spare_last)
        if why is None:
            removal.forget(each)
        else:
            refused.append(Unremoved(each.copy, why))
    return refused


class _Found(NamedTuple):
    copy: Copy
    key: bytes
    place: Place
    is_bad: bool


def lower_depths(transaction: Transaction, object_ids: Iterable[ObjectId], numbers: Numbers) -> None:
    """Derive depths anew of what is stored against objects that may have got shallower copies, and so on.

    Raises:
        BrokenIndex: a record is garbled or lost.
    """
    _Removal(transaction, numbers).lower(object_ids)


def _key(copy: Copy, numbers: Numbers) -> bytes | None:
    number = numbers.of(copy.pack)
    return None if number is None else copy.id + number


class _Removal:
    def __init__(self, transaction: Transaction, numbers: Numbers) -> None:
        self._transaction = transaction
        self._pack = numbers.pack

    def place(self, key: bytes) -> tuple[Place, bool] | None:
        """What lies under a key, and whether it is bad."""
        record = self._transaction.get(OBJECTS, key)
        return None if record is None else decode_place(key, record, self._pack(key[ID_BYTES:]))

    def forget(self, gone: _Found) -> None:
        """Remove a copy on which nothing depends any more."""
        self._transaction.delete(OBJECTS, gone.key)
        if gone.place.base is not None:
            self._transaction.delete(DELTAS, delta_key(gone.place.base, gone.key))

    def settle(self, gone: _Found, *, spare_last: bool) -> str | None:
        """Deepen what is stored against an object that is about to lose a good copy; or say why it must not lose it.

        Nothing is changed unless all can be.
        """
        key = gone.key
        left = [other.depth for at, other in self._good(gone.copy.id) if at != key]
        if spare_last and not left:
            return "it is the only good copy"
        if left and min(left) <= gone.place.depth:
            return None
        deeper: dict[bytes, Place] = {}
        waiting = [(gone.copy.id, min(left, default=None))]
        while waiting:
            base, least = waiting.pop()
            for at, delta in self._deltas(base):
                known = deeper.get(at, delta)
                if at == key or (least is not None and known.depth > least):
                    continue
                if least is None or least >= MAX_CHAIN_DEPTH:
                    return _why(at, is_orphaned=least is None)
                deeper[at] = known._replace(depth=least + 1)
                above = ObjectId(at[:ID_BYTES])
                depths = [deeper.get(each, copy).depth for each, copy in self._good(above) if each != key]
                waiting.append((above, min(depths)))
        for at, delta in deeper.items():
            self._put(at, delta)
        return None

    def lower(self, object_ids: Iterable[ObjectId]) -> None:
        """See :func:`lower_depths`."""
        waiting = list(object_ids)
        while waiting:
            base = waiting.pop()
            least = min((place.depth for _, place in self._good(base)), default=MAX_CHAIN_DEPTH)
            for at, delta in list(self._deltas(base)):
                if delta.depth > least + 1:
                    self._put(at, delta._replace(depth=least + 1))
                    waiting.append(ObjectId(at[:ID_BYTES]))

    def _put(self, key: bytes, place: Place) -> None:
        self._transaction.put(OBJECTS, key, encode_place(key, place, is_bad=False))

    def _good(self, object_id: ObjectId) -> Iterator[tuple[bytes, Place]]:
        """Good copies of an object, each after its key."""
        for key, record in self._transaction.prefixed(OBJECTS, object_id):
            place, is_bad = decode_place(key, record, self._pack(key[ID_BYTES:]))
            if not is_bad:
                yield key, place

    def _deltas(self, base: ObjectId) -> Iterator[tuple[bytes, Place]]:
        """Good copies that are stored against an object, each after its key."""
        for key, record in self._transaction.prefixed(DELTAS, base):
            unseal(key, record)
            found = self.place(key[ID_BYTES:])
            if found is None or found[0].base != base:
                raise BrokenIndex(f"index: what is stored against object {base.hex()} is lost; run `moonclip reindex`")
            if not found[1]:
                yield key[ID_BYTES:], found[0]


def _why(delta: bytes, *, is_orphaned: bool) -> str:
    name = delta[:ID_BYTES].hex()
    return f"object {name} is stored against it" if is_orphaned else f"the chain of object {name} would be too deep"
