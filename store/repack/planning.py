"""What is to be stored against what, so that everything takes as little as can be."""

import threading
from collections.abc import Callable, Iterator, Mapping, Sequence
from functools import cache

from ..codec.comparing import Sample, expected_bytes, sample
from ..errors import MoonclipError
from ..format.pack import OBJECT_HEADER_BYTES
from ..ids import ID_BYTES, ObjectId
from ..index import Place
from ..limits import REPACK_CHAIN_DEPTH, REPACK_HUBS, REPACK_KEEP_RATIO, REPACK_LINE_CHUNKS, SAVE_CHAIN_DEPTH
from ..repository import Repository
from ..upkeep.verifying import Verifier
from .forest import Cost, Forest, grow, grow_hubs, neighbours
from .lines import Line
from .ordering import Plan
from .released import released_bytes


def plan_size(repository: Repository, lines: Sequence[Line], advance: Callable[[int], None]) -> Plan:
    """Choose a base for each chunk of some lines, of those in its line.

    A line that would hardly get smaller stays as it is. Else each of its chunks is stored against one in the line, or
    none: so whatever chunks of lines that stay are stored against, following bases comes to an end. Bases that no live
    commit holds count as part of what a line takes, if it alone needs them: stored anew, it does without.

    Args:
        repository: the store.
        lines: all lines of the commits that are live.
        advance: told of chunks that were looked at.

    Cost: reads and decodes every chunk once; memory of a sample (16 KiB of float32) for each chunk of a line, by
    threads.
    """
    plan = Plan()
    lock = threading.Lock()

    def choose(asked: tuple[Line, int]) -> None:
        window, released = asked
        found = _Chooser(repository, window, released).choose()
        with lock:
            plan.bases |= found.bases
            plan.saved_bytes += found.saved_bytes
            plan.released_bytes += found.released_bytes
            advance(len(window.chunks))

    windows = [window for line in lines for window in _windows(line)]
    asked = zip(windows, released_bytes(repository, windows), strict=True)
    repository.threads.run(choose, sorted(asked, key=lambda each: -len(each[0].chunks) * each[0].raw_bytes))
    return plan


def _windows(line: Line) -> Iterator[Line]:
    """A line in parts, if it is long: each is planned by itself."""
    for start in range(0, len(line.chunks), REPACK_LINE_CHUNKS):
        stop = start + REPACK_LINE_CHUNKS
        parents = [None if each is None or each < start else each - start for each in line.parents[start:stop]]
        tips = {number - start for number in line.tips if start <= number < stop}
        yield Line(line.element, line.raw_bytes, line.chunks[start:stop], parents, tips)


class _Chooser:
    """Chooses for one line, which does without some bytes of bases once it is stored anew."""

    def __init__(self, repository: Repository, line: Line, released: int) -> None:
        self._repo = repository
        self._line = line
        self._released_bytes = released

    def choose(self) -> Plan:
        """Bases of those chunks that are to be encoded anew, and what that is worth."""
        chunks = self._line.chunks
        if len(chunks) == 1 and not self._released_bytes:
            return Plan()  # there is nothing to choose among
        found = self._repo.index.places_of_each(chunks)
        if not all(found.values()):
            return Plan()  # damaged: who can read the rest shall find it as it is
        places = [found[chunk][0] for chunk in chunks]
        samples = self._samples(places)
        if samples is None:
            return Plan()
        numbers = {chunk: number for number, chunk in enumerate(chunks)}
        cost = _costs(samples)
        forest = self._grown(cost)
        stored_bytes = sum(_expected(number, place, numbers, cost) for number, place in enumerate(places))
        if forest.cost > REPACK_KEEP_RATIO * (stored_bytes + self._released_bytes):
            return Plan()
        bases = {chunks[number]: None if base is None else chunks[base] for number, base in forest.bases.items()}
        anew = {chunk: base for chunk, base in bases.items() if base != places[numbers[chunk]].base}
        return Plan(anew, stored_bytes - forest.cost, self._released_bytes)

    def _grown(self, cost: Cost) -> Forest:
        hubs = self._line.hubs(REPACK_HUBS)
        near = neighbours(self._line.parents, hubs)
        # Hubs lie low, so that the next save on a tip finds a chain that is not full, and others hang on them.
        start = grow_hubs(hubs, cost, SAVE_CHAIN_DEPTH - 1)
        return grow(range(len(self._line.chunks)), near, cost, REPACK_CHAIN_DEPTH, start)

    def _samples(self, places: Sequence[Place]) -> list[Sample] | None:
        """Of every chunk; ``None`` if one is damaged, or they are no matter of planes."""
        shared = {place.base for place in places if place.base is not None}
        verifier = Verifier(self._repo.reader, self._repo.packs, shared)
        samples: list[Sample] = []
        for chunk in self._line.chunks:
            try:
                given = sample(verifier.chunk(chunk, self._line.raw_bytes), self._line.element)
            except MoonclipError:
                return None
            if given is None:
                return None
            samples.append(given)
        return samples


def _costs(samples: Sequence[Sample]) -> Cost:
    """Bytes of one stored against another, from samples."""

    @cache
    def cost(chunk: int, base: int | None) -> int:
        if base is None:
            return OBJECT_HEADER_BYTES + expected_bytes(samples[chunk])
        return OBJECT_HEADER_BYTES + ID_BYTES + expected_bytes(samples[chunk], samples[base])

    return cost


def _expected(number: int, place: Place, numbers: Mapping[ObjectId, int], cost: Cost) -> int:
    """Bytes of a chunk as it is stored: sampled too, so that what sampling errs by is no gain."""
    if place.base is None:
        return cost(number, None)
    return cost(number, numbers[place.base]) if place.base in numbers else place.stored_bytes
