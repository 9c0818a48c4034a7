"""Stored tensors, a window or a block at a time: however large they are, no more than that is in memory."""

from collections.abc import Iterator
from itertools import product
from math import prod
from typing import Final

from store.boxes import Box, whole
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.limits import MIB
from store.reading.boxes import contiguous, plan_box
from store.repository import Repository

WINDOW_BYTES: Final = 64 * MIB
"""Read at once: enough for sixteen threads to have a chunk each."""


def windows(repo: Repository, entry: TensorEntry, window_bytes: int = WINDOW_BYTES) -> Iterator[memoryview]:
    """A tensor's bytes in C order, in runs of ``window_bytes`` and a rest; each run is memory of its own.

    Raises:
        NotFound: a chunk is missing. Corrupt: a chunk is damaged.
    """
    for start in range(0, entry.size_bytes, window_bytes):
        window = memoryview(bytearray(min(window_bytes, entry.size_bytes - start)))
        repo.read_spans(entry, [(start, window)])
        yield window


def blocks(shape: tuple[int, ...], item_bytes: int, block_bytes: int = WINDOW_BYTES) -> Iterator[Box]:
    """Boxes that tile a tensor, in C order, each of as many rows as take ``block_bytes``, and an element at least.

    Rows that are longer than that are cut as well. A tensor without elements is one block.
    """
    if not shape or not prod(shape):
        yield whole(shape)
        return
    inner_bytes = [prod(shape[dim + 1 :]) * item_bytes for dim in range(len(shape))]
    dim = next((dim for dim, each in enumerate(inner_bytes) if each <= block_bytes), len(shape) - 1)
    step = max(1, block_bytes // inner_bytes[dim])
    for outer in product(*map(range, shape[:dim])):
        for start in range(0, shape[dim], step):
            size = min(step, shape[dim] - start)
            rest = shape[dim + 1 :]
            yield Box((*outer, start, *(0,) * len(rest)), (*(1,) * dim, size, *rest))


def read_block(repo: Repository, entry: TensorEntry, box: Box) -> bytearray:
    """The elements of a box of a tensor, in C order.

    Raises:
        NotFound: a chunk is missing. Corrupt: a chunk is damaged.
    """
    item_bytes = dtype(entry.dtype).item_bytes
    data = bytearray(box.volume * item_bytes)
    repo.read_copies(plan_box(entry, box, contiguous(box.sizes, item_bytes, memoryview(data))))
    return data
