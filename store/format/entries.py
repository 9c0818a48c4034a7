"""Entries of trees: what a name stands for, and the one canonical encoding of that. Pure.

Spec: docs/format.md §4.2.
"""

from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache
from itertools import groupby
from math import prod

from ..boxes import Box, overlap_among
from ..errors import Corrupt, Incompatible
from ..ids import ChunkId
from ..limits import (
    MAX_CHUNK_BYTES,
    MAX_DIMENSIONS,
    MAX_INLINE_BYTES,
    MAX_INLINE_VALUE_BYTES,
    MAX_NAME_BYTES,
    MAX_PIECES,
)
from . import canonical, casts, fields, values
from .canonical import Node, blob, count, counts, join_list, template, text
from .dtypes import dtype as dtype_of
from .values import Plain

_RUNS_KEPT = 1024
"""Layers have tensors of the same sizes."""


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a global tensor and the chunks that hold it, in C order of the box.

    Attributes:
        offsets: first index of the box in each dim of the global tensor.
        sizes: extent of the box in each dim.
        cuts: bytes of each chunk, as it was cut.
        chunks: ids, as many as ``cuts``.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    cuts: tuple[int, ...]
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor, complete in itself.

    Attributes:
        position: its place among its siblings in what the user saved.
        dtype: dtype name, see ``store.format.dtypes``.
        shape: global shape.
        pieces: boxes that tile ``shape``; empty when inline.
        inline: the bytes themselves, if at most ``MAX_INLINE_BYTES`` (zero-size tensors too), else ``None``.
        stored: dtype name of what ``pieces`` or ``inline`` hold, if the tensor was cast, else ``None``.
        scale: exponents of what it was divided by, see ``store.format.casts``; empty if it was not.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    inline: bytes | None = None
    stored: str | None = None
    scale: bytes = b""

    @property
    def size_bytes(self) -> int:
        """Raw bytes of the whole tensor, as it is when it is restored."""
        return prod(self.shape) * dtype_of(self.dtype).item_bytes

    @property
    def stored_dtype(self) -> str:
        """Dtype name of what its chunks hold."""
        return self.stored or self.dtype

    @property
    def chunks(self) -> tuple[ChunkId, ...]:
        """Every chunk, piece after piece."""
        if len(self.pieces) == 1:
            return self.pieces[0].chunks
        return tuple(chunk for piece in self.pieces for chunk in piece.chunks)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Bytes of each chunk in ``chunks``."""
        if len(self.pieces) == 1:
            return self.pieces[0].cuts
        return tuple(cut for piece in self.pieces for cut in piece.cuts)


@dataclass(frozen=True, slots=True)
class ValueEntry:
    """A value: its canonical encoding, inline or, when it is large, cut into chunks.

    Attributes:
        position: its place among its siblings.
        inline: canonical encoding of a typed value (``store.format.values``), or ``None`` when it is in chunks.
        cuts: bytes of each chunk.
        chunks: ids of the chunks that hold the encoding.
    """

    position: int
    inline: bytes | None = None
    cuts: tuple[int, ...] = ()
    chunks: tuple[ChunkId, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the value's encoding."""
        return len(self.inline) if self.inline is not None else sum(self.cuts)


@dataclass(frozen=True, slots=True)
class ContainerEntry:
    """A container that holds tensors somewhere below; its children are entries whose names continue its own.

    Attributes:
        position: its place among its siblings.
        container: what it is (``"dict"``, ``"list"``, ...); the layer above gives the word meaning.
        info: what else is needed to build it (a default factory, a class name), a plain value.
    """

    position: int
    container: str
    info: Plain = None

    @property
    def chunks(self) -> tuple[ChunkId, ...]:
        """None of its own."""
        return ()


Entry = TensorEntry | ValueEntry | ContainerEntry


def check_name(name: str) -> None:
    """Check the name of an entry or item.

    Raises:
        Incompatible: too long, or not encodable as UTF-8.
    """
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise Incompatible(f"name {name!r} cannot be written as UTF-8", name=name) from None
    if size_bytes > MAX_NAME_BYTES:
        raise Incompatible(f"name of {size_bytes} bytes is longer than {MAX_NAME_BYTES}: {name[:80]!r}…", name=name)


