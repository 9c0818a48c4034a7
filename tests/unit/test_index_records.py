import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.objects import Kind
from store.ids import ObjectId
from store.index.depths import resolve_depths
from store.index.records import (
    BrokenIndex,
    CommitRow,
    Place,
    decode_place,
    decode_row,
    encode_place,
    encode_row,
    is_good,
    place_key,
)
from store.limits import MAX_CHAIN_DEPTH
from tests.indexing import commit_id, entry, object_id, pack_id

sizes = st.integers(0, 2**32 - 1)
places = st.builds(
    Place,
    st.just(pack_id("p")),
    st.integers(0, 2**64 - 1),
    sizes,
    sizes,
    st.sampled_from(Kind),
    st.none() | st.just(object_id("base")),
    st.integers(0, 64),
)
rows = st.builds(
    CommitRow,
    st.just(commit_id("c")),
    st.lists(st.sampled_from([commit_id("a"), commit_id("b")])).map(tuple),
    st.none() | st.integers(0, 2**63 - 1),
    st.integers(0, 2**63 - 1),
    st.text(),
    st.integers(1, 2**63 - 1),
)


@given(places, st.booleans())
def test_a_place_comes_back(place: Place, is_bad: bool) -> None:
    key = place_key(object_id("x"), 7)
    record = encode_place(key, place, is_bad=is_bad)
    assert decode_place(key, record, place.pack) == (place, is_bad)
    assert is_good(key, record, place.pack) == (not is_bad)
    for read in (decode_place, is_good):
        with pytest.raises(BrokenIndex):
            read(key, record, pack_id("q"))


@given(rows)
def test_a_row_comes_back(row: CommitRow) -> None:
    assert decode_row(row.id, encode_row(row)) == row


@given(places, st.data())
def test_c8_no_flipped_bit_passes(place: Place, data: st.DataObject) -> None:
    key = place_key(object_id("x"), 7)
    both = bytearray(key + encode_place(key, place, is_bad=False))
    bit = data.draw(st.integers(0, 8 * len(both) - 1))
    both[bit // 8] ^= 1 << bit % 8
    with pytest.raises(BrokenIndex):
        decode_place(bytes(both[: len(key)]), bytes(both[len(key) :]), place.pack)


@given(st.binary(max_size=60))
def test_c8_garbage_is_no_record(garbage: bytes) -> None:
    for decode in (lambda: decode_place(b"k" * 36, garbage, pack_id("p")), lambda: decode_row(commit_id("c"), garbage)):
        with pytest.raises(BrokenIndex):
            decode()


def depths_of(entries: list[tuple[str, str | None]], known: dict[str, int]) -> dict[str, list[int]]:
    by_id = {object_id(name): depth for name, depth in known.items()}
    resolved, too_deep, unresolved = resolve_depths([entry(*each) for each in entries], by_id.get)
    found: dict[str, list[int]] = {}
    for each, depth in resolved:
        found.setdefault(each.id.rstrip(b".").decode(), []).append(depth)
    for each in (*too_deep, *unresolved):
        found.setdefault(each.id.rstrip(b".").decode(), []).append(-1)
    return found


def test_depths_are_derived_bottom_up_whatever_the_order() -> None:
    chain: list[tuple[str, str | None]] = [("a", None), ("b", "a"), ("c", "b"), ("d", "known")]
    expected = {"a": [0], "b": [1], "c": [2], "d": [4]}
    assert depths_of(chain, {"known": 3}) == depths_of(chain[::-1], {"known": 3}) == expected


def test_of_a_base_with_several_copies_the_shallowest_counts() -> None:
    assert depths_of([("a", "x"), ("a", None), ("b", "a"), ("x", "deep")], {"deep": 9})["b"] == [1]
    assert depths_of([("a", "x"), ("b", "a"), ("x", None)], {"a": 0})["b"] == [1]


def test_d11_cycles_and_orphans_are_left_over() -> None:
    found = depths_of([("a", "b"), ("b", "a"), ("c", "c"), ("d", "nowhere"), ("e", "d"), ("f", None)], {})
    assert found == {"a": [-1], "b": [-1], "c": [-1], "d": [-1], "e": [-1], "f": [0]}


def test_a_cycle_is_none_if_one_of_its_objects_has_a_whole_copy() -> None:
    assert depths_of([("a", "b"), ("b", "a"), ("a", None)], {}) == {"a": [0, 2], "b": [1]}


@pytest.mark.parametrize("known_depth", [0, MAX_CHAIN_DEPTH - 2])
def test_d11_a_long_chain_is_looked_at_as_often_as_chains_may_be_deep(known_depth: int) -> None:
    asked: list[ObjectId] = []

    def known(base: ObjectId) -> int | None:
        asked.append(base)
        return known_depth if base == object_id("known") else None

    chain = [entry(f"c{number}", f"c{number - 1}" if number else "known") for number in range(500)]
    resolved, too_deep, unresolved = resolve_depths(chain[::-1], known)
    count = MAX_CHAIN_DEPTH - known_depth
    assert [(each.id, depth) for each, depth in resolved] == [
        (object_id(f"c{number}"), known_depth + 1 + number) for number in range(count)
    ]
    assert [each.id for each in too_deep] == [object_id(f"c{count}")]
    assert len(unresolved) == 500 - count - 1
    assert len(asked) <= 500 * (count + 1)
