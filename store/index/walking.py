"""All places of an index, page by page: a walk that holds no transaction between pages."""

import struct
from typing import Final

from xxhash import xxh3_64_digest

from ..ids import ID_BYTES, ObjectId, PackId
from .environment import Environment
from .records import CHECK_BYTES, HAS_BASE, IS_BAD, PLACE_BYTES, BrokenIndex, WalkedPlace, unseal
from .transaction import OBJECTS, PACKS, Transaction

PAGE_COUNT: Final = 2_000
"""Places that are read in one transaction: some 3 ms, in which pages that others free are not used again."""

_FIELDS: Final = struct.Struct("<BBBxI")
_NUMBER_AT: Final = 1 + ID_BYTES


class Walk:
    """A walk over the places of one index, in the order of the objects' ids.

    Places that are added or removed meanwhile may be among them or not.
    """

    def __init__(self) -> None:
        self._after = b""
        self._environment: Environment | None = None
        self._packs: dict[bytes, PackId] = {}

    def page(self, environment: Environment) -> list[WalkedPlace]:
        """The places that follow; none at the end.

        Raises:
            BrokenIndex: a record is garbled.

        Cost: 1.3 µs a place.
        """
        if environment is not self._environment:  # another index numbers packs in its own way
            self._environment, self._packs = environment, {}
        return environment.read(self._read)

    def _read(self, transaction: Transaction) -> list[WalkedPlace]:
        found: list[WalkedPlace] = []
        records = transaction.page(OBJECTS, self._after, PAGE_COUNT)
        for key, record in records:
            number = key[_NUMBER_AT:]
            pack = self._packs.get(number) or self._pack(transaction, number)
            if xxh3_64_digest(key[1:] + pack + record[:-CHECK_BYTES]) != record[-CHECK_BYTES:]:
                raise BrokenIndex(f"index record {key[1:_NUMBER_AT].hex()} is garbled; run `moonclip reindex`")
            kind, flags, depth, stored_bytes = _FIELDS.unpack_from(record)
            base = ObjectId(record[PLACE_BYTES:-CHECK_BYTES]) if flags & HAS_BASE else None
            found.append((ObjectId(key[1:_NUMBER_AT]), pack, kind, stored_bytes, depth, base, flags & IS_BAD != 0))
        if records:
            self._after = records[-1][0][1:] + b"\0"
        return found

    def _pack(self, transaction: Transaction, number: bytes) -> PackId:
        record = transaction.get(PACKS, number)
        if record is None:
            raise BrokenIndex(f"index: no pack has number {number.hex()}; run `moonclip reindex`")
        self._packs[number] = pack = PackId(unseal(number, record))
        return pack