def encode_entry(name: str, entry: Entry) -> bytes:
    """Canonical encoding of a name and what it stands for.

    Raises:
        Incompatible: text that is no UTF-8, a value that is not plain, or a tensor of too many dimensions.
    """
    return join_list((text(name), _encode(entry)))


def _encode(entry: Entry) -> bytes:
    if isinstance(entry, TensorEntry):
        return _TENSOR % _encode_tensor(entry)
    if isinstance(entry, ValueEntry):
        return _VALUE % _encode_value(entry)
    info = {"info": values.to_node(entry.info), "position": entry.position, "type": entry.container}
    return canonical.encode({"container": info})


def _encode_tensor(entry: TensorEntry) -> bytes:
    if len(entry.shape) > MAX_DIMENSIONS:
        raise Incompatible(f"a tensor of {len(entry.shape)} dimensions; at most {MAX_DIMENSIONS} can be kept")
    if not all(0 <= size < 1 << 63 for size in entry.shape):  # what has no elements may claim any; readers refuse these
        raise Incompatible(f"a tensor of shape {list(entry.shape)}: a size is from 0 to 2⁶³ - 1")
    dtype, position, shape = text(entry.dtype), count(entry.position), counts(entry.shape)
    if entry.stored is not None:
        return _encode_cast(entry, entry.stored)
    if entry.inline is not None:
        return _INLINE_TENSOR % (dtype, blob(entry.inline), position, shape)
    return _CUT_TENSOR % (dtype, _encode_pieces(entry), position, shape)


def _encode_cast(entry: TensorEntry, stored: str) -> bytes:
    key, content = ("inline", blob(entry.inline)) if entry.inline is not None else ("pieces", _encode_pieces(entry))
    before = (text(entry.dtype), content, count(entry.position))
    behind = (counts(entry.shape), text(stored))
    if not entry.scale:
        return template("dtype", key, "position", "shape", "stored") % (*before, *behind)
    return template("dtype", key, "position", "scale", "shape", "stored") % (*before, blob(entry.scale), *behind)


def _encode_pieces(entry: TensorEntry) -> bytes:
    return join_list([_encode_piece(piece) for piece in entry.pieces])


def _encode_value(entry: ValueEntry) -> bytes:
    if entry.inline is not None:
        return _INLINE_VALUE % (blob(entry.inline), count(entry.position))
    return _CUT_VALUE % (_encode_chunks(entry.chunks), _encode_runs(entry.cuts), count(entry.position))


def _encode_piece(piece: Piece) -> bytes:
    chunks, runs = _encode_chunks(piece.chunks), _encode_runs(piece.cuts)
    return _PIECE % (chunks, runs, counts(piece.offsets), counts(piece.sizes))


def _encode_chunks(chunks: Sequence[ChunkId]) -> bytes:
    return join_list([blob(chunk) for chunk in chunks])


@lru_cache(_RUNS_KEPT)
def _encode_runs(cuts: tuple[int, ...]) -> bytes:
    """Run-length form of the cuts: ``[[bytes, count], ...]``."""
    return join_list([counts((cut, sum(1 for _ in run))) for cut, run in groupby(cuts)])


_TENSOR, _VALUE = template("tensor"), template("value")
_INLINE_TENSOR = template("dtype", "inline", "position", "shape")
_CUT_TENSOR = template("dtype", "pieces", "position", "shape")
_INLINE_VALUE, _CUT_VALUE = template("inline", "position"), template("chunks", "cuts", "position")
_PIECE = template("chunks", "cuts", "offsets", "sizes")


