"""What a delta chain that has to begin anew goes on from: what is cheapest until it has to once more."""

from collections.abc import Callable

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.objects import Kind
from store.ids import ObjectId, PackId
from store.index import Place
from store.limits import MAX_CHAIN_DEPTH, SAVE_CHAIN_DEPTH
from store.reading.chains import Link
from store.saving.restarts import chain_below, older_base

RAW_BYTES = 1_000_000
FULL_BYTES = 900_000
PACK = PackId(b"p" * 32)

Choose = Callable[[list[Link]], Link | None]


def name(number: int) -> ObjectId:
    return ObjectId(number.to_bytes(32, "big"))


def chain(*deltas: int, full: int = FULL_BYTES) -> list[Link]:
    """A chain of objects of these stored lengths, each against the one before it."""
    stored = [full, *deltas]
    bases = [None, *map(name, range(len(deltas)))]
    return [
        Link(name(depth), Place(PACK, 0, stored_bytes, RAW_BYTES, Kind.CHUNK, base, depth))
        for depth, (stored_bytes, base) in enumerate(zip(stored, bases, strict=True))
    ]


def chosen(*deltas: int, full: int = FULL_BYTES) -> int | None:
    """Depth of the base."""
    found = older_base(chain(*deltas, full=full))
    return None if found is None else found.place.depth


# --- which base -----------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("delta_bytes", [130_000, 500_000, 855_000])
def test_b7_what_changes_much_is_stored_in_full(delta_bytes: int) -> None:
    """Its older base is not even read."""
    assert [chosen(*[delta_bytes] * count) for count in range(1, SAVE_CHAIN_DEPTH + 1)] == [None] * SAVE_CHAIN_DEPTH


def test_b7_what_changes_little_goes_on_from_the_chunk_that_the_chain_began_with() -> None:
    assert chosen(10_000, 10_000, 10_000, 10_000) == 0


def test_b7_a_long_way_back_is_spared_by_a_base_in_between() -> None:
    """From the beginning it would take 150,000 bytes instead of 40,000, and spare one save that begins anew."""
    assert chosen(110_000, 10_000, 10_000, 10_000) == 1


def test_b7_too_long_a_way_back_is_given_up_for_a_full_chunk() -> None:
    assert chosen(300_000, 200_000, 200_000, 125_000) is None


def test_what_began_as_nothing_is_no_dearer_in_full_than_all_that_came_since() -> None:
    """A table of zeros takes a few bytes; what it would take now they do not tell."""
    assert chosen(10_000, 10_000, 10_000, 10_000, full=50) is None
    assert chosen(400_000, 10_000, 10_000, 10_000, full=50) == 1


def test_a_chain_without_deltas_has_no_older_base() -> None:
    assert chosen() is None
    assert older_base([]) is None


@given(st.lists(st.integers(1, RAW_BYTES), min_size=1, max_size=MAX_CHAIN_DEPTH), st.integers(1, RAW_BYTES))
def test_no_chain_grows_too_long(deltas: list[int], full: int) -> None:
    """Whoever branches from a repacked commit meets chains that are longer than any a save makes."""
    depth = chosen(*deltas, full=full)
    assert depth is None or depth < min(SAVE_CHAIN_DEPTH, len(deltas))


# --- where it leads -------------------------------------------------------------------------------------------------


def simulated(change: float, choose: Choose, save_count: int) -> list[float]:
    """What each save takes of a table of which each touches a share, chosen by chance."""
    positions, stored, taken = [0], [FULL_BYTES], []
    for number in range(1, save_count + 1):
        base = positions[-1]
        if len(positions) > SAVE_CHAIN_DEPTH:
            found = choose(chain(*stored[1:], full=stored[0]))
            kept = 0 if found is None else found.place.depth + 1
            positions, stored = positions[:kept], stored[:kept]
            base = positions[-1] if positions else -1
        touched = 1 - (1 - change) ** (number - base)
        taken.append(FULL_BYTES if base < 0 else max(1, int(touched * FULL_BYTES)))
        positions.append(number)
        stored.append(taken[-1])
        assert len(positions) <= SAVE_CHAIN_DEPTH + 1
    return taken


def in_full(links: list[Link]) -> None:
    del links


@given(st.floats(0.0001, 0.999))
def test_a_run_never_takes_more_than_if_chains_began_anew_in_full(change: float) -> None:
    ours, full = (sum(simulated(change, choose, 100)) for choose in (older_base, in_full))
    assert ours <= full


@pytest.mark.parametrize(("change", "save_count", "most"), [(0.01, 30, 0.035), (0.01, 1000, 0.06), (0.001, 300, 0.02)])
def test_b7_a_long_run_stays_small(change: float, save_count: int, most: float) -> None:
    assert sum(simulated(change, older_base, save_count)) / save_count < most * RAW_BYTES


# --- chains ---------------------------------------------------------------------------------------------------------


def test_a_chain_begins_with_what_needs_no_base() -> None:
    links = chain(10, 20, 30)
    places = {link.id: [link.place] for link in links}
    assert chain_below(name(3), places) == links
    assert chain_below(name(0), places) == links[:1]


def test_a_chain_of_which_something_is_missing_is_none() -> None:
    places = {link.id: [link.place] for link in chain(10, 20, 30)}
    assert chain_below(name(3), {**places, name(1): []}) == []
    assert chain_below(name(4), places) == []
    del places[name(0)]
    assert chain_below(name(3), places) == []


def test_a_circle_is_none() -> None:
    places = {link.id: [link.place] for link in chain(10, 20, 30)}
    places[name(0)] = [places[name(0)][0]._replace(base=name(3))]
    assert chain_below(name(3), places) == []


def test_a_chain_that_leads_to_another_length_begins_anew_in_full() -> None:
    links = chain(2000, 2000, 2000, 2000)
    assert older_base(links) is not None
    longer = links[0]._replace(place=links[0].place._replace(raw_bytes=2 * RAW_BYTES))
    assert older_base([longer, *links[1:]]) is None
