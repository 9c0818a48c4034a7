"""Bytes that are moved between memories of different strides."""

import pytest

from store.strided import Moves, at, c_strides, move


def test_dims_that_are_adjacent_on_both_sides_are_one() -> None:
    assert Moves((2, 3, 4), (12, 4, 1), (12, 4, 1)).simplified() == Moves((24,), (1,), (1,))
    assert Moves((2, 3, 4), (12, 4, 1), (24, 4, 1)).simplified() == Moves((2, 12), (12, 1), (24, 1))
    assert Moves((2, 1, 4), (12, 4, 1), (7, 99, 1)).simplified() == Moves((2, 4), (12, 1), (7, 1))
    assert Moves((1, 1), (5, 1), (9, 1)).simplified() == Moves((1,), (1,), (1,))


def test_one_run_is_told_from_others() -> None:
    assert Moves((8,), (1,), (1,)).is_run
    assert not Moves((8,), (2,), (1,)).is_run
    assert not Moves((2, 4), (8, 1), (4, 1)).is_run


def test_offsets_in_c_order() -> None:
    assert c_strides((2, 3, 4)) == (12, 4, 1)
    assert at((1, 2, 3), (12, 4, 1)) == 23


@pytest.mark.parametrize("item_bytes", [1, 2, 3, 4, 6, 8, 16])
@pytest.mark.parametrize("first", [0, 1])
def test_a_transposed_block_of_items_of_any_width(item_bytes: int, first: int) -> None:
    rows, columns = 5, 7
    source = bytes(range(first)) + bytes(n % 251 for n in range(rows * columns * item_bytes))
    target = bytearray(b"." * (rows * columns * item_bytes + first))
    strides = (columns * item_bytes, item_bytes, 1)
    moves = Moves((rows, columns, item_bytes), strides, (item_bytes, rows * item_bytes, 1))
    move(moves, memoryview(source), first, memoryview(target), first)
    items = [
        source[at((row, column, 0), strides) + first :][:item_bytes] for column in range(columns) for row in range(rows)
    ]
    assert target[first:] == b"".join(items)
    assert target[:first] == b"." * first


def test_what_lies_between_is_left_alone() -> None:
    target = bytearray(b"........")
    move(Moves((2, 2), (2, 1), (4, 1)), memoryview(b"abcd"), 0, memoryview(target), 1)
    assert target == b".ab..cd."


def test_single_bytes_far_apart() -> None:
    target = bytearray(3)
    move(Moves((3,), (4,), (1,)), memoryview(b"a...b...c"), 0, memoryview(target), 0)
    assert target == b"abc"


@pytest.mark.parametrize(
    ("source_start", "target_start", "size"), [(0, 1, 4), (1, 0, 4), (0, 5, 1), (9, 0, 1), (0, 0, 5)]
)
def test_reaching_beyond_either_memory_is_refused(source_start: int, target_start: int, size: int) -> None:
    target = bytearray(4)
    with pytest.raises(ValueError):
        move(Moves((size,), (1,), (1,)), memoryview(b"abcd"), source_start, memoryview(target), target_start)
    assert not any(target)
