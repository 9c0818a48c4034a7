"""Boxes: where they meet, and whether they tile a shape."""

from itertools import product

import pytest

from store.boxes import Box, intersection, require_tiling, whole
from store.errors import Incompatible
from store.limits import MAX_PIECES


def test_boxes_meet_in_a_box() -> None:
    assert intersection(Box((0, 0), (4, 4)), Box((2, 3), (9, 9))) == Box((2, 3), (2, 1))
    assert intersection(Box((0, 0), (4, 4)), Box((4, 0), (4, 4))) is None
    assert intersection(Box((0,), (0,)), Box((0,), (3,))) is None
    assert intersection(Box((), ()), Box((), ())) == Box((), ())


def test_a_box_reads_like_an_index() -> None:
    assert str(Box((0, 2), (4, 3))) == "[0:4, 2:5]"


@pytest.mark.parametrize(
    ("shape", "boxes"),
    [
        ((), [Box((), ())]),
        ((0, 3), []),
        ((4,), [Box((2,), (2,)), Box((0,), (2,)), Box((4,), (0,))]),
        # No cut goes through all of this one: five boxes around each other like the vanes of a windmill.
        (
            (3, 3),
            [Box((0, 0), (1, 2)), Box((0, 2), (2, 1)), Box((2, 1), (1, 2)), Box((1, 0), (2, 1)), Box((1, 1), (1, 1))],
        ),
    ],
)
def test_tilings(shape: tuple[int, ...], boxes: list[Box]) -> None:
    require_tiling("w", shape, boxes)


@pytest.mark.parametrize(
    ("boxes", "told"),
    [
        ([], r"nobody has \[0:4, 0:6\] of shape \[4, 6\]"),
        ([Box((0, 0), (2, 6))], r"nobody has \[2:4, 0:6\]"),
        ([Box((0, 0), (4, 3)), Box((0, 4), (4, 2))], r"nobody has \[0:4, 3:4\]"),
        ([Box((0, 0), (3, 6)), Box((2, 0), (2, 6))], r"\[0:3, 0:6\] and \[2:4, 0:6\] of shape \[4, 6\] overlap"),
        ([Box((0, 0), (4, 6)), Box((0, 0), (4, 6))], "overlap"),
        # As many elements as there are, and yet some twice and others never.
        ([Box((0, 0), (4, 3)), Box((0, 2), (4, 3))], "overlap"),
        ([Box((0, 0), (5, 6))], r"\[0:5, 0:6\] reaches outside"),
        ([Box((-1, 0), (5, 6))], "reaches outside"),
        ([Box((0,), (4,))], "reaches outside"),
        ([Box((0, 0), (-4, -6))], "reaches outside"),
    ],
)
def test_what_is_no_tiling_is_told_with_the_tensor_and_the_place(boxes: list[Box], told: str) -> None:
    with pytest.raises(Incompatible, match=f"^model::w: .*{told}"):
        require_tiling("model::w", (4, 6), boxes)


@pytest.mark.parametrize("grid", [(MAX_PIECES, 1), (1, MAX_PIECES), (64, 64)])
def test_thousands_of_pieces_are_checked(grid: tuple[int, int]) -> None:
    rows, columns = 3, 2
    boxes = [Box((rows * i, columns * j), (rows, columns)) for i, j in product(*map(range, grid))]
    shape = (rows * grid[0], columns * grid[1])
    require_tiling("w", shape, boxes)
    with pytest.raises(Incompatible, match="nobody has"):
        require_tiling("w", shape, boxes[:-1])
    moved = boxes[len(boxes) // 2]
    with pytest.raises(Incompatible, match="overlap"):
        require_tiling("w", shape, [*boxes[:-1], moved])


def test_boxes_that_are_cut_off_one_by_one_are_checked() -> None:
    """First a row, then a column of what is left, and so on: more often than functions may call themselves."""
    side = 600
    peeled = [
        box
        for corner in range(side)
        for box in (
            Box((corner, corner), (1, side + 1 - corner)),
            Box((corner + 1, corner), (side - corner, 1)),
        )
    ]
    shape, last = (side + 1, side + 1), Box((side, side), (1, 1))
    require_tiling("w", shape, [*peeled, last])
    with pytest.raises(Incompatible, match=r"nobody has \[600:601, 600:601\]"):
        require_tiling("w", shape, peeled)
    with pytest.raises(Incompatible, match="overlap"):
        require_tiling("w", shape, [*peeled, last, last])


def test_the_whole_is_a_box() -> None:
    assert whole((2, 3)) == Box((0, 0), (2, 3))
    assert whole(()).volume == 1
