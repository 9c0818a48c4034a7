"""Planning to read any box of a tensor, however it is cut into pieces and whatever memory it goes to. Pure.

A chunk is a run of a piece's bytes. What a box wants of it is at most a few boxes again: the end of a row that was
begun in the chunk before, whole rows, and the beginning of another. So a chunk costs a few copies, never one for each
run: half the columns of a matrix are moved by one call. Dims in which all is wanted, and adjacent where it goes, are
put together first; what then is one run of bytes can be decoded straight into its place.
"""

from bisect import bisect_right
from collections.abc import Iterator
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..boxes import Box, intersection
from ..errors import Incompatible
from ..format.dtypes import dtype
from ..format.entries import Piece, TensorEntry
from ..strided import Moves, at, c_strides, move
from .copies import ChunkCopy, Copy, StridedCopy
from .widening import restored


class Target(NamedTuple):
    """Memory for a box.

    Attributes:
        memory: flat, writable bytes, of which others may be somebody else's.
        start: where the box's first element goes.
        strides: bytes from one index to the next, in each dim; not negative.
    """

    memory: memoryview
    start: int
    strides: tuple[int, ...]


def contiguous(sizes: tuple[int, ...], item_bytes: int, memory: memoryview, start: int = 0) -> Target:
    """The memory of a box, or of a local tensor of which it is the first corner, that lies in C order."""
    return Target(memory, start, c_strides((*sizes, item_bytes))[:-1])


def inner(target: Target, offsets: tuple[int, ...]) -> Target:
    """The memory of a box that begins at some index of the tensor that ``target`` is for."""
    return target._replace(start=target.start + at(offsets, target.strides))


def plan_box(entry: TensorEntry, box: Box, target: Target) -> list[Copy]:
    """Which bytes of which chunks make up a box of a tensor.

    Args:
        entry: the tensor.
        box: the part of it that is wanted.
        target: where it goes. Inline tensors are copied right here.

    Raises:
        Incompatible: the box is not inside the tensor, or ``target`` is too small or of another number of dims.
    """
    _require_inside(entry, box, target)
    item_bytes = dtype(entry.dtype).item_bytes
    if not box.volume:
        return []
    _require_room(box, target, item_bytes)
    if entry.stored is not None:
        return restored(entry, lambda wide: plan_box(wide, box, target))
    wanted, memory = _in_bytes(box, item_bytes), target._replace(strides=(*target.strides, 1))
    if entry.inline is not None:
        strides = c_strides((*entry.shape, item_bytes))
        moves = Moves(wanted.sizes, strides, memory.strides)
        move(moves, memoryview(entry.inline), at(wanted.offsets, strides), memory.memory, memory.start)
        return []
    return [copy for piece in entry.pieces for copy in copies_of_piece(piece, item_bytes, wanted, memory)]


def plan_run(entry: TensorEntry, piece: Piece, start: int, out: memoryview) -> Iterator[Copy]:
    """What a piece has of a run of its tensor's bytes in C order, which is put together from boxes.

    Args:
        entry: the tensor.
        piece: one of its pieces.
        start: first byte of the run, inside the tensor.
        out: as long as the run.
    """
    item_bytes = dtype(entry.dtype).item_bytes
    shape = (*entry.shape, item_bytes)
    strides = c_strides(shape)
    for box in _boxes_of_run(start, start + len(out), shape):
        target = Target(out, at(box.offsets, strides) - start, strides)
        yield from copies_of_piece(piece, item_bytes, box, target)


