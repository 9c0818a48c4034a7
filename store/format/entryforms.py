"""Leaves of trees, read by what their entries have in common.

A model's entries differ in name, position and content. What else they say, their *form*, comes again and again: it is
decoded and checked once, and afterwards recognised by its bytes. An expression finds the parts. It knows the canonical
encoding only, and each part says where it ends, so that bytes of a known form around such parts are the canonical
encoding of just that entry. Whatever it does not know is decoded alone; what is not well-formed is left to ``objects``.

Spec: docs/format.md §4.2.
"""

import re
from collections.abc import Callable
from typing import Final

from ..errors import Corrupt, Incompatible
from ..ids import ID_BYTES, ChunkId, ObjectId
from ..limits import MAX_TREE_NODES
from . import canonical, fields
from .canonical import SHORTEST
from .entries import ContainerEntry, Entry, Piece, TensorEntry, decode_entry, encode_entry

_Make = Callable[[int, bytes | None], Entry]
"""An entry of some form, from its position and either its chunks' ids as they are encoded or its inline bytes."""

_KEPT: Final = 1024
"""Layers have tensors of the same sizes."""

_COUNT: Final = (
    rb"(?:[\x00-\x17]|\x18[\x18-\xff]|\x19(?!\x00)[\x00-\xff]{2}|\x1a(?!\x00{2})[\x00-\xff]{4}"
    rb"|\x1b(?!\x00{4})[\x00-\x7f][\x00-\xff]{7})"
)
"""An integer below 2⁶³, in as few bytes as hold it."""
_COUNTS: Final = rb"[\x80-\x97]" + _COUNT + rb"*"
_IDS: Final = rb"(?:\x58\x20[\x00-\xff]{32})+"
_INLINE: Final = b"|".join(
    [rb"\x%02x[\x00-\xff]{%d}" % (0x40 + size, size) for size in (1, 2, 4, 8, 12, 16, 20)]
    + [rb"\x58\x%02x[\x00-\xff]{%d}" % (size, size) for size in (*range(24, 128, 4), *range(128, 256, 16))]
    + [rb"\x59\x01\x00[\x00-\xff]{256}"]
)
"""Bytes of a scalar or a small vector."""
_WORD: Final = rb"[\x60-\x77][A-Za-z0-9_]*"

_BODY: Final = re.compile(
    rb"\xa1(?:ftensor([\xa4-\xa6])edtype(" + _WORD + rb")"
    rb"(?:fpieces\x81\xa4fchunks([\x81-\x97])(" + _IDS + rb")"
    rb"(dcuts[\x81-\x97](?:\x82" + _COUNT * 2 + rb")+goffsets" + _COUNTS + rb"esizes" + _COUNTS + rb")"
    rb"|finline(" + _INLINE + rb"))"
    rb"hposition(" + _COUNT + rb")(escale\x42[\x00-\xff]{2})?eshape(" + _COUNTS + rb")(fstored" + _WORD + rb")?"
    rb"|icontainer\xa3dinfo\xf6hposition(" + _COUNT + rb")dtype(" + _WORD + rb"))"
)
"""After the name: a tensor in one piece, a scalar, or a container of which nothing more is to be said."""

_HEADS: Final = (b"\xa1gentries", b"\xa2gentries")
"""Of a tree object with entries: nothing else, or ties behind them."""

_TIES: Final = b"dties"
_BODY_DEPTH: Final = 3
"""In how many lists and maps the body of an entry lies."""

_PAIR: Final = 0x82
_NAMELESS: Final = b"\x82\x60"
_ENCODED_ID_BYTES: Final = 2 + ID_BYTES

Entries = tuple[tuple[str, Entry], ...]
Ties = tuple[tuple[str, ...], ...]

_known: dict[tuple[bytes | int | None, ...], _Make] = {}


def read_leaf(data: bytes) -> tuple[Entries, Ties] | None:
    """What is in a tree object without sub-trees.

    Args:
        data: its encoding, untrusted.

    Returns:
        (name, entry) in the order of names, and groups of names of one tensor; ``None`` if there is anything in it that
        takes a closer look.

    Cost: 4 µs for an entry of a known form, a quarter of the general way; 20 µs for any other.
    """
    if len(data) > MAX_TREE_NODES or not data.startswith(_HEADS):
        return None
    try:
        entries, end = _entries(data)
        return entries, _ties(data, end)
    except (Corrupt, Incompatible, *fields.MALFORMED):  # the general way says what is wrong
        return None


