"""A rank's part of a snapshot: what it stored, in which packs, and the one encoding of that. Pure.

    magic 8 B | u32 rank | u32 number of packs | 32 B a pack | canonical CBOR | xxh3-128 of all that

Ids of packs come first and at a fixed place, because they keep packs from being swept: who sweeps looks at them, and
at nothing else, in every one of its transactions.
"""

import struct
from collections.abc import Callable, Mapping
from math import prod
from typing import Final, NamedTuple, TypeVar

from xxhash import xxh3_128_digest

from ..boxes import Box
from ..errors import Corrupt, Incompatible
from ..format import canonical, fields
from ..format.canonical import Node
from ..format.casts import require_cast
from ..format.dtypes import dtype as dtype_of
from ..format.entries import ContainerEntry, Piece, ValueEntry, decode_entry, encode_entry
from ..format.trees import Ties
from ..ids import ID_BYTES, ChunkId, PackId
from .pieces import UNCAST, BoxBytes, Cast

T = TypeVar("T")

PART_MAGIC: Final = b"\x89MCPART\n"
HEAD: Final = struct.Struct("<8sII")
_CHECK_BYTES: Final = 16


class TensorPart(NamedTuple):
    """What a rank stored of a tensor.

    Attributes:
        position: its place among its siblings.
        dtype: dtype name.
        shape: global shape.
        pieces: boxes that it stored as chunks.
        inline: boxes that are to sit in the tree.
        cast: how it was cast.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    inline: tuple[BoxBytes, ...] = ()
    cast: Cast = UNCAST

    @property
    def chunks(self) -> tuple[ChunkId, ...]:
        """Every chunk."""
        return tuple(chunk for piece in self.pieces for chunk in piece.chunks)


EntryPart = TensorPart | ValueEntry | ContainerEntry


class ItemPart(NamedTuple):
    """What a rank stored of an item.

    Attributes:
        entries: by name.
        ties: groups of names of one tensor.
    """

    entries: Mapping[str, EntryPart]
    ties: Ties = ()


class Part(NamedTuple):
    """What a rank stored.

    Attributes:
        rank: which.
        packs: that hold what it stored anew, durable under their names.
        items: by name.
    """

    rank: int
    packs: tuple[PackId, ...]
    items: Mapping[str, ItemPart]

    def encode(self) -> bytes:
        """Its file's content.

        Raises:
            Incompatible: a name that is no UTF-8, or a value that is not plain.
        """
        items = {
            name: [[_entry_node(*pair) for pair in item.entries.items()], [list(tie) for tie in item.ties]]
            for name, item in self.items.items()
        }
        head = HEAD.pack(PART_MAGIC, self.rank, len(self.packs))
        return sealed(b"".join((head, *self.packs, canonical.encode(items))))

    @classmethod
    def decode(cls, data: bytes, what: str) -> "Part":
        """Inverse of :meth:`encode`.

        Raises:
            Corrupt: it is no part, or a damaged one.
        """
        body = unsealed(data, what)
        rank, packs = decode_head(body, what)
        node = canonical.parse(body[HEAD.size + len(packs) * ID_BYTES :], what)
        items = built(what, lambda: {name: _item_from(each, f"{what}: {name!r}") for name, each in node.items()})
        return cls(rank, packs, items)


def sealed(body: bytes) -> bytes:
    """Bytes with their checksum behind them."""
    return body + xxh3_128_digest(body)


def unsealed(data: bytes, what: str) -> bytes:
    """Inverse of :func:`sealed`.

    Raises:
        Corrupt: the checksum is another.
    """
    body, check = data[:-_CHECK_BYTES], data[-_CHECK_BYTES:]
    fields.require(xxh3_128_digest(body) == check, what, "its checksum does not fit")
    return body


def built(what: str, build: Callable[[], T]) -> T:
    """What ``build`` makes of a decoded node.

    Raises:
        Corrupt: the node is malformed.
    """
    try:
        return build()
    except Incompatible as error:
        raise Corrupt(f"{what}: {error}") from error
    except Corrupt:
        raise
    except (KeyError, ValueError, TypeError, IndexError, AttributeError) as error:
        raise Corrupt(f"{what}: malformed ({type(error).__name__}: {error})") from error


def decode_head(data: bytes, what: str) -> tuple[int, tuple[PackId, ...]]:
    """Rank and packs, of a part's first bytes.

    Raises:
        Corrupt: they are no part's, or too few.
    """
    fields.require(len(data) >= HEAD.size, what, "too short for a part")
    magic, rank, count = HEAD.unpack_from(data)
    fields.require(magic == PART_MAGIC, what, "not a part of a snapshot")
    fields.require(len(data) >= HEAD.size + count * ID_BYTES, what, "ids of packs are cut off")
    starts = range(HEAD.size, HEAD.size + count * ID_BYTES, ID_BYTES)
    return rank, tuple(PackId(bytes(data[start : start + ID_BYTES])) for start in starts)


def _entry_node(name: str, entry: EntryPart) -> Node:
    if not isinstance(entry, TensorPart):
        return [name, encode_entry(name, entry)]
    pieces = [[list(p.offsets), list(p.sizes), list(p.cuts), b"".join(p.chunks)] for p in entry.pieces]
    inline = [[list(each.box.offsets), list(each.box.sizes), bytes(each.data)] for each in entry.inline]
    return [name, entry.position, entry.dtype, list(entry.shape), pieces, inline, list(entry.cast)]


def _item_from(node: Node, what: str) -> ItemPart:
    entries, ties = node
    return ItemPart(
        {fields.text(each[0], what): _entry_from(each, what) for each in entries},
        tuple(tuple(fields.text(name, what) for name in names) for names in ties),
    )


def _entry_from(node: Node, what: str) -> EntryPart:
    if len(node) == 2:
        name, encoded = node
        _, body = canonical.decode(encoded, what)
        entry = decode_entry(body, f"{what}: {name!r}")
        assert isinstance(entry, ValueEntry | ContainerEntry)
        return entry
    _, position, dtype, sizes, pieces, inline, (stored, scale) = node
    shape = _counts(sizes, what)
    item_bytes = dtype_of(fields.text(dtype, what)).item_bytes
    fields.require(type(scale) is bytes, what, "a scale that is no bytes")
    if stored is not None:
        require_cast(dtype, fields.text(stored, what), shape, scale or None, what)
        item_bytes = dtype_of(stored).item_bytes
    return TensorPart(
        fields.count(position, what),
        dtype,
        shape,
        tuple(_piece_from(piece, item_bytes, what) for piece in pieces),
        tuple(BoxBytes(Box(_counts(low, what), _counts(extent, what)), bytes(data)) for low, extent, data in inline),
        Cast(stored, scale),
    )


def _piece_from(node: Node, item_bytes: int, what: str) -> Piece:
    offsets, sizes, cuts = (_counts(each, what) for each in node[:3])
    joined = node[3]
    fields.require(type(joined) is bytes and len(joined) == ID_BYTES * len(cuts), what, "as many cuts as chunks")
    fields.require(sum(cuts) == prod(sizes) * item_bytes, what, "chunks do not fill their piece")
    fields.require(all(cut > 0 and cut % item_bytes == 0 for cut in cuts), what, "a chunk's length is none")
    chunks = tuple(fields.object_id(joined[at : at + ID_BYTES], what) for at in range(0, len(joined), ID_BYTES))
    return Piece(offsets, sizes, cuts, tuple(ChunkId(chunk) for chunk in chunks))


def _counts(node: Node, what: str) -> tuple[int, ...]:
    return tuple(fields.count(each, what) for each in node)
