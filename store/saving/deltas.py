"""How a chunk is stored: against the chunk before it, against an older one of its delta chain, or in full.

The chunk before it usually lies in memory and costs no read. Chains are bounded, and begin anew in turns: an older base
has to be read for that, which is done only where it will pay.
"""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

from ..codec import Encoded, encode, encode_blob
from ..codec.views import View
from ..errors import Corrupt, NotFound
from ..ids import ChunkId, ObjectId
from ..index import Place
from ..limits import SAVE_CHAIN_DEPTH, SMALL_DELTA_SHARE
from ..memory import Room
from .bases import Base, Bases
from .drafts import ChunkTask
from .restarts import chain_below, older_base


class Found(NamedTuple):
    """What the index told of some chunks and of their bases.

    Attributes:
        stored: those that can be read, and the best copy of each.
        below: good copies of all of them, and of all delta bases below them.
    """

    stored: Mapping[ObjectId, Place]
    below: Mapping[ObjectId, Sequence[Place]]


class _Against(NamedTuple):
    """A base, the longest delta that is worth storing against it, and what is seen of it."""

    id: ObjectId
    raw: memoryview
    most_bytes: int
    view: View | None = None


class Deltas:
    """Encodes the chunks of one save. Thread-safe.

    Args:
        bases: reads older chunks.
        turn: grows by one with each save and says which delta chains begin anew; ``None`` if none has to.
    """

    def __init__(self, bases: Bases, turn: int | None) -> None:
        self._bases = bases
        self._turn = turn

    def encode(self, task: ChunkTask, found: Found, room: Room) -> tuple[Encoded, ObjectId | None]:
        """A chunk as it will be stored, and the base that it takes to decode it.

        Args:
            task: the chunk, with its bytes.
            found: of the chunk's base at least.
            room: where the payload goes.
        """
        if task.element is None:
            return encode_blob(task.raw), None
        base = self._base(task, found)
        if base is None:
            return encode(task.raw, task.element, None, room), None
        encoded = encode(task.raw, task.element, base.raw, room, base.view)
        if not encoded.uses_base:
            return encoded, None
        if encoded.size_bytes > base.most_bytes:
            return encode(task.raw, task.element, None, room), None
        return encoded, base.id

    def _base(self, task: ChunkTask, found: Found) -> _Against | None:
        """What to store a chunk against; ``None`` where its delta chain ends.

        A base that cannot be read is none; the reader has marked the copy.
        """
        before = task.base
        place = None if before is None else found.stored.get(before.id)
        # None also for a chunk that equals its base and has no good copy any more
        if before is None or place is None or not _fits(task, before, place):
            return None
        try:
            if before.is_like:
                return self._alike(task, before, place, found)
            if not self._begins_anew(task, place):
                return _Against(before.id, before.read(), len(task.raw))
            if place.base is None:  # how little saves change only the delta itself will tell
                return _Against(before.id, before.read(), int(SMALL_DELTA_SHARE * len(task.raw)))
            older = older_base(chain_below(before.id, found.below))
            if older is None:
                return None
            raw = self._bases.older(ChunkId(older.id), len(task.raw))
            return _Against(older.id, raw, len(task.raw))
        except (NotFound, Corrupt):
            return None

    def _alike(self, task: ChunkTask, before: Base, place: Place, found: Found) -> _Against | None:
        """The base, or what that is stored against if its chain is full: who resembles one resembles the other.

        Where the chain goes on in other words, which the index cannot tell, a delta does not pay, and none is stored.
        Nothing begins anew in turns: what is imported once has no saves after it over which to spread that.
        """
        for link in reversed(chain_below(before.id, found.below)):
            if link.place.depth < SAVE_CHAIN_DEPTH and link.place.raw_bytes == place.raw_bytes:
                raw = self._bases.older(ChunkId(link.id), place.raw_bytes)
                return _Against(link.id, raw, len(task.raw), before.view)
        return None

    def _begins_anew(self, task: ChunkTask, place: Place) -> bool:
        """Whether no delta is to lengthen the chain: it is full, or it is its turn.

        Turns are spread over the places, so that no save has to store everything in full.
        """
        is_turn = self._turn is not None and (self._turn + task.place) % (SAVE_CHAIN_DEPTH + 1) == 0
        return is_turn or place.depth >= SAVE_CHAIN_DEPTH


def _fits(task: ChunkTask, base: Base, place: Place) -> bool:
    """Whether a base has the length that it takes, by what the index says of it."""
    if base.view is None or task.element is None:
        return place.raw_bytes == len(task.raw)
    return base.view.fits(task.element, len(task.raw) // task.element.width_bytes, place.raw_bytes)
