"""What a delta chain goes on from once it has to begin anew: an older object of it, or nothing. Pure.

A chunk in full is the dearest way to begin anew. Where saves change little, a delta against the chunk that the chain
began with costs a few of the chain's deltas, and one against an object in between even less, but leaves the chain less
far to go. What an older base would take is known without reading it: no more than all deltas since, since where two of
them change the same words one pays for both.
"""

from collections.abc import Iterable, Mapping, Sequence

from ..ids import ObjectId
from ..index import Place
from ..limits import MAX_CHAIN_DEPTH, OLDER_BASE_SHARE, SAVE_CHAIN_DEPTH, SMALL_DELTA_SHARE
from ..reading.chains import Link


def chain_below(object_id: ObjectId, places: Mapping[ObjectId, Sequence[Place]]) -> list[Link]:
    """An object's chain, the one that needs no base first; empty if some of it is not there.

    Args:
        object_id: the object.
        places: good copies, the shallowest first, of it and of all delta bases below it.
    """
    links: list[Link] = []
    sought: ObjectId | None = object_id
    while sought is not None:
        copies = places.get(sought)
        if not copies or len(links) > MAX_CHAIN_DEPTH:
            return []
        links.append(Link(sought, copies[0]))
        sought = copies[0].base
    return links[::-1]


def chains_among(
    object_ids: Iterable[ObjectId], places: Mapping[ObjectId, Sequence[Place]]
) -> dict[ObjectId, Sequence[Place]]:
    """Of those objects whose whole chain is among ``places`` what these tell, and of the bases in it.

    Args:
        object_ids: the objects.
        places: as for :func:`chain_below`.
    """
    found: dict[ObjectId, Sequence[Place]] = {}
    for object_id in object_ids:
        chain: dict[ObjectId, Sequence[Place]] = {}
        sought: ObjectId | None = object_id
        while sought is not None and sought not in found and sought not in chain and (copies := places.get(sought)):
            chain[sought] = copies
            sought = copies[0].base
        if sought is None or sought in found:
            found |= chain
    return found


def older_base(chain: Sequence[Link]) -> Link | None:
    """The object of a chain, its last one aside, against which to store the next chunk; ``None`` to store that in full.

    What counts is what a save takes on the average until the chain has to begin anew once more, if the saves to come
    change as little as any of the chain did.

    Args:
        chain: as of :func:`chain_below`. One that leads to objects of another length, of which the next ones see a part
            or a cast, begins anew in full.
    """
    if any(link.place.raw_bytes != chain[0].place.raw_bytes for link in chain):
        return None
    stored = [link.place.stored_bytes for link in chain]
    usual_bytes = min(stored[1:], default=0)
    raw_bytes = chain[0].place.raw_bytes if chain else 0
    if not usual_bytes or usual_bytes > SMALL_DELTA_SHARE * raw_bytes:
        return None
    full_bytes = max(stored[0], sum(stored[1:]))  # a table that began as zeros is not that small any more
    found, least = None, _average(full_bytes, usual_bytes, SAVE_CHAIN_DEPTH)
    delta_bytes = usual_bytes
    for link, above_bytes in zip(chain[-2::-1], stored[:0:-1], strict=True):
        delta_bytes += above_bytes
        saves_left = SAVE_CHAIN_DEPTH - 1 - link.place.depth
        if saves_left >= 0:
            average = _average(delta_bytes + OLDER_BASE_SHARE * raw_bytes, usual_bytes, saves_left)
            if average < least:
                found, least = link, average
    return found


def _average(first: float, usual_bytes: int, saves_left: int) -> float:
    """Of a save that takes ``first`` and those that follow it before the chain is full."""
    return (first + saves_left * usual_bytes) / (1 + saves_left)
