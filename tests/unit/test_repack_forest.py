"""What is stored against what: no cycles, no chain too long, and cheap."""

from hypothesis import given
from hypothesis import strategies as st

from store.repack.forest import Forest, grow, grow_hubs, neighbours

FULL = 100

NOTHING = Forest({}, 0)


def depth(chunk: int, forest: Forest) -> int:
    """Steps to a root; forever in a cycle, which is more than there are chunks."""
    steps = 0
    while (base := forest.bases[chunk]) is not None and steps <= len(forest.bases):
        chunk, steps = base, steps + 1
    return steps


def by_distance(chunk: int, base: int | None) -> int:
    return FULL if base is None else min(FULL, 10 * abs(chunk - base))


def line(length: int) -> list[int | None]:
    return [None, *range(length - 1)]


@given(
    costs=st.lists(st.lists(st.integers(1, 120), min_size=8, max_size=8), min_size=8, max_size=8),
    parents=st.lists(st.none() | st.integers(0, 6), min_size=8, max_size=8),
    hubs=st.sets(st.integers(0, 7), max_size=4),
    max_depth=st.integers(1, 5),
)
def test_every_chunk_leads_to_a_root(
    costs: list[list[int]], parents: list[int | None], hubs: set[int], max_depth: int
) -> None:
    def cost(chunk: int, base: int | None) -> int:
        return FULL if base is None else costs[chunk][base]

    earlier = [each if each is not None and each < chunk else None for chunk, each in enumerate(parents)]
    start = grow_hubs(sorted(hubs), cost, min(2, max_depth))
    assert start.bases.keys() == hubs
    assert all(depth(hub, start) <= min(2, max_depth) for hub in hubs)
    forest = grow(range(8), neighbours(earlier, hubs), cost, max_depth, start)
    assert forest.bases.keys() == set(range(8))
    assert all(depth(chunk, forest) <= max_depth for chunk in range(8))
    assert forest.cost == sum(cost(chunk, base) for chunk, base in forest.bases.items())
    assert {hub: forest.bases[hub] for hub in hubs} == start.bases
    assert forest.cost <= start.cost + FULL * (8 - len(hubs))


def test_a_short_line_needs_one_root() -> None:
    forest = grow(range(10), neighbours(line(10), []), by_distance, 16, NOTHING)
    assert list(forest.bases.values()).count(None) == 1
    assert forest.cost == FULL + 9 * 10


def test_a_long_line_goes_on_where_a_chain_is_full() -> None:
    """At the price of a step over what is in between, and not of a root."""
    forest = grow(range(30), neighbours(line(30), []), by_distance, 8, NOTHING)
    assert list(forest.bases.values()).count(None) < 4
    assert max(depth(chunk, forest) for chunk in range(30)) <= 8


def test_what_is_started_with_stays() -> None:
    """The last one is a root, and all others are stored against what came later."""
    forest = grow(range(5), neighbours(line(5), []), by_distance, 16, Forest({4: None}, FULL))
    assert forest.bases == {4: None, 3: 4, 2: 3, 1: 2, 0: 1}


def test_a_chunk_that_nothing_is_like_is_a_root() -> None:
    def cost(chunk: int, base: int | None) -> int:
        return FULL if base is None or 2 in (chunk, base) else 5

    forest = grow(range(4), neighbours(line(4), []), cost, 16, NOTHING)
    assert forest.bases[2] is None
    assert forest.cost == FULL + FULL + 5 + 5


def test_fine_tunes_hang_on_the_base_they_are_nearest_to() -> None:
    """Two bases, each with two fine-tunes of its own; nobody said which belongs where."""

    def cost(chunk: int, base: int | None) -> int:
        if base is None or chunk % 2 != base % 2:
            return FULL
        return 10 if min(chunk, base) < 2 else 14

    forest = grow_hubs(range(6), cost, 3)
    assert forest.cost == 2 * FULL + 4 * 10
    assert sorted(chunk for chunk, base in forest.bases.items() if base is None) == [0, 1]


def test_neighbours_are_near_in_line_or_hubs_above() -> None:
    near = neighbours([None, 0, 1, 2, 3, 4, 5, 6, 7, 8, None], [1, 10])
    assert near[9] == {8, 7, 5, 1, 10}
    assert near[10] == set(range(10))
    assert 9 in near[1]
