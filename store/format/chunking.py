"""Where tensors and blobs are cut into chunks. Pure.

Tensors are cut on a grid that other world sizes share, then into runs of at most 4 MiB of whole elements, in C order.
Blobs are cut by their content, so that a changed header length costs little.

Spec: docs/format.md §4.3.
"""

from collections.abc import Callable, Iterator
from itertools import pairwise

from ..ids import Buffer
from ..limits import KIB, MAX_CHUNK_BYTES, MIB, MIN_GRID_PART_BYTES, RANK_GRID

_BLOB_MIN_BYTES = 64 * KIB
_BLOB_MEAN_BYTES = 256 * KIB
_BLOB_MAX_BYTES = 1 * MIB


def grid_rows(row_count: int, row_bytes: int) -> list[int]:
    """Boundaries along dim 0, from 0 to ``row_count``, where ``torch.chunk`` would cut for 2, 4 and 8 ranks.

    A world size counts only where its ranks' parts are at least ``MIN_GRID_PART_BYTES``. Boundaries of several world
    sizes may lie close together on uneven dims: a few small chunks are the price for sharing with each of them.
    """
    bounds = {0, row_count}
    for world_size in RANK_GRID:
        rows_per_rank = -(-row_count // world_size)
        if rows_per_rank * row_bytes >= MIN_GRID_PART_BYTES:
            bounds.update(range(rows_per_rank, row_count, rows_per_rank))
    return sorted(bounds)


def tensor_cuts(shape: tuple[int, ...], item_bytes: int) -> tuple[int, ...]:
    """Lengths in bytes of the chunks of a whole tensor, in C order. Their sum is the tensor's size.

    Args:
        shape: global shape; ``()`` for a scalar.
        item_bytes: bytes of one element.
    """
    row_count = shape[0] if shape else 1
    row_bytes = item_bytes
    for size in shape[1:]:
        row_bytes *= size
    if row_count * row_bytes < MIN_GRID_PART_BYTES:  # no grid, and no more than one chunk
        return (row_count * row_bytes,) if row_count and row_bytes else ()
    step = MAX_CHUNK_BYTES - MAX_CHUNK_BYTES % item_bytes
    cuts: list[int] = []
    for before, after in pairwise(grid_rows(row_count, row_bytes)):
        part_bytes = (after - before) * row_bytes
        cuts += [step] * (part_bytes // step)
        if part_bytes % step:
            cuts.append(part_bytes % step)
    return tuple(cuts)


def blob_cuts(data: Buffer) -> tuple[int, ...]:
    """Lengths in bytes of the chunks of an opaque blob, cut where FastCDC (Xia et al., 2020) finds a boundary.

    Cost: one pass over ``data``.
    """
    view = memoryview(data)
    if len(view) <= _BLOB_MIN_BYTES:
        return (len(view),) if view else ()
    return tuple(_content_defined(view))


class BlobCutter:
    """Cuts a blob that comes block by block, just where :func:`blob_cuts` cuts all of it. For one thread at a time.

    Args:
        take: called with each chunk in turn, whose memory is used again afterwards.
    """

    def __init__(self, take: Callable[[memoryview], object] = len) -> None:
        self._take = take
        self._kept = bytearray()
        self._cuts: list[int] = []

    def add(self, block: Buffer) -> None:
        """Take the next bytes. Cost: a copy, and one pass over them and what was kept, a MiB at most."""
        self._kept += block
        done_bytes = 0
        for cut in _content_defined(memoryview(self._kept)):
            if len(self._kept) - done_bytes < _BLOB_MAX_BYTES:
                break  # where this chunk ends may depend on what follows
            self._end(memoryview(self._kept)[done_bytes : done_bytes + cut])
            done_bytes += cut
        del self._kept[:done_bytes]

    def finish(self) -> tuple[int, ...]:
        """Lengths of all chunks, once all blocks were added."""
        rest = memoryview(bytes(self._kept))
        for cut in blob_cuts(rest):
            self._end(rest[:cut])
            rest = rest[cut:]
        return tuple(self._cuts)

    def _end(self, chunk: memoryview) -> None:
        self._cuts.append(len(chunk))
        self._take(chunk)


def _content_defined(view: memoryview) -> Iterator[int]:
    from pyfastcdc import FastCDC

    cdc = FastCDC(avg_size=_BLOB_MEAN_BYTES, min_size=_BLOB_MIN_BYTES, max_size=_BLOB_MAX_BYTES, seed=0)
    for chunk in cdc.cut_buf(view):
        yield chunk.length
