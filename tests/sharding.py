"""Tensors written by the ranks of one layout and read by those of another, all in this process. Without torch."""

from collections.abc import Callable, Iterator
from itertools import accumulate, product
from math import prod

import numpy as np
from numpy.typing import NDArray

from moonclip.sharding.layouts import Layout, local_shape, parts_of
from moonclip.sharding.writers import Holding, Name, share_out
from store.boxes import Box
from store.format.dtypes import dtype
from store.format.entries import Piece, TensorEntry
from store.ids import ChunkId, chunk_id
from store.reading.boxes import Target, contiguous, inner, plan_box
from store.reading.copies import Copy
from store.reading.retrieve import gather
from store.saving.pieces import BoxBytes, box_cuts, entry_of_bytes, entry_of_pieces, is_inline
from tools.crash.states import Array

NAME = Name("model", "w")
Chunks = dict[ChunkId, bytes]
Cutter = Callable[[tuple[int, ...], Box, int], tuple[int, ...]]


def coordinates(layout: Layout) -> list[tuple[int, ...]]:
    """Of all ranks of a layout, by rank."""
    return list(product(*map(range, layout.mesh)))


def items_of(array: Array) -> NDArray[np.void]:
    """A tensor's elements as opaque items of their width."""
    return np.frombuffer(array.data, f"V{dtype(array.dtype).item_bytes}").reshape(array.shape)


def within(box: Box) -> tuple[slice, ...]:
    """The box as an index."""
    return tuple(slice(start, stop) for start, stop in zip(box.offsets, box.stops, strict=True))


def written(array: Array, layout: Layout, chunks: Chunks, cut: Cutter = box_cuts) -> TensorEntry:
    """What the ranks of a layout make of a tensor; each chunk is put into ``chunks``.

    Args:
        array: the tensor.
        layout: how it lies on the ranks.
        chunks: what has been written so far.
        cut: where boxes are cut.
    """
    held = [tuple(part.box for part in parts_of(layout, each)) for each in coordinates(layout)]
    shares = share_out([{NAME: Holding(array.dtype, array.shape, boxes)} for boxes in held])
    boxes = [box for share in shares for box in share.get(NAME, ())]
    items = items_of(array)
    data = {box: items[within(box)].tobytes() for box in boxes}
    if is_inline(array.dtype, array.shape):
        return entry_of_bytes("w", 0, array.dtype, array.shape, [BoxBytes(*each) for each in data.items()])
    pieces = [_piece(box, data[box], cut(array.shape, box, dtype(array.dtype).item_bytes), chunks) for box in boxes]
    return entry_of_pieces("w", 0, array.dtype, array.shape, pieces)


def _piece(box: Box, data: bytes, cuts: tuple[int, ...], chunks: Chunks) -> Piece:
    parts = [data[stop - cut : stop] for cut, stop in zip(cuts, accumulate(cuts), strict=True)]
    assert sum(cuts) == len(data)
    chunks.update((chunk_id(part), part) for part in parts)
    return Piece(box.offsets, box.sizes, cuts, tuple(map(chunk_id, parts)))


def planned(entry: TensorEntry, layout: Layout, coordinate: tuple[int, ...], target: Target) -> Iterator[Copy]:
    """What one rank reads to fill its local tensor."""
    for part in parts_of(layout, coordinate):
        yield from plan_box(entry, part.box, inner(target, part.local))


def read_by(entry: TensorEntry, layout: Layout, chunks: Chunks, coordinate: tuple[int, ...], gap_items: int) -> bytes:
    """One rank's local tensor, in C order, read into memory whose innermost rows are ``gap_items`` apart."""
    item_bytes, sizes = dtype(entry.dtype).item_bytes, local_shape(layout, coordinate)
    wide = (*sizes[:-1], sizes[-1] + gap_items) if sizes else ()
    memory = bytearray(b"\xa5" * (prod(wide) * item_bytes))
    target = contiguous(wide, item_bytes, memoryview(memory))
    for read in gather(planned(entry, layout, coordinate, target)):
        raw = memoryview(chunks[read.chunk])
        for copy in read.copies:
            assert len(raw) == copy.chunk_bytes
            copy.put(raw)
    items = np.frombuffer(memory, f"V{item_bytes}").reshape(wide)
    if sizes:
        assert set(items[..., sizes[-1] :].tobytes()) <= {0xA5}  # what lies between is left alone
    return items[within(Box((0,) * len(sizes), sizes))].tobytes()


def local_of(array: Array, layout: Layout, coordinate: tuple[int, ...]) -> bytes:
    """What one rank ought to have, put together index by index."""
    items = items_of(array)
    local = np.zeros(local_shape(layout, coordinate), items.dtype)
    for part in parts_of(layout, coordinate):
        local[within(Box(part.local, part.box.sizes))] = items[within(part.box)]
    return local.tobytes()
