"""The boxes that a rank holds, worked out by hand; against torch's own shards in ``tests/distributed``."""

import pytest

from moonclip.sharding.layouts import Layout, Split, local_shape, parts_of, place_of
from store.boxes import Box
from store.errors import Incompatible


def told(layout: Layout, *coordinate: int) -> list[str]:
    return [str(part.box) for part in parts_of(layout, coordinate)]


def test_rows_are_split_as_torch_chunks_them() -> None:
    layout = Layout((10, 3), (4,), (Split(0),))
    assert [told(layout, rank) for rank in range(4)] == [
        ["[0:3, 0:3]"],
        ["[3:6, 0:3]"],
        ["[6:9, 0:3]"],
        ["[9:10, 0:3]"],
    ]


def test_some_ranks_have_nothing() -> None:
    layout = Layout((5,), (4,), (Split(0),))
    assert [told(layout, rank) for rank in range(4)] == [["[0:2]"], ["[2:4]"], ["[4:5]"], []]
    assert local_shape(layout, (3,)) == (0,)


def test_a_copy_is_the_whole_box() -> None:
    layout = Layout((5, 2), (2, 2), (None, Split(1)))
    assert told(layout, 0, 1) == told(layout, 1, 1) == ["[0:5, 1:2]"]
    assert told(Layout((), (2,), (None,)), 1) == ["[]"]


def test_a_dim_is_split_by_one_mesh_dim_after_the_other() -> None:
    layout = Layout((10,), (2, 2), (Split(0), Split(0)))
    assert [told(layout, *each) for each in ((0, 0), (0, 1), (1, 0), (1, 1))] == [
        ["[0:3]"],
        ["[3:5]"],
        ["[5:8]"],
        ["[8:10]"],
    ]


def test_fsdp_over_tensor_parallelism_is_one_run_of_rows() -> None:
    layout = Layout((6, 3), (2, 2), (Split(0, 2), Split(0)))
    assert [told(layout, *each) for each in ((0, 0), (0, 1), (1, 0), (1, 1))] == [
        ["[0:2, 0:3]"],
        ["[3:5, 0:3]"],
        ["[2:3, 0:3]"],
        ["[5:6, 0:3]"],
    ]


def test_a_lone_strided_split_is_several_boxes_and_may_be_uneven() -> None:
    layout = Layout((9, 2), (4,), (Split(0, 2),))
    first, second, *_ = (parts_of(layout, (rank,)) for rank in range(4))
    assert [(str(part.box), part.local) for part in first] == [("[0:2, 0:2]", (0, 0)), ("[5:6, 0:2]", (2, 0))]
    assert [(str(part.box), part.local) for part in second] == [("[2:4, 0:2]", (0, 0)), ("[6:7, 0:2]", (2, 0))]
    assert [local_shape(layout, (rank,)) for rank in range(4)] == [(3, 2), (3, 2), (2, 2), (1, 2)]


def test_boxes_of_two_strided_dims_are_a_grid() -> None:
    layout = Layout((4, 4), (2, 2), (Split(0, 2), Split(1, 2)))
    assert [(str(part.box), part.local) for part in parts_of(layout, (1, 0))] == [
        ("[1:2, 0:1]", (0, 0)),
        ("[1:2, 2:3]", (0, 1)),
        ("[3:4, 0:1]", (1, 0)),
        ("[3:4, 2:3]", (1, 1)),
    ]


def test_what_is_adjacent_is_one_box() -> None:
    assert told(Layout((8,), (1, 2), (Split(0, 4), Split(0))), 0, 1) == ["[4:8]"]


def test_a_size_that_fsdp_lays_out_otherwise_than_it_says_is_refused_on_every_rank() -> None:
    layout = Layout((9, 3), (4, 2), (Split(0, 2), Split(0)))
    for rank in range(8):
        with pytest.raises(Incompatible, match="a dim of 9, split over a mesh of 4 × 2"):
            parts_of(layout, divmod(rank, 2))


@pytest.mark.parametrize("split", [Split(2), Split(-1), Split(0, 0)])
def test_a_split_of_no_dim_is_refused(split: Split) -> None:
    with pytest.raises(Incompatible, match="cannot be laid out"):
        parts_of(Layout((4, 4), (2,), (split,)), (0,))


def test_where_a_box_lies_in_the_local_tensor() -> None:
    parts = parts_of(Layout((9, 4), (2,), (Split(0, 2),)), (1,))
    assert [str(part.box) for part in parts] == ["[3:5, 0:4]", "[7:9, 0:4]"]
    assert place_of(Box((4, 1), (1, 2)), parts) == (1, 1)
    assert place_of(Box((7, 0), (2, 4)), parts) == (2, 0)
    for other in (Box((2, 0), (2, 4)), Box((4, 0), (4, 4))):
        with pytest.raises(Incompatible, match="does not hold"):
            place_of(other, parts)
