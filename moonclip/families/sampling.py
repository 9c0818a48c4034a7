"""How much of a model another one saves, told from samples of a few of their chunks.

A sample is all that the codec looks at to choose an encoding, so what is told here is what a save would expect. Norms
that are all ones, and biases that are all zeros, take next to nothing by themselves: so it saves next to nothing that
another model has the same.
"""

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Iterable, Iterator, Mapping, Sequence
from itertools import accumulate
from typing import Final, NamedTuple

from store.codec.comparing import Sample, cast, expected_bytes, sample
from store.errors import MoonclipError
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.ids import ID_BYTES, ChunkId, chunk_id
from store.limits import MIB, PAGE_BYTES
from store.memory import Room
from store.parallel import Threads

from .models import Model, Run
from .pairing import Key
from .spots import Place, Spot

_log = logging.getLogger(__name__)

_BATCH_BYTES: Final = 8 * MIB
"""Of models that a thread reads at once."""

Pairs = Mapping[Key, TensorEntry]


class Estimate(NamedTuple):
    """What tensors are expected to take.

    Attributes:
        raw_bytes: as they are.
        alone_bytes: encoded, with nothing else stored.
        against_bytes: with a base.
    """

    raw_bytes: float
    alone_bytes: float
    against_bytes: float


class Contender(NamedTuple):
    """A model, and which of its tensors resembles which that is wanted."""

    model: Model
    pairs: Pairs


class _Look(NamedTuple):
    """What is known of a chunk that is wanted: its id, its sample, and its length encoded by itself."""

    id: ChunkId
    sample: Sample | None
    alone_bytes: int


class _Stretch(NamedTuple):
    """What of a stored tensor lies where a chunk of the wanted one is.

    Attributes:
        dtype: of its elements.
        start: its first byte in the tensor.
        size_bytes: its length; less than the chunk's elements take if the tensor ends before.
        offset: where in the first chunk it begins.
        chunks: those that it lies in, and
        chunk_bytes: how long they are together.
    """

    dtype: str
    start: int
    size_bytes: int
    offset: int
    chunks: tuple[ChunkId, ...]
    chunk_bytes: int

    def is_chunk(self, chunk: ChunkId, spot: Spot) -> bool:
        """Whether it is a chunk that is just what is wanted."""
        is_same_dtype = self.dtype == spot.tensor.kind.dtype
        return is_same_dtype and self.chunks == (chunk,) and self.size_bytes == self.chunk_bytes


_Job = tuple[Place, _Stretch]
"""A spot, and what of a model lies there. Models of a family share chunks, which are compared once."""


class _Comparison(NamedTuple):
    """A chunk that is wanted, beside what lies there in a model: the first of those that have the same there."""

    spot: Spot
    stretch: _Stretch
    contender: Contender

    @property
    def job(self) -> _Job:
        """What it finds the cost of."""
        return self.spot.place, self.stretch

    def run(self, out: memoryview) -> Run:
        """What to read of the model, and into which memory."""
        return self.contender.pairs[self.spot.tensor.key], self.stretch.start, out


class _Thread(threading.local):
    """Where a thread reads what models have."""

    def __init__(self) -> None:
        self.room = Room()


_thread = _Thread()


