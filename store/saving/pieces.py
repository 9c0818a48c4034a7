"""A tensor that several writers store: where each cuts its boxes, and how what they wrote becomes one entry. Pure.

A box is cut where all rows of its columns would be, so that it does not matter who holds which rows: boxes of 1, 2, 4
and 8 ranks along dim 0 are the same chunks and, put together again, the same piece. (A rank's end that is not on the
grid of ``format.chunking`` costs one cut more, and the chunks before and behind it are still shared.)
"""

from collections.abc import Sequence
from itertools import accumulate, pairwise
from math import prod
from typing import NamedTuple

from ..boxes import Box, require_tiling
from ..errors import Incompatible
from ..format.chunking import tensor_cuts
from ..format.dtypes import dtype
from ..format.entries import Piece, TensorEntry
from ..ids import Buffer
from ..limits import MAX_INLINE_BYTES, MAX_PIECES
from ..strided import Moves, at, c_strides, move


class BoxBytes(NamedTuple):
    """The bytes of a box of a tensor that is small enough to sit in the tree.

    Attributes:
        box: the box.
        data: its elements in C order.
    """

    box: Box
    data: Buffer


class Cast(NamedTuple):
    """How a tensor was cast before it was stored.

    Attributes:
        stored: dtype name of what its pieces or bytes hold; ``None`` if it was not.
        scale: what it was divided by, see ``store.format.casts``.
    """

    stored: str | None = None
    scale: bytes = b""


UNCAST = Cast()


def is_inline(dtype_name: str, shape: tuple[int, ...]) -> bool:
    """Whether a tensor stored in a dtype has to sit in the tree, so that its writers hand over bytes and no chunks.

    Raises:
        Incompatible: an unknown dtype.
    """
    return prod(shape) * dtype(dtype_name).item_bytes <= MAX_INLINE_BYTES


def box_cuts(shape: tuple[int, ...], box: Box, item_bytes: int) -> tuple[int, ...]:
    """Lengths in bytes of the chunks of a box, in C order. Their sum is the box's size.

    Args:
        shape: the tensor's global shape.
        box: the part of it that is to be cut, which lies inside.
        item_bytes: bytes of one element.
    """
    if not shape:
        return tensor_cuts(shape, item_bytes)
    row_bytes = prod(box.sizes[1:]) * item_bytes
    start, stop = box.offsets[0] * row_bytes, (box.offsets[0] + box.sizes[0]) * row_bytes
    if start >= stop:
        return ()
    within = (end for end in accumulate(tensor_cuts((shape[0], *box.sizes[1:]), item_bytes)) if start < end < stop)
    return tuple(after - before for before, after in pairwise((start, *within, stop)))


def entry_of_pieces(
    what: str, position: int, dtype_name: str, shape: tuple[int, ...], pieces: Sequence[Piece], cast: Cast = UNCAST
) -> TensorEntry:
    """The entry of a tensor whose boxes were stored, in any order, by any number of writers.

    Raises:
        Incompatible: the pieces do not tile the shape, or are too many.
    """
    joined = merged(pieces)
    if len(joined) > MAX_PIECES:
        raise Incompatible(f"{what}: {len(joined)} pieces; a tensor has at most {MAX_PIECES}", tensor=what)
    require_tiling(what, shape, [Box(piece.offsets, piece.sizes) for piece in joined])
    return TensorEntry(position, dtype_name, shape, joined, None, *cast)


def entry_of_bytes(
    what: str, position: int, dtype_name: str, shape: tuple[int, ...], parts: Sequence[BoxBytes], cast: Cast = UNCAST
) -> TensorEntry:
    """The entry of a tensor that sits in the tree, of the bytes of its boxes.

    Raises:
        Incompatible: the boxes do not tile the shape, or a box has bytes of another number than it takes.
    """
    require_tiling(what, shape, [part.box for part in parts])
    item_bytes = dtype(cast.stored or dtype_name).item_bytes
    inline, strides = bytearray(prod(shape) * item_bytes), c_strides((*shape, item_bytes))
    for box, data in parts:
        size_bytes = box.volume * item_bytes
        if len(data) != size_bytes:
            raise Incompatible(f"{what}: {len(data)} bytes given for {box}, which takes {size_bytes}", tensor=what)
        if size_bytes:
            sizes = (*box.sizes, item_bytes)
            moves = Moves(sizes, c_strides(sizes), strides)
            move(moves, memoryview(data), 0, memoryview(inline), at((*box.offsets, 0), strides))
    return TensorEntry(position, dtype_name, shape, (), bytes(inline), *cast)


def merged(pieces: Sequence[Piece]) -> tuple[Piece, ...]:
    """Pieces of the same columns whose rows follow one another become one; then all by their offsets.

    Chunks of a box in C order, and then those of the box below it, are the chunks of both in C order.
    """
    found: list[Piece] = []
    for piece in sorted(pieces, key=lambda piece: (piece.offsets[1:], piece.sizes[1:], piece.offsets[:1])):
        if not prod(piece.sizes):
            continue
        if found and _continues(piece, found[-1]):
            above = found[-1]
            rows = above.sizes[0] + piece.sizes[0]
            cuts, chunks = above.cuts + piece.cuts, above.chunks + piece.chunks
            found[-1] = Piece(above.offsets, (rows, *above.sizes[1:]), cuts, chunks)
        else:
            found.append(piece)
    return tuple(sorted(found, key=lambda piece: (piece.offsets, piece.sizes)))


def _continues(piece: Piece, above: Piece) -> bool:
    if not piece.offsets:
        return False
    same_columns = piece.offsets[1:] == above.offsets[1:] and piece.sizes[1:] == above.sizes[1:]
    return same_columns and piece.offsets[0] == above.offsets[0] + above.sizes[0]
