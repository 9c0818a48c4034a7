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
    """Resolve copies bottom-up: those without a base, then deltas whose base is resolved.

    Args:
        entries: copies; an object may occur several times.
        known_depth: least depth of a base that is none of the entries', ``None`` if there is no such object.

    Cost: a pass for each level of the deepest chain, of which no more than ``MAX_CHAIN_DEPTH`` + 2 are looked at.
    """
    resolved: list[tuple[E, int]] = []
    too_deep: list[E] = []
    depths: dict[ObjectId, int] = {}
    waiting: Sequence[E] = list(entries)
    while waiting:
        unresolved: list[E] = []
        found: list[tuple[E, int]] = []
        for entry in waiting:
            depth = 0 if entry.base is None else _above(depths.get(entry.base), known_depth(entry.base))
            if depth is None:
                unresolved.append(entry)
            elif depth > MAX_CHAIN_DEPTH:  # what later levels find is no shallower
                too_deep.append(entry)
            else:
                found.append((entry, depth))
        for entry, depth in found:  # only now: a level must not depend on the order of the entries
            depths[entry.id] = min(depth, depths.get(entry.id, depth))
        resolved += found
        waiting = unresolved
        if not found:
            break
    return Depths(resolved, too_deep, waiting)


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
