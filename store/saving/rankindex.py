"""What a rank knows of the store, since it opens no index: where some objects lie, and what those are stored against.

Either what it remembers of its own last save, or, for a rank that has none, an excerpt of the index that the snapshot's
creator made for it. Nothing else is looked up: whether what was known still holds is checked once, when the snapshot is
published.
"""

from collections.abc import Collection, Iterable, Mapping

from ..format.canonical import Node
from ..format.objects import Kind
from ..format.pack import PackTable
from ..ids import ObjectId, PackId
from ..index import Place
from ..index.depths import with_bases

Excerpt = Mapping[ObjectId, Place]
"""One copy of each of some objects, and of every delta base below them."""


class RankIndex:
    """Answers from an excerpt what savers and readers ask of an index. Thread-safe.

    Args:
        excerpt: all that there is.
    """

    def __init__(self, excerpt: Excerpt) -> None:
        self._excerpt = excerpt
        self._places = dict(excerpt)

    def places(self, object_id: ObjectId) -> list[Place]:
        """The copy of an object, if one is known."""
        place = self._places.get(object_id)
        return [] if place is None else [place]

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same for many."""
        return {object_id: self.places(object_id) for object_id in object_ids}

    def places_below(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same, and of their bases, the bases of those, and so on."""
        return with_bases(object_ids, self.places_of_each)

    def places_in_packs(self, object_id: ObjectId) -> list[Place]:
        """None: a pack that was known went away, and nobody says where its objects went."""
        del object_id
        return []

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Forget a copy that failed its check."""
        del pack
        self._places.pop(object_id, None)

    def after(self, tables: Iterable[PackTable], needed: Iterable[ObjectId]) -> Excerpt:
        """What to remember once these packs hold what was new: where some objects lie, and all below them."""
        known = dict(self._places)
        depths = {object_id: place.depth for object_id, place in self._excerpt.items()}
        for table in tables:
            for entry in table.entries:
                depth = 0 if entry.base is None else depths[entry.base] + 1  # bases are never of the same save
                known[entry.id] = Place(
                    table.id, entry.offset, entry.stored_bytes, entry.raw_bytes, entry.kind, entry.base, depth
                )
        return _below(known, needed)


def excerpt_of(found: Mapping[ObjectId, Collection[Place]]) -> Excerpt:
    """The best copy of each object that an index has told of, bases among them."""
    return {object_id: next(iter(places)) for object_id, places in found.items() if places}


def encode_excerpt(excerpt: Excerpt) -> Node:
    """A node for canonical CBOR."""
    packs = sorted({place.pack for place in excerpt.values()})
    numbers = {pack: number for number, pack in enumerate(packs)}
    return [
        packs,
        [
            [object_id, numbers[p.pack], p.offset, p.stored_bytes, p.raw_bytes, int(p.kind), p.base, p.depth]
            for object_id, p in excerpt.items()
        ],
    ]


def decode_excerpt(node: Node) -> Excerpt:
    """Inverse of :func:`encode_excerpt`. What is malformed may raise what Python raises."""
    packs, places = node
    return {
        ObjectId(object_id): Place(PackId(packs[number]), offset, stored, raw, Kind(kind), base, depth)
        for object_id, number, offset, stored, raw, kind, base, depth in places
    }


def _below(known: Excerpt, needed: Iterable[ObjectId]) -> Excerpt:
    kept: dict[ObjectId, Place] = {}
    for object_id in needed:
        waiting: ObjectId | None = object_id
        while waiting is not None and waiting not in kept and waiting in known:
            kept[waiting] = known[waiting]
            waiting = known[waiting].base
    return kept
