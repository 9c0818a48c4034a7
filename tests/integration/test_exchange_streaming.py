"""What exports read at once: windows of bytes, and blocks of rows."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from moonclip.exchange.streaming import blocks
from store.boxes import Box, require_tiling

shapes = st.lists(st.integers(0, 7), max_size=4).map(tuple)


@given(shapes, st.sampled_from([1, 2, 8]), st.integers(1, 300))
def test_blocks_tile_a_tensor_in_order_and_none_is_too_large(
    shape: tuple[int, ...], item_bytes: int, block_bytes: int
) -> None:
    found = list(blocks(shape, item_bytes, block_bytes))
    require_tiling("it", shape, found)
    assert [box.offsets for box in found] == sorted(box.offsets for box in found)
    assert all(box.volume * item_bytes <= max(block_bytes, item_bytes) for box in found)


@pytest.mark.parametrize(
    ("shape", "block_bytes", "expected"),
    [
        ((), 1, [Box((), ())]),
        ((0, 4), 1, [Box((0, 0), (0, 4))]),
        ((5, 2), 16, [Box((0, 0), (2, 2)), Box((2, 0), (2, 2)), Box((4, 0), (1, 2))]),
        ((2, 3), 8, [Box((row, at), (1, min(2, 3 - at))) for row in (0, 1) for at in (0, 2)]),
    ],
)
def test_blocks_are_rows_as_long_as_these_fit(shape: tuple[int, ...], block_bytes: int, expected: list[Box]) -> None:
    assert list(blocks(shape, 4, block_bytes)) == expected
