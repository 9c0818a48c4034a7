"""Records of the index and their bytes. Pure.

LMDB gives back what a flipped bit made of a page without a word: every record ends in an xxh3-64 of its key and body.
"""

import struct
from dataclasses import dataclass
from typing import Final, NamedTuple

from xxhash import xxh3_64_digest

from ..errors import Corrupt
from ..format import canonical
from ..format.objects import Kind
from ..ids import ID_BYTES, CommitId, ObjectId, PackId

LAYOUT_KEY: Final = b"layout"
LAYOUT: Final = b"2"
"""Which tables an index has. What was written before there was one that tells of deltas has no such record."""

PACK_NUMBER: Final = struct.Struct(">I")
"""Packs are numbered, so that a record need not hold 32 bytes of id. Big-endian: keys sort by number."""

SEQUENCE_KEY: Final = struct.Struct(">Q")
"""Key of a commit by its place in the order of arrival. Big-endian, for the same reason."""

_PLACE: Final = struct.Struct("<BBBxIIQ")
PLACE_BYTES: Final = _PLACE.size
"""Of a place's record what comes before its base."""

IS_BAD, HAS_BASE, _FLAGS_OFFSET = 1, 2, 1
CHECK_BYTES: Final = 8
_KINDS: Final = {int(kind): kind for kind in Kind}


class BrokenIndex(Corrupt):
    """The index cannot be used: truncated, garbled, or written by another version. It can be rebuilt from packs."""

    kind = "broken-index"


class Place(NamedTuple):  # made in every look-up, and a frozen dataclass takes thrice the time
    """Where one copy of an object is.

    Attributes:
        pack: the pack.
        offset: where in the pack it begins.
        stored_bytes: its length there.
        raw_bytes: its length once decoded.
        kind: what it is.
        base: the object it is a delta against, or ``None``.
        depth: how many objects have to be decoded before it.
    """

    pack: PackId
    offset: int
    stored_bytes: int
    raw_bytes: int
    kind: Kind
    base: ObjectId | None
    depth: int


WalkedPlace = tuple[ObjectId, PackId, int, int, int, ObjectId | None, bool]
"""Object, pack, kind, stored bytes, depth, base, and whether the copy is known to be bad. As plain as can be, for walks
over a million of them."""


@dataclass(frozen=True, slots=True)
class CommitRow:
    """A commit, as far as walks over history need it.

    Attributes:
        id: the commit.
        parents: its parents.
        step: training step, or ``None``.
        time_ns: when it was made.
        branch: branch it was made on.
        sequence: its place in the order of arrival here; greater than its parents'.
    """

    id: CommitId
    parents: tuple[CommitId, ...]
    step: int | None
    time_ns: int
    branch: str
    sequence: int


def place_key(object_id: ObjectId, pack_number: int) -> bytes:
    """Key of a copy: an object's copies lie side by side."""
    return object_id + PACK_NUMBER.pack(pack_number)


def delta_key(base: ObjectId, key: bytes) -> bytes:
    """Key that tells of a copy, by its own key, that it is stored against ``base``: those of one base lie together."""
    return base + key


class Version(NamedTuple):
    """An index at some moment: of one version all handles, in all processes, have the same content.

    Attributes:
        file: inode and device of its file, another one after each rebuild. Names come again where somebody deletes the
            index's directory.
        number: of the last transaction that wrote to it.
    """

    file: tuple[int, int]
    number: int

    @property
    def next(self) -> "Version":
        """What it will be after one more transaction that writes."""
        return Version(self.file, self.number + 1)


def encode_place(key: bytes, place: Place, *, is_bad: bool) -> bytes:
    """Record of a copy. Of its pack the key has the number alone; the check covers its id, as numbers get garbled."""
    flags = (IS_BAD if is_bad else 0) | (HAS_BASE if place.base is not None else 0)
    body = _PLACE.pack(place.kind, flags, place.depth, place.stored_bytes, place.raw_bytes, place.offset)
    return seal(key + place.pack, body + (place.base or b""))


def decode_place(key: bytes, record: bytes, pack: PackId) -> tuple[Place, bool]:
    """The place, and whether the copy is known to be bad.

    Raises:
        BrokenIndex: the record is not what was written, or for another pack.
    """
    body = unseal(key + pack, record)
    kind, flags, depth, stored_bytes, raw_bytes, offset = _PLACE.unpack(body[: _PLACE.size])
    base = ObjectId(body[_PLACE.size :]) if flags & HAS_BASE else None
    return Place(pack, offset, stored_bytes, raw_bytes, _KINDS[kind], base, depth), bool(flags & IS_BAD)


def is_good(key: bytes, record: bytes, pack: PackId) -> bool:
    """Whether a copy is not known to be bad.

    Raises:
        BrokenIndex: the record is not what was written, or for another pack.
    """
    return not unseal(key + pack, record)[_FLAGS_OFFSET] & IS_BAD


def encode_row(row: CommitRow) -> bytes:
    """Record of a commit."""
    return seal(row.id, canonical.encode([row.sequence, row.step, row.time_ns, row.branch, list(row.parents)]))


def decode_row(commit_id: CommitId, record: bytes) -> CommitRow:
    """Inverse of :func:`encode_row`.

    Raises:
        BrokenIndex: the record is not what was written.
    """
    sequence, step, time_ns, branch, parents = canonical.parse(unseal(commit_id, record), "commit record")
    return CommitRow(commit_id, tuple(parents), step, time_ns, branch, sequence)


def seal(key: bytes, body: bytes) -> bytes:
    """Append the check."""
    return body + xxh3_64_digest(key + body)


def unseal(key: bytes, record: bytes) -> bytes:
    """Compare the check and take it off.

    Raises:
        BrokenIndex: it differs.
    """
    body, check = record[:-CHECK_BYTES], record[-CHECK_BYTES:]
    if xxh3_64_digest(key + body) != check:
        raise BrokenIndex(f"index record {key[:ID_BYTES].hex()} is garbled; run `moonclip reindex`", key=key.hex())
    return body
