"""Reading tensors that were cast: planned as if they had not been, and widened on the way to their place. Pure."""

from collections.abc import Callable
from dataclasses import replace
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..codec import widening
from ..format.dtypes import dtype
from ..format.entries import Piece, TensorEntry
from ..ids import ChunkId, ObjectId
from .copies import CastCopy, Copy

_NUMBER_BYTES = 4


class _Place(NamedTuple):
    """A chunk of a piece.

    Attributes:
        chunk: the chunk.
        chunk_bytes: its length.
        first: number of its first element, counted from row 0 of a tensor with as many columns as the piece.
        columns: elements of a row of the piece.
    """

    chunk: ChunkId
    chunk_bytes: int
    first: int
    columns: int


def restored(entry: TensorEntry, plan: Callable[[TensorEntry], list[Copy]]) -> list[Copy]:
    """Plan to read a tensor that was cast.

    Args:
        entry: the tensor, whose chunks hold its elements in another dtype.
        plan: plans to read from an entry whose chunks hold them in its own.
    """
    assert entry.stored is not None
    if entry.inline is not None:
        casting = widening(entry.dtype, entry.stored, entry.scale, prod(entry.shape[1:]))
        return plan(replace(entry, inline=bytes(casting.new(entry.inline, 0)), stored=None, scale=b""))
    places = [place for piece in entry.pieces for place in _places(piece, dtype(entry.stored).item_bytes)]
    copies = plan(_as_if_not_cast(entry, entry.stored))
    return [_cast(entry, entry.stored, places[int.from_bytes(copy.chunk)], copy) for copy in copies]


def _places(piece: Piece, item_bytes: int) -> list[_Place]:
    columns = prod(piece.sizes[1:])
    before = (piece.offsets[0] if piece.offsets else 0) * columns
    starts = accumulate(piece.cuts, initial=0)
    return [
        _Place(chunk, cut, before + start // item_bytes, columns)
        for chunk, cut, start in zip(piece.chunks, piece.cuts, starts, strict=False)
    ]


def _as_if_not_cast(entry: TensorEntry, stored: str) -> TensorEntry:
    """The entry with chunks as long as they will be. Numbers stand for their ids: one may be in several places."""
    ratio = dtype(entry.dtype).item_bytes // dtype(stored).item_bytes
    pieces, number = [], 0
    for piece in entry.pieces:
        numbers = range(number, number + len(piece.chunks))
        chunks = tuple(ChunkId(ObjectId(each.to_bytes(_NUMBER_BYTES))) for each in numbers)
        pieces.append(replace(piece, cuts=tuple(cut * ratio for cut in piece.cuts), chunks=chunks))
        number += len(chunks)
    return replace(entry, pieces=tuple(pieces), stored=None, scale=b"")


def _cast(entry: TensorEntry, stored: str, place: _Place, copy: Copy) -> CastCopy:
    assert not isinstance(copy, CastCopy)
    casting = widening(entry.dtype, stored, entry.scale, place.columns)
    return CastCopy(place.chunk, place.chunk_bytes, copy, casting, place.first)
