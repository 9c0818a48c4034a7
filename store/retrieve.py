"""Reading tensors: which chunks, into which memory; then all of them at once on several threads.

The plan is data made by pure functions; executing it decodes each chunk once, straight into the target where the
whole chunk is wanted.
"""

from collections import Counter
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from itertools import accumulate
from math import prod

from .chains import Chain, Kept
from .dtypes import dtype
from .entries import Piece, TensorEntry, ValueEntry
from .errors import Incompatible
from .ids import ChunkId, ObjectId, PackId
from .parallel import Threads
from .reader import ObjectReader


@dataclass(frozen=True, slots=True)
class ChunkCopy:
    """Bytes ``start`` to ``start + len(out)`` of a chunk belong in ``out``.

    Attributes:
        chunk: the chunk.
        chunk_bytes: its length.
        start: first byte wanted.
        out: where they go.
    """

    chunk: ChunkId
    chunk_bytes: int
    start: int
    out: memoryview


@dataclass(frozen=True, slots=True)
class ChunkRead:
    """One chunk and every place its bytes go."""

    chunk: ChunkId
    chunk_bytes: int
    copies: tuple[ChunkCopy, ...]


def row_bytes(entry: TensorEntry) -> int:
    """Bytes of one index along dim 0; of the whole tensor when it has no dims."""
    return prod(entry.shape[1:]) * dtype(entry.dtype).item_bytes


def plan_rows(entry: TensorEntry, start_row: int, stop_row: int, out: memoryview) -> list[ChunkCopy]:
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


def plan_span(entry: TensorEntry, start: int, out: memoryview) -> list[ChunkCopy]:
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
    if entry.inline is not None:
        out[:] = entry.inline[start:stop]
        return []
    return [copy for piece in entry.pieces for copy in _piece_copies(entry, piece, start, stop, out)]


def _piece_copies(entry: TensorEntry, piece: Piece, start: int, stop: int, out: memoryview) -> Iterable[ChunkCopy]:
    """The part of a piece that lies within bytes ``start`` to ``stop`` of its tensor."""
    if piece.sizes[1:] != entry.shape[1:]:
        raise Incompatible(f"piece at {list(piece.offsets)} is no run of rows of shape {list(entry.shape)}")
    first = piece.offsets[0] * row_bytes(entry) if piece.offsets else 0
    stops = accumulate(piece.cuts, initial=first)
    for chunk, cut, chunk_start in zip(piece.chunks, piece.cuts, stops, strict=False):
        low, high = max(start, chunk_start), min(stop, chunk_start + cut)
        if low < high:
            yield ChunkCopy(chunk, cut, low - chunk_start, out[low - start : high - start])


def plan_value(entry: ValueEntry, out: memoryview) -> list[ChunkCopy]:
    """Which chunks make up a value's encoding; ``out`` is as long as that."""
    stops = accumulate(entry.cuts)
    return [
        ChunkCopy(chunk, cut, 0, out[stop - cut : stop])
        for chunk, cut, stop in zip(entry.chunks, entry.cuts, stops, strict=True)
    ]


def gather(copies: Iterable[ChunkCopy]) -> list[ChunkRead]:
    """Group copies by chunk, so that a chunk wanted in several places is read once.

    Trees that disagree about a chunk's length give reads of their own, of which those with the wrong one fail.
    """
    by_chunk: dict[tuple[ChunkId, int], list[ChunkCopy]] = {}
    for copy in copies:
        by_chunk.setdefault((copy.chunk, copy.chunk_bytes), []).append(copy)
    return [ChunkRead(chunk, chunk_bytes, tuple(same)) for (chunk, chunk_bytes), same in by_chunk.items()]


def execute(reader: ObjectReader, reads: Sequence[ChunkRead], threads: Threads, *, verify_hash: bool) -> None:
    """Read, verify and decode chunks into their places, in the order in which they lie in the packs.

    Args:
        reader: reads chunks.
        reads: what to read.
        threads: run the reads.
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
    if planned:
        threads.run(lambda one: _read_chunk(reader, *one, kept, verify_hash=verify_hash), planned)


def _position(planned: tuple[ChunkRead, Chain]) -> tuple[PackId, int] | tuple[()]:
    """Where a chunk is. Packs in any order, each from its beginning."""
    _, chain = planned
    return (chain[0].place.pack, chain[0].place.offset) if chain else ()


def _shared(chains: Iterable[Chain]) -> set[ObjectId]:
    """Objects that are part of several chains."""
    counts = Counter(link.id for chain in chains for link in chain)
    return {object_id for object_id, count in counts.items() if count > 1}


def _read_chunk(reader: ObjectReader, read: ChunkRead, chain: Chain, kept: Kept, *, verify_hash: bool) -> None:
    first, *others = read.copies
    whole_first = first.start == 0 and len(first.out) == read.chunk_bytes
    raw = first.out if whole_first else memoryview(bytearray(read.chunk_bytes))
    reader.chunk_into(read.chunk, raw, verify_hash=verify_hash, chain=chain, kept=kept)
    for copy in others if whole_first else read.copies:
        copy.out[:] = raw[copy.start : copy.start + len(copy.out)]
