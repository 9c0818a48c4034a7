"""What a rank compares its boxes with and stores them against: its last save, or what it resumed.

Chunks are found by place, so that it does not matter how the pieces are put together in which they lie: by the columns
that a box takes and the byte, within these columns, at which the chunk begins.
"""

from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..boxes import Box
from ..errors import Corrupt, NotFound
from ..format.dtypes import dtype as dtype_of
from ..format.entries import Entry, Piece, TensorEntry
from ..format.trees import Tree
from ..ids import ChunkId, TreeId
from ..reading.reader import ObjectReader
from .bases import Base
from .rankindex import Excerpt


class ChunkAt(NamedTuple):
    """Where a chunk lies in its tensor, whatever else is stored with it.

    Attributes:
        columns: offsets and sizes in all dims but the first.
        start: byte at which it begins, among all rows of these columns.
    """

    columns: Box
    start: int


class Remembered(NamedTuple):
    """What a rank last stored of a tensor.

    Attributes:
        dtype: dtype name.
        pieces: the boxes.
        buffers: the raw bytes of each, unaltered since.
    """

    dtype: str
    pieces: tuple[Piece, ...]
    buffers: tuple[memoryview, ...]


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

    def of_tensor(self, item: str, name: str, dtype: str) -> Mapping[ChunkAt, Base]:
        """Bases of a tensor's chunks: none if there is no such tensor, or it has another dtype.

        Their lengths may differ from the chunks' that are stored now.
        """
        if self._memory is not None:
            known = self._memory.tensors.get((item, name))
            return dict(_in_memory(known)) if known is not None and known.dtype == dtype else {}
        entry = self._resumed(item).get(name)
        if not isinstance(entry, TensorEntry) or entry.dtype != dtype or entry.stored is not None:
            return {}
        item_bytes = dtype_of(dtype).item_bytes
        found: dict[ChunkAt, Base] = {}
        for piece in entry.pieces:
            places = places_of(Box(piece.offsets, piece.sizes), piece.cuts, item_bytes)
            found.update(zip(places, map(self._stored, piece.chunks), strict=True))
        return found

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

    def _stored(self, chunk: ChunkId) -> Base:
        return Base(chunk, None, lambda: memoryview(self._reader.chunk(chunk)))


def places_of(box: Box, cuts: tuple[int, ...], item_bytes: int) -> Iterator[ChunkAt]:
    """Where the chunks of a box lie."""
    columns = Box(box.offsets[1:], box.sizes[1:])
    first = box.offsets[0] * prod(columns.sizes) * item_bytes if box.offsets else 0
    return (ChunkAt(columns, first + stop - cut) for cut, stop in zip(cuts, accumulate(cuts), strict=True))


def _in_memory(known: Remembered) -> Iterator[tuple[ChunkAt, Base]]:
    item_bytes = dtype_of(known.dtype).item_bytes
    for piece, buffer in zip(known.pieces, known.buffers, strict=True):
        places = places_of(Box(piece.offsets, piece.sizes), piece.cuts, item_bytes)
        stops = accumulate(piece.cuts)
        for at, cut, stop, chunk in zip(places, piece.cuts, stops, piece.chunks, strict=True):
            raw = buffer[stop - cut : stop]
            yield at, Base(chunk, raw, lambda raw=raw: raw)  # type: ignore[misc]