class Sampler:
    """Compares one model that is wanted with others. What was looked at is remembered.

    Args:
        threads: read and decode.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._looks: dict[Place, _Look] = {}
        self._costs: dict[_Job, int | None] = {}
        self._lock = threading.Lock()

    def estimates(self, contenders: Sequence[Contender], spots: Sequence[Spot]) -> list[Estimate | None]:
        """What the model would take against each of others; ``None`` for one that cannot be read.

        Args:
            contenders: the others.
            spots: where to look.

        Raises:
            Corrupt: what is wanted is not what it should be.
            OSError: it cannot be read.
        """
        self._threads.run(self._look, [spot for spot in spots if spot.place not in self._looks])
        comparisons: dict[_Job, _Comparison] = {}
        for spot in spots:
            for contender in contenders:
                job = _job(spot, contender.pairs)
                if job is not None and job not in self._costs and job not in comparisons:
                    comparisons[job] = _Comparison(spot, job[1], contender)
        self._threads.run(self._compare, _batches(comparisons.values()))
        return [self._estimate(contender.pairs, spots) for contender in contenders]

    def alone(self, spots: Sequence[Spot]) -> Estimate:
        """What it would take with nothing else stored. Raises as :meth:`estimates` does."""
        self._threads.run(self._look, [spot for spot in spots if spot.place not in self._looks])
        estimate = self._estimate({}, spots)
        assert estimate is not None  # nothing else is read
        return estimate

    def _estimate(self, pairs: Pairs, spots: Sequence[Spot]) -> Estimate | None:
        raw = alone = against = 0.0
        for spot in spots:
            scale = spot.weight_bytes / spot.size_bytes
            alone_bytes = self._looks[spot.place].alone_bytes
            job = _job(spot, pairs)
            cost = alone_bytes if job is None else self._costs[job]
            if cost is None:
                return None
            raw += spot.weight_bytes
            alone += scale * alone_bytes
            against += scale * cost
        return Estimate(raw, alone, against)

    def _look(self, spot: Spot) -> None:
        raw = spot.tensor.make(spot.start, spot.stop)
        given = sample(raw, dtype(spot.tensor.kind.dtype).element)
        alone_bytes = len(raw) if given is None else min(len(raw), expected_bytes(given))
        look = _Look(chunk_id(raw), given, alone_bytes)
        with self._lock:
            self._looks[spot.place] = look

    def _compare(self, batch: Sequence[_Comparison]) -> None:
        costs: dict[_Job, int | None] = {}
        unread: list[_Comparison] = []
        for one in batch:
            if one.stretch.is_chunk(self._looks[one.spot.place].id, one.spot):
                costs[one.job] = ID_BYTES
            else:
                unread.append(one)
        for one, base in zip(unread, _read(unread), strict=True):
            costs[one.job] = None if base is None else self._cost(one, base)
        with self._lock:
            self._costs |= costs

    def _cost(self, one: _Comparison, base: memoryview) -> int:
        spot, stretch = one.spot, one.stretch
        look, kind = self._looks[spot.place], spot.tensor.kind
        held = sample(base, dtype(stretch.dtype).element)
        if held is not None and stretch.dtype != kind.dtype:
            held = cast(held, stretch.dtype, kind.dtype)
        covered_bytes = len(base) // dtype(stretch.dtype).item_bytes * dtype(kind.dtype).item_bytes
        covered = covered_bytes / spot.size_bytes
        wanted = look.sample if covered == 1 else self._beginning(spot, covered_bytes)
        if wanted is None or held is None:
            return look.alone_bytes
        against_bytes = ID_BYTES + expected_bytes(wanted, held) + round((1 - covered) * look.alone_bytes)
        return min(look.alone_bytes, against_bytes)

    def _beginning(self, spot: Spot, size_bytes: int) -> Sample | None:
        """A sample of the beginning of a chunk: what the base has of it."""
        raw = spot.tensor.make(spot.start, spot.start + size_bytes)
        return sample(raw, dtype(spot.tensor.kind.dtype).element)


def _batches(comparisons: Iterable[_Comparison]) -> Iterator[list[_Comparison]]:
    """Comparisons of one spot with models that are read alike, in their order: most of these were stored against one.

    No more of them at once than a thread should have in memory.
    """
    batch: list[_Comparison] = []
    batch_bytes = 0
    for one in comparisons:
        batch_bytes += one.stretch.size_bytes
        is_like = batch and (batch[0].spot, batch[0].contender.model.read) == (one.spot, one.contender.model.read)
        if batch and (not is_like or batch_bytes > _BATCH_BYTES):
            yield batch
            batch, batch_bytes = [], one.stretch.size_bytes
        batch.append(one)
    if batch:
        yield batch


def _read(batch: Sequence[_Comparison]) -> list[memoryview | None]:
    """What models have there, in memory of this thread; ``None`` of one that cannot be read."""
    ends = list(accumulate((_aligned(one.stretch.size_bytes) for one in batch), initial=0))
    room = _thread.room.of(ends[-1])
    places = [room[start : start + one.stretch.size_bytes] for start, one in zip(ends, batch, strict=False)]
    try:
        if batch:
            batch[0].contender.model.read([one.run(place) for one, place in zip(batch, places, strict=True)])
    except (MoonclipError, OSError):
        return [_read_one(one, place) for one, place in zip(batch, places, strict=True)]
    return list(places)


def _read_one(one: _Comparison, place: memoryview) -> memoryview | None:
    model = one.contender.model
    try:
        model.read([one.run(place)])
    except (MoonclipError, OSError) as error:
        _log.info("%s is passed over: %s", model.name, error)
        return None
    return place


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // PAGE_BYTES) * PAGE_BYTES


def _job(spot: Spot, pairs: Pairs) -> _Job | None:
    """What to compare a spot with; ``None`` if there is nothing there."""
    entry = pairs.get(spot.tensor.key)
    stretch = None if entry is None else _stretch(spot, entry)
    return None if stretch is None else (spot.place, stretch)


def _stretch(spot: Spot, entry: TensorEntry) -> _Stretch | None:
    wanted_bytes, held_bytes = dtype(spot.tensor.kind.dtype).item_bytes, dtype(entry.dtype).item_bytes
    start = spot.start // wanted_bytes * held_bytes
    stop = min(spot.stop // wanted_bytes * held_bytes, entry.size_bytes)
    ends = list(accumulate(entry.cuts))
    first, last = bisect_right(ends, start), bisect_left(ends, stop)
    if stop <= start:
        return None
    chunks, cuts = entry.chunks[first : last + 1], entry.cuts[first : last + 1]
    return _Stretch(entry.dtype, start, stop - start, start - (ends[first] - cuts[0]), chunks, sum(cuts))