def _entries(data: bytes) -> tuple[Entries, int]:
    """The entries, and where they end."""
    entry_count, at = _argument(data, len(_HEADS[0]), 0x80)
    entries: list[tuple[str, Entry]] = []
    last = None
    for _ in range(entry_count):
        if data[at] != _PAIR:
            raise Corrupt("a pair expected")
        name_bytes, at = _argument(data, at + 1, 0x60)
        name = data[at : at + name_bytes]
        if last is not None and name <= last:
            raise Corrupt("names not sorted and unique")
        entry, at = _entry(data, at + name_bytes)
        entries.append((name.decode(), entry))
        last = name
    return tuple(entries), at


def _entry(data: bytes, at: int) -> tuple[Entry, int]:
    """The entry whose body begins there, and where that ends."""
    found = _BODY.match(data, at)
    if found is not None:
        key_count, dtype, head, ids, rest, inline, position, scale, shape, stored, container_position, container = (
            found.groups()
        )
        form = (key_count, dtype, head, rest, inline and len(inline), scale, shape, stored, container)
        make = _known.get(form) or _met(form, found[0])
        if make is not None:
            return make(_number(position or container_position), ids or inline), found.end()
    body, end = canonical.parse_part(data, at, _BODY_DEPTH, "entry")
    return _checked(body, data[at:end]), end


def _ties(data: bytes, at: int) -> Ties:
    """What is behind the entries, which has to end where the object does."""
    if data.startswith(_HEADS[0]):
        if at != len(data):
            raise Corrupt("something behind the entries")
        return ()
    encoded = data[at + len(_TIES) :]
    ties = tuple(tuple(fields.text(name, "ties") for name in names) for names in canonical.parse(encoded, "ties"))
    if not data.startswith(_TIES, at) or not ties or any(len(names) < 2 for names in ties):
        raise Corrupt("ties expected")
    if canonical.encode([list(names) for names in ties]) != encoded:
        raise Corrupt("not the canonical encoding of its content")
    return ties


def _argument(data: bytes, at: int, major: int) -> tuple[int, int]:
    """Length of text or of a list, and where it begins.

    Raises:
        Corrupt: something else, not in as few bytes as hold it, or more than 65,535.
    """
    short = data[at] - major
    if 0 <= short < SHORTEST:
        return short, at + 1
    width = short - SHORTEST + 1
    length = int.from_bytes(data[at + 1 : at + 1 + width])
    if width not in (1, 2) or length < (SHORTEST, 256)[width - 1]:
        raise Corrupt("a length that is not canonical")
    return length, at + 1 + width


def _number(encoded: bytes) -> int:
    return int.from_bytes(encoded[1:]) if len(encoded) > 1 else encoded[0]


def _met(form: tuple[bytes | int | None, ...], body: bytes) -> _Make | None:
    """Learn a form from the first entry of it, which is decoded and checked in full; ``None`` if it is none."""
    try:
        make = _maker(_checked(canonical.parse(body, "entry"), body))
    except (Corrupt, *fields.MALFORMED):
        return None
    if len(_known) >= _KEPT:
        _known.clear()
    _known[form] = make
    return make


def _checked(node: canonical.Node, body: bytes) -> Entry:
    """The entry that a body decodes to.

    Raises:
        Corrupt: it is not well-formed, or not encoded so. Malformed ones may raise what Python raises.
    """
    entry = decode_entry(node, "entry")
    if encode_entry("", entry) != _NAMELESS + body:
        raise Corrupt("not the canonical encoding of its content")
    return entry


def _maker(entry: Entry) -> _Make:
    if isinstance(entry, ContainerEntry):
        kind = entry.container
        return lambda position, _: ContainerEntry(position, kind)
    assert isinstance(entry, TensorEntry)
    dtype, shape, cast = entry.dtype, entry.shape, (entry.stored, entry.scale)
    if entry.inline is not None:
        size_bytes = len(entry.inline)
        return lambda position, inline: TensorEntry(position, dtype, shape, (), inline and inline[-size_bytes:], *cast)
    (piece,) = entry.pieces
    offsets, sizes, cuts = piece.offsets, piece.sizes, piece.cuts

    def make(position: int, ids: bytes | None) -> TensorEntry:
        return TensorEntry(position, dtype, shape, (Piece(offsets, sizes, cuts, _ids_in(ids, len(cuts))),), None, *cast)

    return make


def _ids_in(encoded: bytes | None, count: int) -> tuple[ChunkId, ...]:
    if encoded is None or len(encoded) != count * _ENCODED_ID_BYTES:
        raise Corrupt("as many cuts as chunks expected")
    starts = range(2, len(encoded), _ENCODED_ID_BYTES)
    return tuple([ChunkId(ObjectId(encoded[start : start + ID_BYTES])) for start in starts])
