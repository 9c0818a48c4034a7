"""How deep delta chains are. Pure.

An object's depth is derived, never stored in packs: 0 without a base, else its base's least depth and one.
"""

from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from typing import Generic, NamedTuple, Protocol, TypeVar

from ..ids import ObjectId
from ..limits import MAX_CHAIN_DEPTH
from .records import Place


class HasBase(Protocol):
    """What resolving needs of a table entry."""

    @property
    def id(self) -> ObjectId:
        """The object."""
        ...

    @property
    def base(self) -> ObjectId | None:
        """What it is a delta against."""
        ...


E = TypeVar("E", bound=HasBase)


class Depths(NamedTuple, Generic[E]):
    """What resolving gives.

    Attributes:
        resolved: entries with their depths, bases before deltas.
        too_deep: deltas whose base is at ``MAX_CHAIN_DEPTH``.
        unresolved: deltas whose base is nowhere, too deep or itself unresolved; and those in a cycle.
    """

    resolved: list[tuple[E, int]]
    too_deep: list[E]
    unresolved: Sequence[E]


def resolve_depths(entries: Iterable[E], known_depth: Callable[[ObjectId], int | None]) -> Depths[E]:
    """Resolve copies bottom-up, the shallowest first: those without a base, then deltas whose base is resolved.

    Args:
        entries: copies; an object may occur several times.
        known_depth: least depth of other copies of a base, ``None`` if there are none.

    Cost: a pass for each depth that occurs, of which there are no more than ``MAX_CHAIN_DEPTH`` + 2.
    """
    resolved: list[tuple[E, int]] = []
    depths: dict[ObjectId, int] = {}
    waiting: Sequence[E] = list(entries)
    while waiting:
        unresolved: list[E] = []
        found: list[tuple[E, int]] = []
        for entry in waiting:
            depth = 0 if entry.base is None else _above(depths.get(entry.base), known_depth(entry.base))
            if depth is None:
                unresolved.append(entry)
            else:
                found.append((entry, depth))
        least = min((depth for _, depth in found), default=None)
        if least is None or least > MAX_CHAIN_DEPTH:
            return Depths(resolved, [entry for entry, _ in found], unresolved)
        # Those beyond the least may yet come to lie less deep, by way of one of these.
        waiting = unresolved + [entry for entry, depth in found if depth > least]
        for entry, depth in found:
            if depth == least:
                depths[entry.id] = min(depth, depths.get(entry.id, depth))
                resolved.append((entry, depth))
    return Depths(resolved, [], [])


def with_bases(
    object_ids: Collection[ObjectId], places_of_each: Callable[[Collection[ObjectId]], Mapping[ObjectId, list[Place]]]
) -> dict[ObjectId, list[Place]]:
    """Copies of objects, of their bases, of the bases of those, and so on.

    Args:
        object_ids: the objects.
        places_of_each: copies of each of some objects.
    """
    places: dict[ObjectId, list[Place]] = {}
    waiting: Collection[ObjectId] = object_ids
    while waiting:
        found = places_of_each(waiting)
        places.update(found)
        waiting = {place.base for copies in found.values() for place in copies if place.base is not None}
        waiting -= places.keys()
    return places


def _above(*depths: int | None) -> int | None:
    known = [depth for depth in depths if depth is not None]
    return min(known) + 1 if known else None
