"""Copies are removed from the index, and whatever stays can be read."""

from itertools import pairwise
from pathlib import Path
from tempfile import TemporaryDirectory

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store.format.pack import TableEntry
from store.index import BrokenIndex, Copy, IndexWriter, LmdbIndex, Unremoved
from store.index.depths import resolve_depths
from store.index.transaction import LAYOUTS, OBJECTS
from store.limits import MAX_CHAIN_DEPTH
from tests.indexing import data_of, entry, generations, make, object_id, pack_id

NAMES = "abcde"
Packs = list[list[tuple[str, str | None]]]

packs = st.lists(
    st.lists(
        st.tuples(st.sampled_from(NAMES), st.none() | st.sampled_from(NAMES)),
        min_size=1,
        max_size=5,
        unique_by=lambda pair: pair[0],
    ),
    min_size=2,
    max_size=6,
)


def copy(name: str, number: int) -> Copy:
    return Copy(object_id(name), pack_id(f"p{number}"))


def remove(index: LmdbIndex, *copies: Copy, spare_last: bool = False) -> list[Unremoved]:
    return index.write(lambda writer: writer.remove_places(copies, spare_last=spare_last))


def add(index: LmdbIndex, pack: str, *entries: TableEntry) -> None:
    index.write(lambda writer: writer.add_pack(pack_id(pack), entries))


class Held:
    """Which copies there are, found out by trying."""

    def __init__(self, given_packs: Packs) -> None:
        self.copies: dict[Copy, TableEntry] = {}
        for number, pairs in enumerate(given_packs):
            listed = [entry(name, base) for name, base in pairs if base != name]
            for each, _ in resolve_depths(listed, self.depths().get).resolved:
                self.copies[Copy(each.id, pack_id(f"p{number}"))] = each

    def depths(self) -> dict[bytes, int]:
        least: dict[bytes, int] = {}
        for each, depth in resolve_depths(self.copies.values(), lambda _: None).resolved:
            least[each.id] = min(depth, least.get(each.id, depth))
        return least

    def without(self, gone: Copy) -> "Held":
        held = Held([])
        held.copies = {each: at for each, at in self.copies.items() if each != gone}
        return held

    def is_readable(self) -> bool:
        """Whether every copy can be resolved."""
        return not resolve_depths(self.copies.values(), lambda _: None).unresolved


def require_readable(index: LmdbIndex, held: Held) -> None:
    """Who takes the shallowest copy of each object gets to the end, in no more steps than its depth says."""
    for name in NAMES:
        places = index.places(object_id(name))
        assert {Copy(object_id(name), place.pack) for place in places} == {
            each for each in held.copies if each.id == object_id(name)
        }
        assert places == sorted(places, key=lambda place: place.depth)
        for place in places:
            chain = [place]
            while chain[-1].base is not None:
                chain.append(index.places(chain[-1].base)[0])
            assert all(above.depth > below.depth for above, below in pairwise(chain))
            assert place.depth == (held.depths()[place.base] + 1 if place.base else 0)


@settings(max_examples=60, deadline=None)
@given(packs, st.lists(st.tuples(st.sampled_from(NAMES), st.integers(0, 5)), max_size=25), st.booleans())
def test_whatever_goes_the_rest_can_be_read(given_packs: Packs, going: list[tuple[str, int]], spare_last: bool) -> None:
    held = Held(given_packs)
    with TemporaryDirectory() as root:
        index = make(Path(root))
        for number in range(len(given_packs)):
            pack = pack_id(f"p{number}")
            add(index, f"p{number}", *[at for each, at in held.copies.items() if each.pack == pack])
        for name, number in going:
            gone = copy(name, number)
            after = held.without(gone)
            is_last = spare_last and gone in held.copies and not any(each.id == gone.id for each in after.copies)
            refused = remove(index, gone, spare_last=spare_last)
            index.write(lambda writer: writer.lower_depths([object_id(name) for name in NAMES]))
            assert [each.copy for each in refused] == ([gone] if is_last or not after.is_readable() else [])
            held = held if refused else after
            require_readable(index, held)
        index.close()


