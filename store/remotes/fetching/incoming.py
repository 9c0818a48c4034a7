"""What is read of a remote's packs, and in which order. Pure.

Of each object that is wanted one copy is chosen, and of the bases that it takes to decode it, unless they are here.
Copies are then put in an order in which each base comes before what is stored against it, which hardly differs from
that in which they lie in packs, and cut into *windows*: what is held in memory, checked and written at a time. Within
a window, copies that lie close together are read at once.
"""

import heapq
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import NamedTuple

from ...batches import fitting
from ...format.pack import TableEntry
from ...ids import ObjectId
from ...limits import FETCH_GAP_BYTES, FETCH_RUN_BYTES, FETCH_WINDOW_BYTES, FETCH_WINDOW_OBJECTS, MAX_CHAIN_DEPTH
from ..names import PackName


class RemoteCopy(NamedTuple):
    """An object in a pack of a remote.

    Attributes:
        pack: the pack.
        entry: what the pack's table says of it.
    """

    pack: PackName
    entry: TableEntry


Copies = Callable[[ObjectId], Sequence[RemoteCopy]]
"""All copies of an object that a remote has and that are not known to be bad."""


@dataclass(slots=True)
class Choice:
    """What is to be read.

    Attributes:
        copies: a copy of each object that can be had, each base before what is stored against it.
        lacking: wanted objects that cannot be had: the remote has no copy of them, or of a base of each copy.
    """

    copies: list[RemoteCopy] = field(default_factory=list)
    lacking: list[ObjectId] = field(default_factory=list)


class Run(NamedTuple):
    """A stretch of a pack that is read at once.

    Attributes:
        pack: the pack.
        start: its first byte.
        size_bytes: its length.
    """

    pack: PackName
    start: int
    size_bytes: int


class Placed(NamedTuple):
    """A copy, and where it is among what is read.

    Attributes:
        copy: the copy.
        run: number of the run that holds it.
        at: its first byte there.
    """

    copy: RemoteCopy
    run: int
    at: int


@dataclass(frozen=True, slots=True)
class Window:
    """What is read, checked and written at a time.

    Attributes:
        runs: what is read.
        placed: what that holds, each base before what is stored against it.
    """

    runs: tuple[Run, ...]
    placed: tuple[Placed, ...]

    @property
    def read_bytes(self) -> int:
        """Length of all runs."""
        return sum(run.size_bytes for run in self.runs)


def choose(wanted: Collection[ObjectId], copies: Copies, depths: Mapping[ObjectId, int]) -> Choice:
    """Choose a copy of each object, and of the bases these need.

    Args:
        wanted: objects that are not here.
        copies: what the remote has.
        depths: of objects that are here and that a copy may be stored against, how many objects lie below each.

    Cost: 10 µs an object.
    """
    chosen = _Choosing(frozenset(wanted), copies, depths)
    lacking = [object_id for object_id in wanted if not chosen.can_have(object_id)]
    return Choice(list(_in_order(chosen.copies)), lacking)


def windows(copies: Iterable[RemoteCopy]) -> Iterator[Window]:
    """Cut copies, which come in the order of :attr:`Choice.copies`, into windows."""
    for some in fitting(copies, lambda copy: copy.entry.stored_bytes, FETCH_WINDOW_BYTES, FETCH_WINDOW_OBJECTS):
        yield from _cut(some)


class _Choosing:
    """Follows each object down to what needs no base, or is here; of each the cheapest copy that leads there."""

    def __init__(self, wanted: Collection[ObjectId], copies: Copies, depths: Mapping[ObjectId, int]) -> None:
        self.copies: dict[ObjectId, RemoteCopy] = {}
        self._wanted = wanted
        self._offered = copies
        self._here = depths
        self._depths: dict[ObjectId, int] = {}
        self._tried: set[ObjectId] = set()

    def can_have(self, object_id: ObjectId) -> bool:
        """Choose a copy of an object and of what it needs, if there are such."""
        self._tried.clear()
        return self._follow(object_id, MAX_CHAIN_DEPTH) is not None

    def _follow(self, object_id: ObjectId, room: int) -> int | None:
        """Choose a copy of an object that has no more than ``room`` objects below it; returns how many, if one has.

        However many copies there are, each object is tried once: who comes back to one is in a cycle, or fails again.
        """
        depth = self._here.get(object_id, self._depths.get(object_id))
        if depth is not None:
            return depth if depth <= room else None
        if object_id in self._tried:
            return None
        self._tried.add(object_id)
        offered = self._offered(object_id)
        for copy in sorted(offered, key=self._cost_bytes) if len(offered) > 1 else offered:
            base = copy.entry.base
            below = -1 if base is None else self._follow(base, room - 1) if room else None
            if below is not None:
                self.copies[object_id] = copy
                self._depths[object_id] = below + 1
                return below + 1
        return None

    def _cost_bytes(self, copy: RemoteCopy) -> int:
        """What reading a copy takes, with a base that nobody wants for itself."""
        base = copy.entry.base
        if base is None or base in self._wanted or base in self._here or base in self.copies:
            return copy.entry.stored_bytes
        offered = self._offered(base)
        return copy.entry.stored_bytes + min((other.entry.stored_bytes for other in offered), default=0)


def _in_order(chosen: Mapping[ObjectId, RemoteCopy]) -> Iterator[RemoteCopy]:
    """Copies as they lie in packs, but for those that have to wait for their base."""
    natural = sorted(chosen.values(), key=lambda copy: (copy.pack.text, copy.entry.offset))
    above: dict[ObjectId, list[int]] = {}
    ready: list[int] = []
    for number, copy in enumerate(natural):
        base = copy.entry.base
        if base is not None and base in chosen:
            above.setdefault(base, []).append(number)
        else:
            ready.append(number)
    while ready:
        copy = natural[heapq.heappop(ready)]
        yield copy
        for number in above.get(copy.entry.id, ()):
            heapq.heappush(ready, number)


def _cut(copies: Sequence[RemoteCopy]) -> Iterator[Window]:
    """A window of these, or several if that would hold much that nobody wants."""
    window = _window(copies)
    if len(copies) == 1 or window.read_bytes <= FETCH_WINDOW_BYTES + FETCH_RUN_BYTES:
        yield window
    else:
        yield from _cut(copies[: len(copies) // 2])
        yield from _cut(copies[len(copies) // 2 :])


def _window(copies: Sequence[RemoteCopy]) -> Window:
    runs: list[Run] = []
    places: dict[ObjectId, tuple[int, int]] = {}
    for copy in sorted(copies, key=lambda copy: (copy.pack.text, copy.entry.offset)):
        last = runs[-1] if runs else None
        if last is None or not _continues(last, copy):
            runs.append(Run(copy.pack, copy.entry.offset, 0))
        run = runs[-1]
        places[copy.entry.id] = len(runs) - 1, copy.entry.offset - run.start
        runs[-1] = run._replace(size_bytes=copy.entry.end - run.start)
    return Window(tuple(runs), tuple(Placed(copy, *places[copy.entry.id]) for copy in copies))


def _continues(run: Run, copy: RemoteCopy) -> bool:
    """Whether a copy, which lies behind a run, is read along with it."""
    gap_bytes = copy.entry.offset - run.start - run.size_bytes
    is_near = run.pack == copy.pack and gap_bytes <= FETCH_GAP_BYTES
    return is_near and copy.entry.end - run.start <= FETCH_RUN_BYTES
