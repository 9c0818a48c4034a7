"""Many items, some at a time."""

from itertools import pairwise

from hypothesis import given
from hypothesis import strategies as st

from store.batches import batches, fitting


@given(st.lists(st.integers(0, 9)), st.integers(1, 4))
def test_all_come_in_order_so_many_at_a_time(items: list[int], count: int) -> None:
    found = list(batches(iter(items), count))
    assert [item for batch in found for item in batch] == items
    assert all(len(batch) == count for batch in found[:-1])
    assert all(found)


@given(st.lists(st.integers(0, 9)), st.integers(1, 12), st.integers(1, 4) | st.none())
def test_as_many_come_as_fit(sizes: list[int], room: int, most: int | None) -> None:
    found = list(fitting(iter(sizes), lambda size: size, room, most))
    assert [size for window in found for size in window] == sizes
    assert all(len(window) == 1 or sum(window) <= room for window in found)
    assert all(0 < len(window) <= (most or len(sizes)) for window in found)
    for window, following in pairwise(found):
        assert sum(window) + following[0] > room or len(window) == most
