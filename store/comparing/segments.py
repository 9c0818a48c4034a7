"""Two tensors of one shape, cut into runs of elements that lie in one chunk of each, and read run by run."""

from collections.abc import Hashable, Iterable, Iterator, Sequence
from itertools import accumulate, pairwise
from typing import NamedTuple

from ..batches import fitting
from ..errors import Corrupt, NotFound, telling
from ..format.dtypes import dtype
from ..format.entries import TensorEntry
from ..ids import ChunkId
from ..limits import DIFF_WINDOW_BYTES, MAX_CHUNK_BYTES
from ..reading.retrieve import plan_span, row_bytes
from ..repository import Repository


class Pair(NamedTuple):
    """A tensor in two commits, of the same shape in both.

    Attributes:
        name: what messages call it.
        before: what it was.
        after: what it is.
    """

    name: str
    before: TensorEntry
    after: TensorEntry

    @property
    def content(self) -> tuple[Hashable, ...]:
        """Equal for names of one tensor: what is found out of one holds for all."""
        sides = (self.before, self.after)
        return tuple((side.dtype, side.shape, side.pieces, side.inline, *cast_of(side)) for side in sides)


class Segment(NamedTuple):
    """A run of elements.

    Attributes:
        number: which pair it belongs to.
        pair: that pair.
        start: first element, in C order.
        stop: one past the last.
        is_same: whether both hold the same chunk there, so that nothing need be read to know that they are equal.
    """

    number: int
    pair: Pair
    start: int
    stop: int
    is_same: bool

    @property
    def size_bytes(self) -> int:
        """What has to be read."""
        sides = (self.pair.before,) if self.is_same else (self.pair.before, self.pair.after)
        return (self.stop - self.start) * sum(_item_bytes(side) for side in sides)


class Loaded(NamedTuple):
    """A segment's bytes; of one that is the same on both sides they are read once.

    Attributes:
        segment: the segment.
        before: its bytes in the first commit.
        after: in the second.
    """

    segment: Segment
    before: bytearray
    after: bytearray


class _Run(NamedTuple):
    """Elements of one chunk; ``None`` for those of no chunk of their own."""

    start: int
    stop: int
    chunk: ChunkId | None


def segments(number: int, pair: Pair) -> Iterator[Segment]:
    """The segments of a pair, in C order; none of tensors without elements."""
    before, after = _runs(pair.before), _runs(pair.after)
    bounds = sorted({bound for run in (*before, *after) for bound in (run.start, run.stop)})
    left, right = iter(before), iter(after)
    one, other = next(left, _NOTHING), next(right, _NOTHING)
    is_alike = pair.before.dtype == pair.after.dtype and cast_of(pair.before) == cast_of(pair.after)
    for start, stop in pairwise(bounds):
        one = one if start < one.stop else next(left)
        other = other if start < other.stop else next(right)
        is_same = one == other and one.chunk is not None and is_alike
        yield Segment(number, pair, start, stop, is_same)


def cast_of(entry: TensorEntry) -> tuple[str | None, bytes]:
    """What a tensor is stored as, if it was cast: equal chunks mean equal elements only where this is equal."""
    return (entry.stored, entry.scale)


def are_cut_alike(one: TensorEntry, other: TensorEntry) -> bool:
    """Whether both consist of chunks at the same places, cast alike: then their ids tell all."""
    if cast_of(one) != cast_of(other):
        return False
    left, right = ([(piece.offsets, piece.sizes, piece.cuts) for piece in side.pieces] for side in (one, other))
    return left == right


def windows(cut: Iterable[Segment]) -> Iterator[list[Segment]]:
    """Segments put together to be read at once, by many threads, in bounded memory."""
    return fitting(cut, lambda segment: segment.size_bytes, DIFF_WINDOW_BYTES)


def load(repository: Repository, window: Sequence[Segment]) -> list[Loaded]:
    """Read the segments of a window.

    Raises:
        NotFound: a chunk is missing; the message names the tensor.
        Corrupt: a chunk is damaged; likewise.
    """
    try:
        return _load(repository, window)
    except (NotFound, Corrupt):
        for segment in window:  # which of them it is
            load_one(repository, segment)
        raise


def load_one(repository: Repository, segment: Segment) -> Loaded:
    """Read one segment. Raises as :func:`load` does."""
    with telling(segment.pair.name):
        return _load(repository, [segment])[0]


def _load(repository: Repository, window: Sequence[Segment]) -> list[Loaded]:
    loaded = [_room(segment) for segment in window]
    copies = [
        copy
        for segment, before, after in loaded
        for entry, out in ((segment.pair.before, before), (segment.pair.after, after))
        if out is before or after is not before
        for copy in plan_span(entry, segment.start * _item_bytes(entry), memoryview(out))
    ]
    repository.read_copies(copies)
    return loaded


def _room(segment: Segment) -> Loaded:
    count = segment.stop - segment.start
    before = bytearray(count * _item_bytes(segment.pair.before))
    return Loaded(segment, before, before if segment.is_same else bytearray(count * _item_bytes(segment.pair.after)))


def _item_bytes(entry: TensorEntry) -> int:
    return dtype(entry.dtype).item_bytes


def _runs(entry: TensorEntry) -> list[_Run]:
    item_bytes, count = _item_bytes(entry), entry.size_bytes // _item_bytes(entry)
    if entry.inline is not None:
        return [_Run(0, count, None)] if count else []
    if any(piece.sizes[1:] != entry.shape[1:] for piece in entry.pieces):  # boxes whose chunks are no runs of it
        stops = range(0, count, MAX_CHUNK_BYTES // item_bytes)
        return [_Run(start, stop, None) for start, stop in pairwise([*stops, count])]
    runs = []
    for piece in entry.pieces:
        first = (piece.offsets[0] if piece.offsets else 0) * row_bytes(entry)
        stored_bytes = dtype(entry.stored_dtype).item_bytes
        bounds = [first // item_bytes + bound // stored_bytes for bound in accumulate(piece.cuts, initial=0)]
        runs += [_Run(*ends, chunk) for ends, chunk in zip(pairwise(bounds), piece.chunks, strict=True)]
    return sorted(runs, key=lambda run: run.start)


_NOTHING = _Run(0, 0, None)
