"""Which chunk is stored against which: a forest, grown from its roots. Pure.

What chunks cost is told by a function, bytes of one stored against another or by itself. The cheapest forest would be
found by Prim (1957): from what is in the forest take the cheapest edge to what is not. Depth is bounded here, so it is
but a good one. A chunk joins with its base in the forest already: whatever costs say, no cycle can come of it.
"""

import heapq
from collections.abc import Callable, Iterable, Mapping, Sequence
from collections.abc import Set as AbstractSet
from dataclasses import dataclass
from typing import Final

Cost = Callable[[int, int | None], int]
"""Bytes of a chunk stored against another, or by itself. Chunks are numbers."""

_SKIPS: Final = (1, 2, 4, 8)
"""Ancestors looked at, by distance: where depth is bounded, some have to be passed over."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Bases of chunks.

    Attributes:
        bases: of each chunk the one it is stored against, or ``None``.
        cost: bytes of all.
    """

    bases: Mapping[int, int | None]
    cost: int


def grow(
    chunks: Iterable[int], near: Mapping[int, AbstractSet[int]], cost: Cost, max_depth: int, start: Forest
) -> Forest:
    """Let a forest take in chunks.

    Args:
        chunks: which.
        near: of each chunk those that are worth looking at as its base.
        cost: see there.
        max_depth: of any chunk.
        start: what there is.
    """
    bases = dict(start.bases)
    depths: dict[int, int] = {}
    for chunk in bases:
        _measure(chunk, bases, depths)
    waiting = set(chunks) - bases.keys()
    heap: list[tuple[int, int, int]] = []

    def offer(base: int) -> None:
        if depths[base] < max_depth:
            for chunk in near.get(base, frozenset()) & waiting:
                heapq.heappush(heap, (cost(chunk, base), chunk, base))

    for chunk in waiting:
        heapq.heappush(heap, (cost(chunk, None), chunk, _NONE))
    for chunk in bases:
        offer(chunk)
    total = start.cost
    while waiting:
        taken_bytes, chunk, base = heapq.heappop(heap)
        if chunk in waiting:
            waiting.remove(chunk)
            bases[chunk] = None if base == _NONE else base
            depths[chunk] = 0 if base == _NONE else depths[base] + 1
            total += taken_bytes
            offer(chunk)
    return Forest(bases, total)


def grow_hubs(hubs: Sequence[int], cost: Cost, max_depth: int) -> Forest:
    """The best forest of a few chunks, any of which may be the first root and any another's base."""
    near = {hub: frozenset(hubs) - {hub} for hub in hubs}
    forests = [grow(hubs, near, cost, max_depth, Forest({hub: None}, cost(hub, None))) for hub in hubs]
    return min(forests, key=lambda forest: forest.cost, default=Forest({}, 0))


def neighbours(parents: Sequence[int | None], hubs: Iterable[int]) -> dict[int, set[int]]:
    """Who is worth looking at as whose base: nearby ancestors and descendants, and hubs.

    Args:
        parents: of each chunk the one that was in its place before: an earlier one.
        hubs: chunks that many come from. Those among a chunk's ancestors are looked at, and those without any.
    """
    near: dict[int, set[int]] = {chunk: set() for chunk in range(len(parents))}
    known = set(hubs)

    def join(one: int, other: int) -> None:
        if one != other:
            near[one].add(other)
            near[other].add(one)

    for chunk in near:
        for hub in known:
            if parents[hub] is None:
                join(chunk, hub)
        ancestor, distance = parents[chunk], 1
        while ancestor is not None:
            if distance in _SKIPS or ancestor in known:
                join(chunk, ancestor)
            ancestor, distance = parents[ancestor], distance + 1
    return near


_NONE: Final = -1


def _measure(chunk: int, bases: Mapping[int, int | None], depths: dict[int, int]) -> int:
    if chunk not in depths:
        base = bases[chunk]
        depths[chunk] = 0 if base is None else _measure(base, bases, depths) + 1
    return depths[chunk]