def decode_entry(node: Node, what: str) -> Entry:
    """Inverse of :func:`encode_entry`.

    Args:
        node: what was decoded.
        what: named in the error.

    Raises:
        Corrupt: it is no well-formed entry. Malformed nodes may raise what Python raises; callers map that.
    """
    ((kind, body),) = node.items()
    position = fields.count(body["position"], what)
    if kind == "tensor":
        return _tensor_from(body, position, what)
    if kind == "value":
        if "inline" in body:
            fields.require(type(body["inline"]) is bytes, what, "inline bytes expected")
            fields.require(len(body["inline"]) <= MAX_INLINE_VALUE_BYTES, what, "inline value too large")
            return ValueEntry(position, inline=body["inline"])
        cuts, chunks = _chunks_from(body, what)
        fields.require(sum(cuts) > MAX_INLINE_VALUE_BYTES, what, "a value in chunks that belongs inline")
        return ValueEntry(position, cuts=cuts, chunks=chunks)
    if kind == "container":
        return ContainerEntry(position, fields.text(body["type"], what), values.from_node(body["info"], what))
    raise Corrupt(f"{what}: unknown kind of entry {kind!r}")


def _tensor_from(body: Node, position: int, what: str) -> TensorEntry:
    name, shape = fields.text(body["dtype"], what), tuple(fields.count(size, what) for size in body["shape"])
    fields.require(len(shape) <= MAX_DIMENSIONS, what, f"{len(shape)} dimensions")
    stored, scale = body.get("stored"), body.get("scale")
    if stored is not None or scale is not None:
        casts.require_cast(name, fields.text(stored, what), shape, scale, what)
    try:
        item_bytes = dtype_of(stored or name).item_bytes
    except Incompatible as error:
        raise Corrupt(f"{what}: {error}") from error
    size_bytes, cast = prod(shape) * item_bytes, (stored, scale or b"")
    if "inline" in body:
        inline = body["inline"]
        fields.require(type(inline) is bytes and len(inline) == size_bytes, what, "inline bytes do not fit the shape")
        fields.require(size_bytes <= MAX_INLINE_BYTES, what, "inline tensor too large")
        return TensorEntry(position, name, shape, (), inline, *cast)
    fields.require(size_bytes > MAX_INLINE_BYTES, what, "a tensor in chunks that belongs inline")
    pieces = tuple(_piece_from(piece, shape, item_bytes, what) for piece in body["pieces"])
    covered = sum(prod(piece.sizes) for piece in pieces) * item_bytes
    fields.require(covered == size_bytes, what, f"pieces cover {covered} of {size_bytes} bytes")
    fields.require(len(pieces) <= MAX_PIECES, what, f"{len(pieces)} pieces")
    boxes = [Box(piece.offsets, piece.sizes) for piece in pieces]
    fields.require(overlap_among(boxes) is None, what, "pieces overlap")  # so they tile: they cover its size, inside
    return TensorEntry(position, name, shape, pieces, None, *cast)


def _piece_from(body: Node, shape: tuple[int, ...], item_bytes: int, what: str) -> Piece:
    offsets = tuple(fields.count(offset, what) for offset in body["offsets"])
    sizes = tuple(fields.count(size, what) for size in body["sizes"])
    fields.require(len(offsets) == len(sizes) == len(shape), what, "piece of another rank than its tensor")
    inside = all(o + s <= whole for o, s, whole in zip(offsets, sizes, shape, strict=True))
    fields.require(inside, what, "piece reaches outside its tensor")
    cuts, chunks = _chunks_from(body, what)
    fields.require(sum(cuts) == prod(sizes) * item_bytes, what, "chunks do not fill their piece")
    fields.require(all(cut % item_bytes == 0 for cut in cuts), what, "a chunk holds part of an element")
    return Piece(offsets, sizes, cuts, chunks)


def _chunks_from(body: Node, what: str) -> tuple[tuple[int, ...], tuple[ChunkId, ...]]:
    chunks = tuple(ChunkId(fields.object_id(chunk, what)) for chunk in body["chunks"])
    runs = [(fields.count(cut, what), fields.count(count, what)) for cut, count in body["cuts"]]
    fields.require(sum(count for _, count in runs) == len(chunks), what, "as many cuts as chunks expected")
    fields.require(all(0 < cut <= MAX_CHUNK_BYTES for cut, _ in runs), what, "chunk length out of range")
    return tuple(cut for cut, count in runs for _ in range(count)), chunks
