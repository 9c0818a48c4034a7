"""What a rank compares its boxes with and stores them against: its last save, or what it resumed.

Chunks are found by place, so that it does not matter how the pieces are put together in which they lie: by the columns
that a box takes and the byte, within these columns, at which the chunk begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..boxes import Box
from ..codec import narrowing
from ..errors import Corrupt, NotFound, NotUnchanged
from ..format.dtypes import dtype as dtype_of
from ..format.entries import Entry, Piece, TensorEntry
from ..format.trees import Tree
from ..ids import ChunkId, TreeId
from ..reading.reader import ObjectReader
from .bases import Base
from .pieces import UNCAST, Cast
from .rankindex import Excerpt
from .shards import ShardsInput


class ChunkAt(NamedTuple):
    """Where a chunk lies in its tensor, whatever else is stored with it.

    Attributes:
        columns: offsets and sizes in all dims but the first.
        start: byte at which it begins, among all rows of these columns.
    """

    columns: Box
    start: int


class Elements(NamedTuple):
    """What memory holds of a chunk that is cast.

    Attributes:
        data: its elements.
        first: number of the first of them, among all rows of its columns.
    """

    data: memoryview
    first: int


class Remembered(NamedTuple):
    """What a rank last stored of a tensor.

    Attributes:
        dtype: dtype name.
        pieces: the boxes.
        buffers: the raw bytes of each, unaltered since; ``None`` of those that were not looked at.
        cast: how it was cast.
    """

    dtype: str
    pieces: tuple[Piece, ...]
    buffers: tuple[memoryview | None, ...]
    cast: Cast = UNCAST


@dataclass(frozen=True, slots=True)
class RankMemory:
    """What a rank remembers of a save, once that is committed.

    Attributes:
        tensors: what it stored, by item and name.
        excerpt: where the chunks of that lie.
        ordinal: grows by one with each save from here; staggers where delta chains restart.
    """

    tensors: Mapping[tuple[str, str], Remembered]
    excerpt: Excerpt
    ordinal: int


class RankBases:
    """Finds bases by place. For one thread.

    Args:
        reader: reads trees, and chunks that are in no buffer.
        memory: the rank's last committed save, if it has one.
        trees: what a rank without memory resumed, by item.
    """

    def __init__(self, reader: ObjectReader, memory: RankMemory | None, trees: Mapping[str, TreeId]) -> None:
        self._reader = reader
        self._memory = memory
        self._trees = {} if memory is not None else trees
        self._entries: dict[str, Mapping[str, Entry]] = {}

    def of_tensor(self, item: str, name: str, dtype: str, cast: Cast = UNCAST) -> Mapping[ChunkAt, Base]:
        """Bases of a tensor's chunks: none if there is no such tensor, or it has another dtype or is stored in another.

        Their lengths may differ from the chunks' that are stored now.
        """
        if self._memory is not None:
            known = self._memory.tensors.get((item, name))
            if known is None or (known.dtype, known.cast.stored) != (dtype, cast.stored):
                return {}
            return dict(self._in_memory(known, is_same_scale=known.cast == cast))
        entry = self._resumed(item).get(name)
        if not isinstance(entry, TensorEntry) or (entry.dtype, entry.stored) != (dtype, cast.stored):
            return {}
        item_bytes = dtype_of(entry.stored_dtype).item_bytes
        found: dict[ChunkAt, Base] = {}
        for piece in entry.pieces:
            places = places_of(Box(piece.offsets, piece.sizes), piece.cuts, item_bytes)
            found.update(zip(places, map(self._stored, piece.chunks), strict=True))
        return found

    def unchanged(self, item: str, name: str, given: ShardsInput, box: Box, cast: Cast) -> Piece:
        """A box of the last save that is as it was then.

        Raises:
            NotUnchanged: there is none, or it is stored otherwise than it is to be.
        """
        known = None if self._memory is None else self._memory.tensors.get((item, name))
        if known is not None and (known.dtype, known.cast) == (given.dtype, cast):
            for piece in known.pieces:
                if (piece.offsets, piece.sizes) == box:
                    return piece
        raise NotUnchanged(
            f"{item}::{name} is not as it was in the last save, or that is not known any more; save it again",
            item=item,
            name=name,
        )

    def _resumed(self, item: str) -> Mapping[str, Entry]:
        if item not in self._entries:
            self._entries[item] = self._read(item)
        return self._entries[item]

    def _read(self, item: str) -> Mapping[str, Entry]:
        root = self._trees.get(item)
        if root is None:
            return {}
        try:
            return dict(Tree(self._reader.tree_node(root), self._reader.tree_node))
        except (NotFound, Corrupt):
            return {}  # moved or damaged since the rank was told where it lies: all the worse for this one save

    def _in_memory(self, known: Remembered, *, is_same_scale: bool) -> Iterator[tuple[ChunkAt, Base]]:
        item_bytes = dtype_of(known.cast.stored or known.dtype).item_bytes
        for piece, buffer in zip(known.pieces, known.buffers, strict=True):
            places = places_of(Box(piece.offsets, piece.sizes), piece.cuts, item_bytes)
            found: Iterator[Base]
            if buffer is None:
                found = map(self._stored, piece.chunks)
            elif known.cast.stored is None:
                found = _as_they_are(piece, buffer)
            else:
                found = _cast_again(known, piece, buffer, is_same_scale=is_same_scale)
            yield from zip(places, found, strict=True)

    def _stored(self, chunk: ChunkId) -> Base:
        return Base(chunk, None, lambda: memoryview(self._reader.chunk(chunk)))


def places_of(box: Box, cuts: tuple[int, ...], item_bytes: int) -> Iterator[ChunkAt]:
    """Where the chunks of a box lie."""
    columns = Box(box.offsets[1:], box.sizes[1:])
    first = box.offsets[0] * prod(columns.sizes) * item_bytes if box.offsets else 0
    return (ChunkAt(columns, first + stop - cut) for cut, stop in zip(cuts, accumulate(cuts), strict=True))


def elements_of(box: Box, cuts: tuple[int, ...], cast_bytes: tuple[int, int], data: memoryview) -> Iterator[Elements]:
    """What memory holds of the chunks of a box that are cast.

    Args:
        box: the box.
        cuts: bytes of each chunk, as it is stored.
        cast_bytes: bytes of an element in memory, and of one that is stored.
        data: the box, as memory holds it.
    """
    before_bytes, after_bytes = cast_bytes
    above = box.offsets[0] * prod(box.sizes[1:]) if box.offsets else 0
    for cut, stop in zip(cuts, accumulate(cuts), strict=True):
        first, end = (stop - cut) // after_bytes, stop // after_bytes
        yield Elements(data[first * before_bytes : end * before_bytes], above + first)


def _as_they_are(piece: Piece, buffer: memoryview) -> Iterator[Base]:
    for chunk, cut, stop in zip(piece.chunks, piece.cuts, accumulate(piece.cuts), strict=True):
        raw = buffer[stop - cut : stop]
        yield Base(chunk, raw, lambda raw=raw: raw)  # type: ignore[misc]


def _cast_again(known: Remembered, piece: Piece, buffer: memoryview, *, is_same_scale: bool) -> Iterator[Base]:
    """Bases that lie in memory as they were before they were cast."""
    stored, scale = known.cast
    assert stored is not None
    casting = narrowing(known.dtype, stored, scale, prod(piece.sizes[1:]))
    elements = elements_of(
        Box(piece.offsets, piece.sizes), piece.cuts, (casting.source_bytes, casting.target_bytes), buffer
    )
    for chunk, (data, first) in zip(piece.chunks, elements, strict=True):
        yield Base(chunk, data if is_same_scale else None, partial(casting.new, data, first))
