"""Reading tensors: which chunks, into which memory; then all of them at once on several threads.

The plan is data made by pure functions; executing it decodes each chunk once, straight into the target where the
whole chunk is wanted.
"""

import threading
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import nullcontext
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..errors import Incompatible
from ..format.dtypes import dtype
from ..format.entries import Piece, TensorEntry, ValueEntry
from ..ids import ChunkId, ObjectId, PackId
from ..limits import PAGE_BYTES, READ_RUN_BYTES, STREAMED_CHUNK_BYTES
from ..memory import Room
from ..parallel import Threads
from .boxes import plan_run
from .chains import Chain, Kept
from .copies import ChunkCopy, Copy
from .reader import ObjectReader
from .widening import restored


class ChunkRead(NamedTuple):
    """One chunk and every place its bytes go."""

    chunk: ChunkId
    chunk_bytes: int
    copies: tuple[Copy, ...]


def row_bytes(entry: TensorEntry) -> int:
    """Bytes of one index along dim 0; of the whole tensor when it has no dims."""
    return prod(entry.shape[1:]) * dtype(entry.dtype).item_bytes


def plan_rows(entry: TensorEntry, start_row: int, stop_row: int, out: memoryview) -> list[Copy]:
    """Which bytes of which chunks make up some rows of a tensor.

    Args:
        entry: the tensor.
        start_row: first row along dim 0.
        stop_row: one past the last; a tensor without dims has one row.
        out: exactly as many bytes as the rows take. Inline tensors are copied right here.

    Raises:
        Incompatible: rows outside the tensor, or ``out`` of another size.
    """
    row_count = entry.shape[0] if entry.shape else 1
    if not 0 <= start_row <= stop_row <= row_count:
        raise Incompatible(f"rows {start_row} to {stop_row} are outside a tensor of shape {list(entry.shape)}")
    start, stop = start_row * row_bytes(entry), stop_row * row_bytes(entry)
    if len(out) != stop - start:
        raise Incompatible(f"{len(out)} bytes of memory for {stop - start} bytes of tensor")
    return plan_span(entry, start, out)


def plan_whole(entry: TensorEntry, out: memoryview) -> list[Copy]:
    """Which chunks make up a tensor. Most are one piece, whose chunks follow one another from the first byte on.

    Args:
        entry: the tensor.
        out: exactly as many bytes as it has. Inline tensors are copied right here.

    Raises:
        Incompatible: ``out`` of another size.
    """
    if len(out) != entry.size_bytes:
        raise Incompatible(f"{len(out)} bytes of memory for {entry.size_bytes} bytes of tensor")
    if len(entry.pieces) != 1 or entry.stored is not None or sum(entry.pieces[0].cuts) != len(out):
        return plan_span(entry, 0, out)
    return _chunks_in_order(entry.pieces[0].chunks, entry.pieces[0].cuts, out)


def plan_span(entry: TensorEntry, start: int, out: memoryview) -> list[Copy]:
    """Which bytes of which chunks make up a run of a tensor's bytes in C order.

    Args:
        entry: the tensor.
        start: the first byte.
        out: as long as the run. Inline tensors are copied right here.

    Raises:
        Incompatible: bytes outside the tensor.
    """
    stop = start + len(out)
    if not 0 <= start <= stop <= entry.size_bytes:
        raise Incompatible(f"bytes {start} to {stop} are outside a tensor of {entry.size_bytes}")
    if entry.stored is not None:
        return restored(entry, lambda wide: plan_span(wide, start, out))
    if entry.inline is not None:
        out[:] = entry.inline[start:stop]
        return []
    return [copy for piece in entry.pieces for copy in _piece_copies(entry, piece, start, stop, out)]


def _piece_copies(entry: TensorEntry, piece: Piece, start: int, stop: int, out: memoryview) -> Iterable[Copy]:
    """The part of a piece that lies within bytes ``start`` to ``stop`` of its tensor."""
    if piece.sizes[1:] != entry.shape[1:]:  # a box, whose bytes lie apart in the tensor
        yield from plan_run(entry, piece, start, out)
        return
    first = piece.offsets[0] * row_bytes(entry) if piece.offsets else 0
    stops = accumulate(piece.cuts, initial=first)
    for chunk, cut, chunk_start in zip(piece.chunks, piece.cuts, stops, strict=False):
        low, high = max(start, chunk_start), min(stop, chunk_start + cut)
        if low < high:
            yield ChunkCopy(chunk, cut, low - chunk_start, out[low - start : high - start])


def plan_value(entry: ValueEntry, out: memoryview) -> list[Copy]:
    """Which chunks make up a value's encoding; ``out`` is as long as that."""
    return _chunks_in_order(entry.chunks, entry.cuts, out)