def copies_of_piece(piece: Piece, item_bytes: int, wanted: Box, target: Target) -> Iterator[Copy]:
    """What a piece has of a box whose last dim is the bytes of an element, and so are the target's strides."""
    have = Box((*piece.offsets, 0), (*piece.sizes, item_bytes))
    shared = intersection(have, wanted)
    if shared is None:
        return
    memory = inner(target, _between(shared.offsets, wanted.offsets))
    sizes, shared, memory = _joined(have.sizes, shared._replace(offsets=_between(shared.offsets, have.offsets)), memory)
    strides = c_strides(sizes)
    low, high = at(shared.offsets, strides), at(shared.stops, strides) - sum(strides) + 1
    stops = list(accumulate(piece.cuts))
    for number in range(bisect_right(stops, low), len(stops)):
        cut, stop = piece.cuts[number], stops[number]
        if stop - cut >= high:
            break
        for part in _boxes_of_run(stop - cut, stop, sizes):
            common = intersection(part, shared)
            if common is not None:
                out_at = memory.start + at(_between(common.offsets, shared.offsets), memory.strides)
                moves = Moves(common.sizes, strides, memory.strides).simplified()
                start = at(common.offsets, strides) - (stop - cut)
                yield _copy(piece, number, start, memory.memory[out_at:], moves)


def _copy(piece: Piece, number: int, start: int, out: memoryview, moves: Moves) -> Copy:
    if moves.is_run:
        return ChunkCopy(piece.chunks[number], piece.cuts[number], start, out[: moves.sizes[0]])
    return StridedCopy(piece.chunks[number], piece.cuts[number], start, out, moves)


def _joined(sizes: tuple[int, ...], box: Box, target: Target) -> tuple[tuple[int, ...], Box, Target]:
    """A piece, a box of it and its memory, with dims put together where the box takes all and lies in one run."""
    joined: list[tuple[int, int, int, int]] = []
    for size, offset, extent, stride in zip(reversed(sizes), *map(reversed, (*box, target.strides)), strict=True):
        if joined:
            inner_size, inner_offset, inner_extent, inner_stride = joined[-1]
            if inner_extent == inner_size and stride == inner_extent * inner_stride:
                joined[-1] = (
                    size * inner_size,
                    offset * inner_size + inner_offset,
                    extent * inner_size,
                    inner_stride,
                )
                continue
        joined.append((size, offset, extent, stride))
    sizes, offsets, extents, strides = zip(*reversed(joined), strict=True)
    return sizes, Box(offsets, extents), target._replace(strides=strides)


def _boxes_of_run(start: int, stop: int, sizes: tuple[int, ...]) -> Iterator[Box]:
    """The boxes that a run of C order is made of; at most two for each dim, less one."""
    if start >= stop:
        return
    row = prod(sizes[1:])
    (first, head), (last, tail) = divmod(start, row), divmod(stop, row)
    if head:
        end = tail if first == last else row
        yield from (_below(first, box) for box in _boxes_of_run(head, end, sizes[1:]))
        first += 1
    if first < last:
        yield Box((first,) + (0,) * len(sizes[1:]), (last - first, *sizes[1:]))
    if tail and first <= last:
        yield from (_below(last, box) for box in _boxes_of_run(0, tail, sizes[1:]))


def _below(row: int, box: Box) -> Box:
    return Box((row, *box.offsets), (1, *box.sizes))


def _between(offsets: tuple[int, ...], origin: tuple[int, ...]) -> tuple[int, ...]:
    return tuple(offset - first for offset, first in zip(offsets, origin, strict=True))


def _in_bytes(box: Box, item_bytes: int) -> Box:
    return Box((*box.offsets, 0), (*box.sizes, item_bytes))


def _require_inside(entry: TensorEntry, box: Box, target: Target) -> None:
    if not len(box.offsets) == len(box.sizes) == len(target.strides) == len(entry.shape):
        raise Incompatible(f"{box} has another number of dims than a tensor of shape {list(entry.shape)}")
    if any(o < 0 or s < 0 or o + s > whole for o, s, whole in zip(*box, entry.shape, strict=True)):
        raise Incompatible(f"{box} reaches outside of a tensor of shape {list(entry.shape)}")


def _require_room(box: Box, target: Target, item_bytes: int) -> None:
    last = target.start + at(box.sizes, target.strides) - sum(target.strides) + item_bytes
    if target.start < 0 or min(target.strides, default=0) < 0 or last > len(target.memory):
        raise Incompatible(f"{len(target.memory)} bytes of memory for {box}, which needs {last} with these strides")
