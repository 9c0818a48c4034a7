"""How much of a model another one saves, told from samples of a few of their chunks.

A sample is all that the codec looks at to choose an encoding, so what is told here is what a save would expect. Norms
that are all ones, and biases that are all zeros, take next to nothing by themselves: so it saves next to nothing that
another model has the same.
"""

import logging
import threading
from bisect import bisect_left, bisect_right
from collections.abc import Mapping, Sequence
from itertools import accumulate
from typing import NamedTuple

from store.codec.comparing import Sample, cast, expected_bytes, sample
from store.errors import MoonclipError
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.ids import ID_BYTES, ChunkId, chunk_id
from store.parallel import Threads

from .models import Model
from .pairing import Key
from .spots import Place, Spot

_log = logging.getLogger(__name__)

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
        jobs: dict[_Job, tuple[Spot, Contender]] = {}
        for contender in contenders:
            for spot in spots:
                job = _job(spot, contender.pairs)
                if job is not None and job not in self._costs:
                    jobs[job] = spot, contender
        self._threads.run(self._compare, [(job, *given) for job, given in jobs.items()])
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

    def _compare(self, given: tuple[_Job, Spot, Contender]) -> None:
        job, spot, contender = given
        try:
            cost: int | None = self._cost(spot, job[1], contender)
        except (MoonclipError, OSError) as error:
            _log.info("%s is passed over: %s", contender.model.name, error)
            cost = None
        with self._lock:
            self._costs[job] = cost

    def _cost(self, spot: Spot, stretch: _Stretch, contender: Contender) -> int:
        look, kind = self._looks[spot.place], spot.tensor.kind
        if stretch.is_chunk(look.id, spot):
            return ID_BYTES
        base = memoryview(bytearray(stretch.size_bytes))
        contender.model.read(contender.pairs[spot.tensor.key], stretch.start, base)
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