def _chunks_in_order(chunks: Sequence[ChunkId], cuts: Sequence[int], out: memoryview) -> list[Copy]:
    """Whole chunks, one behind the other."""
    if len(chunks) == 1:  # as most of many thousands are
        return [ChunkCopy(chunks[0], cuts[0], 0, out)]
    stops = accumulate(cuts)
    return [
        ChunkCopy(chunk, cut, 0, out[stop - cut : stop]) for chunk, cut, stop in zip(chunks, cuts, stops, strict=True)
    ]


def gather(copies: Iterable[Copy]) -> list[ChunkRead]:
    """Group copies by chunk, so that a chunk wanted in several places is read once.

    Trees that disagree about a chunk's length give reads of their own, of which those with the wrong one fail.
    """
    by_chunk: dict[tuple[ChunkId, int], list[Copy]] = {}
    for copy in copies:
        by_chunk.setdefault((copy.chunk, copy.chunk_bytes), []).append(copy)
    return [ChunkRead(chunk, chunk_bytes, tuple(same)) for (chunk, chunk_bytes), same in by_chunk.items()]


def execute(reader: ObjectReader, reads: Sequence[ChunkRead], threads: Threads | None, *, verify_hash: bool) -> None:
    """Read, verify and decode chunks into their places, in the order in which they lie in the packs.

    Args:
        reader: reads chunks.
        reads: what to read.
        threads: run the reads; ``None`` for the caller's, which may be one of these: they must not wait for each other.
        verify_hash: also check each chunk's BLAKE3.

    Raises:
        NotFound: a chunk is missing.
        Corrupt: a chunk is damaged; targets may be partly written.

    Cost: each chunk is decoded once, and so are bases that several have in common, as long as they can be kept. Beyond
    that, memory of three chunks a thread, which it keeps.
    """
    chains = reader.chains(read.chunk for read in reads)
    planned = sorted(((read, chains.get(read.chunk, ())) for read in reads), key=_position)
    kept = Kept(_shared(chain for _, chain in planned))
    if threads is not None and planned:
        threads.run(lambda run: _read_run(reader, run, kept, verify_hash=verify_hash), _runs(planned))
        return
    for run in _runs(planned):
        _read_run(reader, run, kept, verify_hash=verify_hash)


_Planned = tuple[ChunkRead, Chain]


def _runs(planned: Sequence[_Planned]) -> Iterator[list[_Planned]]:
    """Chunks that lie close together in a pack, as tasks: small ones cost more to hand to a thread than to read."""
    run: list[_Planned] = []
    for one in planned:
        if run and not _follows(one[1], run[-1][1], run[0][1]):
            yield run
            run = []
        run.append(one)
    if run:
        yield run


def _follows(chain: Chain, last: Chain, first: Chain) -> bool:
    """Whether a chunk lies close enough behind the last of a run, and the first, to be read at once with them."""
    if not first or not chain:
        return False
    place, before, start = chain[0].place, last[0].place, first[0].place
    gap_bytes = place.offset - before.offset - before.stored_bytes
    is_near = place.pack == start.pack and gap_bytes <= PAGE_BYTES
    return is_near and place.offset + place.stored_bytes - start.offset <= READ_RUN_BYTES


def _read_run(reader: ObjectReader, run: Sequence[_Planned], kept: Kept, *, verify_hash: bool) -> None:
    with reader.reading_ahead([chain for _, chain in run]) if len(run) > 1 else nullcontext():
        for read, chain in run:
            _read_chunk(reader, read, chain, kept, verify_hash=verify_hash)


def _position(planned: _Planned) -> tuple[PackId, int] | tuple[()]:
    """Where a chunk is. Packs in any order, each from its beginning."""
    _, chain = planned
    return (chain[0].place.pack, chain[0].place.offset) if chain else ()


def _shared(chains: Iterable[Chain]) -> set[ObjectId]:
    """Objects that are part of several chains."""
    counts = Counter(link.id for chain in chains for link in chain)
    return {object_id for object_id, count in counts.items() if count > 1}


class _Thread(threading.local):
    """Where a thread decodes chunks that are not wanted as they are."""

    def __init__(self) -> None:
        self.room = Room()


_thread = _Thread()


def _read_chunk(reader: ObjectReader, read: ChunkRead, chain: Chain, kept: Kept, *, verify_hash: bool) -> None:
    first, *others = read.copies
    room = _thread.room
    raw = first.out if isinstance(first, ChunkCopy) and first.is_whole else room.of(read.chunk_bytes)
    streamed = first.is_whole and not others and len(raw) >= STREAMED_CHUNK_BYTES
    reader.chunk_into(read.chunk, raw, verify_hash=verify_hash, chain=chain, kept=kept, streamed=streamed)
    for copy in others if first.is_whole else read.copies:
        copy.put(raw)
