"""What is said of items beforehand, without a store."""

from typing import Any

import numpy as np
import pytest
import torch

from moonclip import Box, Incompatible, ItemSpec, Layout, Part, Sharding
from moonclip.sharding.placed import Placed, is_placed
from moonclip.specs import Schema, file_paths


def test_a_path_is_the_items_name_and_a_suffix_unless_it_is_given() -> None:
    layouts = {"model": Layout("safetensors"), "a": Layout("raw", "./parts//a"), "b": Layout("json")}
    assert file_paths(layouts) == {"model": "model.safetensors", "a": "parts/a", "b": "b.json"}


def test_an_item_whose_name_would_leave_the_directory_needs_a_path() -> None:
    with pytest.raises(Incompatible, match=r"'\.\./up\.pt' is no path"):
        file_paths({"../up": Layout("torch")})
    assert file_paths({"../up": Layout("torch", "up.pt")}) == {"../up": "up.pt"}


def test_an_unknown_kind_is_refused() -> None:
    with pytest.raises(Incompatible, match="a layout is one of torch, json, raw, safetensors, not 'pickle'"):
        Layout("pickle")  # type: ignore[arg-type]


def test_layouts_that_meet_are_refused_by_a_schema() -> None:
    with pytest.raises(Incompatible, match=r"b would be written to x/y\.pt, below a's file"):
        Schema({"a": ItemSpec(layout=Layout("raw", "x")), "b": ItemSpec(layout=Layout("torch", "x/y.pt"))})


def test_a_sharding_has_its_boxes_within_the_shape_and_apart() -> None:
    with pytest.raises(Incompatible, match=r"\[2:5\] reaches outside of shape \[4\]"):
        Sharding((4,), (Part(Box((2,), (3,)), (0,)),))
    with pytest.raises(Incompatible, match=r"\[0:3\] and \[2:4\] of shape \[4\] overlap"):
        Sharding((4,), (Part(Box((2,), (2,)), (3,)), Part(Box((0,), (3,)), (0,))))
    with pytest.raises(Incompatible, match="reaches outside"):
        Sharding((4, 4), (Part(Box((0,), (4,)), (0,)),))
    assert Sharding((4, 4), ()).parts == ()


def test_a_part_that_the_ranks_tensor_has_no_room_for_is_refused() -> None:
    sharding = Sharding((9,), (Part(Box((4,), (3,)), (2,)),))
    sharding.require_within((5,))
    for own in ((4,), (5, 1), ()):
        with pytest.raises(Incompatible, match=r"\[4:7\] would begin at \[2\]"):
            sharding.require_within(own)


def test_two_parts_in_one_place_of_the_ranks_tensor_are_refused() -> None:
    sharding = Sharding((8,), (Part(Box((0,), (4,)), (0,)), Part(Box((4,), (4,)), (3,))))
    with pytest.raises(Incompatible, match=r"in one place of the rank's own tensor, \[0:4\] and \[3:7\]"):
        sharding.require_within((8,))
    with pytest.raises(Incompatible, match="would begin at"):
        sharding.require_within((6,))
    Sharding((8,), (Part(Box((0,), (4,)), (4,)), Part(Box((4,), (4,)), (0,)))).require_within((8,))


def test_a_sharding_takes_any_sequences_of_whole_numbers_and_refuses_all_else() -> None:
    box: Any = ([np.int64(2)], torch.Size([2]))
    assert Sharding([4], [(box, [0])]) == Sharding((4,), (Part(Box((2,), (2,)), (0,)),))  # type: ignore[arg-type, list-item]
    odd: list[tuple[Any, Any]] = [
        ("4", ()), (4, ()), ((4.0,), ()), ((4,), None), ((4,), (Box((0,), (4,)),)), ((4,), Part(Box((0,), (4,)), (0,))),
        ((4,), (Part(Box((0, 0), (4,)), (0,)),)),
    ]  # fmt: skip
    for shape, parts in odd:
        with pytest.raises(Incompatible, match="is no sharding; give a shape, and parts like"):
            Sharding(shape, parts)
    for shape in ((-4,), (2**62, 2**10), (2**70,)):
        with pytest.raises(Incompatible, match="no tensor has the shape"):
            Sharding(shape, ())


@pytest.mark.parametrize("path", ["half \ud800.pt", 3, b"model.pt"])
def test_a_path_that_is_none_is_refused_where_it_is_declared(path: Any) -> None:
    with pytest.raises(Incompatible, match="no path of a file below the directory"):
        Layout("torch", path)


def test_what_is_no_spec_is_refused_where_it_is_declared() -> None:
    with pytest.raises(Incompatible, match=r"an item's layout is a Layout, not 'json'; as in Layout\('json'\)"):
        ItemSpec(layout="json")  # type: ignore[arg-type]
    with pytest.raises(Incompatible, match="an item's resharder is a function, not 3"):
        ItemSpec(resharder=3)  # type: ignore[arg-type]
    with pytest.raises(Incompatible, match=r"items is a mapping of ItemSpecs by item's name, not \['model'\]"):
        Schema(["model"])  # type: ignore[arg-type]
    with pytest.raises(Incompatible, match="3 is no name of an item"):
        Schema({3: ItemSpec()})  # type: ignore[dict-item]


def test_a_stand_in_has_the_global_shape_and_computes_nothing() -> None:
    own = torch.nn.Parameter(torch.ones(5, dtype=torch.bfloat16))
    placed = Placed.of(own, Sharding((9,), (Part(Box((4,), (3,)), (2,)),)))
    assert is_placed(placed)
    assert (tuple(placed.shape), placed.dtype, placed.nbytes) == ((9,), torch.bfloat16, 18)
    assert placed.to_local().data_ptr() == own.data_ptr()
    with pytest.raises(NotImplementedError, match="only says where its elements belong"):
        placed + 1