def test_what_was_read_by_way_of_a_copy_gets_deeper(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"), entry("x"))
    add(index, "p1", entry("x", "a"), entry("y", "x"), entry("z", "y"))
    assert [index.places(object_id(name))[0].depth for name in "xyz"] == [0, 1, 2]
    assert remove(index, copy("x", 0)) == []
    assert [index.places(object_id(name))[0].depth for name in "xyz"] == [1, 2, 3]
    index.close()


def test_what_can_be_read_by_way_of_a_shallower_copy_gets_less_deep(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"), entry("x", "a"), entry("y", "x"), entry("z", "y"))
    add(index, "p1", entry("x"))
    assert [index.places(object_id(name))[0].depth for name in "xyz"] == [0, 2, 3]
    index.write(lambda writer: writer.lower_depths([object_id("x"), object_id("unknown")]))
    assert [index.places(object_id(name))[0].depth for name in "xyz"] == [0, 1, 2]
    assert remove(index, copy("x", 1)) == []
    assert [index.places(object_id(name))[0].depth for name in "xyz"] == [1, 2, 3]
    index.close()


def test_a_base_stays_and_the_delta_is_named(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"), entry("x", "a"))
    (refused,) = remove(index, copy("a", 0))
    assert refused.copy == copy("a", 0)
    assert object_id("x").hex() in refused.why
    assert remove(index, copy("a", 0), copy("x", 0)) == []  # both together may go
    assert index.places_of_each([object_id("a"), object_id("x")]) == {object_id("a"): [], object_id("x"): []}
    index.close()


def test_a_delta_that_arrives_meanwhile_keeps_its_base(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"))

    def race(writer: IndexWriter) -> list[Unremoved]:
        writer.add_pack(pack_id("p1"), [entry("x", "a")])
        return writer.remove_places([copy("a", 0)], spare_last=False)

    assert len(index.write(race)) == 1
    index.close()


def test_no_cycle_is_made(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"), entry("b", "a"))
    add(index, "p1", entry("a", "b"))
    (refused,) = remove(index, copy("a", 0), spare_last=True)
    assert "too deep" in refused.why
    assert [place.depth for place in index.places(object_id("a"))] == [0, 2]
    add(index, "p2", entry("b"))
    assert remove(index, copy("a", 0), spare_last=True) == []
    assert remove(index, copy("b", 0), spare_last=True) == []
    assert index.places(object_id("a"))[0].depth >= 1
    index.close()


def test_d11_no_chain_gets_too_deep(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("c1"), entry("c0"))
    chain = [entry(f"c{depth}", f"c{depth - 1}") for depth in range(1, MAX_CHAIN_DEPTH + 2)]
    add(index, "p1", *chain)
    (refused,) = remove(index, copy("c1", 0))
    assert "too deep" in refused.why
    assert index.places(object_id(f"c{MAX_CHAIN_DEPTH + 1}"))[0].depth == MAX_CHAIN_DEPTH
    assert remove(index, copy("c1", 0), copy(f"c{MAX_CHAIN_DEPTH + 1}", 1)) == []
    assert index.places(object_id(f"c{MAX_CHAIN_DEPTH}"))[0].depth == MAX_CHAIN_DEPTH
    index.close()


def test_a_bad_copy_goes_and_keeps_nobody(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"), entry("x", "a"))
    index.mark_bad(object_id("x"), pack_id("p0"))
    assert remove(index, copy("a", 0)) == []
    assert remove(index, copy("x", 0), spare_last=True) == []
    assert index.write(lambda writer: writer.remove_pack(pack_id("p0"), [object_id("a"), object_id("x")]))
    index.close()


def test_a_pack_is_forgotten_once_no_place_is_left(tmp_path: Path) -> None:
    index = make(tmp_path)
    ids = [object_id("a"), object_id("x")]
    add(index, "p0", entry("a"), entry("x"))
    assert not index.write(lambda writer: writer.remove_pack(pack_id("p0"), ids))
    remove(index, *(Copy(each, pack_id("p0")) for each in ids))
    assert index.packs() == [pack_id("p0")]
    for _ in range(2):
        assert index.write(lambda writer: writer.remove_pack(pack_id("p0"), ids))
    assert index.packs() == []
    add(index, "p1", entry("y"))
    assert [place.pack for place in index.places(object_id("y"))] == [pack_id("p1")]
    index.close()


def test_a_pack_may_come_in_parts(tmp_path: Path) -> None:
    index = make(tmp_path)
    entries = [entry("a"), entry("x", "a", 228), entry("y", "x", 392)]
    for part in (entries[:1], entries[1:2], entries[1:2], entries):
        index.write(lambda writer, part=part: writer.add_pack(pack_id("p"), part))  # type: ignore[misc]
        assert len(index.places(object_id("a"))) == 1
    assert [index.places(object_id(name))[0].depth for name in "axy"] == [0, 1, 2]
    index.close()


def forget_layout(writer: IndexWriter) -> None:
    """As an index is that was made before there was a table of deltas."""
    writer._transaction.delete(LAYOUTS, b"layout")


def test_an_index_from_before_the_table_of_deltas_is_rebuilt(tmp_path: Path) -> None:
    def fill(writer: IndexWriter) -> None:
        writer.add_pack(pack_id("p0"), [entry("a"), entry("x", "a")])

    index = make(tmp_path, fill)
    index.write(forget_layout)
    (refused,) = LmdbIndex.write(
        generations(tmp_path, fill).open(writable=True),
        lambda writer: writer.remove_places([copy("a", 0)], spare_last=False),
    )
    assert refused.copy == copy("a", 0)
    assert data_of(tmp_path).parent.name == "2"
    index.close()


def test_c8_a_delta_that_is_told_of_and_lost_is_no_permission(tmp_path: Path) -> None:
    index = make(tmp_path)
    add(index, "p0", entry("a"), entry("x", "a"))
    index.write(lambda writer: writer._transaction.delete(OBJECTS, object_id("x") + bytes(4)))
    index.writable = False
    with pytest.raises(BrokenIndex, match="lost"):
        index._write(lambda writer: writer.remove_places([copy("a", 0)], spare_last=False))
    index.close()
