"""Which objects can be read, told of many at once."""

from collections.abc import Collection

from hypothesis import given
from hypothesis import strategies as st

from store.format.objects import Kind
from store.ids import ObjectId, PackId
from store.index import Place
from store.index.depths import with_bases
from store.reading.closure import is_readable, readable

NAMES = [ObjectId(bytes([number]) * 32) for number in range(6)]
BASES = st.none() | st.sampled_from(NAMES)
GRAPHS = st.dictionaries(st.sampled_from(NAMES), st.lists(BASES, min_size=1, max_size=3))
"""What each object's copies are deltas against; cycles and objects that are nowhere among it."""


def place(base: ObjectId | None) -> Place:
    return Place(PackId(b"p" * 32), 64, 164, 100, Kind.CHUNK, base, depth=base is not None)


@given(GRAPHS, st.sets(st.sampled_from(NAMES)))
def test_many_at_once_are_what_each_is(graph: dict[ObjectId, list[ObjectId | None]], sought: set[ObjectId]) -> None:
    copies = {name: sorted(map(place, bases), key=lambda copy: copy.depth) for name, bases in graph.items()}
    asked: list[ObjectId] = []

    def places_of_each(object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        asked.extend(object_ids)
        return {object_id: copies.get(object_id, []) for object_id in object_ids}

    found = readable(sought, lambda object_ids: with_bases(object_ids, places_of_each))
    assert found.keys() == {name for name in sought if is_readable(name, lambda each: copies.get(each, []))}
    assert all(found[name] == copies[name][0] for name in found)
    assert len(asked) == len(set(asked))  # of a base that many share the index is asked once
