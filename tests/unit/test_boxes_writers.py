"""Who writes what: everything once, and everybody as much as the others."""

from math import prod

import pytest

from moonclip.sharding.layouts import Layout, Split, parts_of
from moonclip.sharding.writers import Holding, Name, share_out
from store.boxes import Box, require_tiling, whole
from store.errors import Incompatible
from store.format.chunking import grid_rows
from store.limits import MAX_CHUNK_BYTES, MIB
from tests.sharding import coordinates

Shares = list[dict[Name, tuple[Box, ...]]]


def named(entry: str) -> Name:
    return Name("model", entry)


def full(*shape: int, dtype: str = "float32") -> Holding:
    return Holding(dtype, shape, (whole(shape),))


def sharded(layout: Layout) -> list[Holding]:
    return [
        Holding("float32", layout.shape, tuple(part.box for part in parts_of(layout, each)))
        for each in coordinates(layout)
    ]


def loads(shares: Shares) -> list[int]:
    return [sum(box.volume * 4 for boxes in own.values() for box in boxes) for own in shares]


def test_what_all_hold_is_written_once_and_spread_by_bytes() -> None:
    holdings = {named(f"layer{number}"): full(1 + number % 7, 100) for number in range(40)}
    shares = share_out([holdings] * 4)
    assert sorted(name for own in shares for name in own) == sorted(holdings)
    assert max(loads(shares)) - min(loads(shares)) <= 4 * 700


def test_the_answer_does_not_depend_on_the_order_in_which_tensors_come() -> None:
    holdings = {named(f"layer{number}"): full(1 + number % 3, 100) for number in range(40)}
    backwards = dict(reversed(holdings.items()))
    assert share_out([holdings, backwards]) == share_out([backwards, holdings])


def test_a_large_tensor_that_all_hold_is_shared_out_in_parts_that_end_where_chunks_do() -> None:
    shape = (1000, 16 * MIB // 4000)
    shares = share_out([{named("embed"): full(*shape)}] * 4)
    boxes = [box for own in shares for box in own[named("embed")]]
    require_tiling("embed", shape, boxes)
    assert {box.offsets[0] for box in boxes} <= set(grid_rows(shape[0], shape[1] * 4))
    assert max(loads(shares)) <= 1.01 * prod(shape) * 4 / 4


def test_a_tensor_of_one_chunk_is_not_shared_out() -> None:
    shares = share_out([{named("w"): full(1024, MAX_CHUNK_BYTES // 4096)}] * 4)
    assert [len(own) for own in shares] == [1, 0, 0, 0]


def test_who_has_shards_of_his_own_to_write_gets_less_of_what_all_hold() -> None:
    """Sharded over the first mesh dim, and with copies over the second, beside tensors that all hold."""
    uneven = sharded(Layout((3, 1000), (2, 2), (Split(0), None)))
    holdings = [{named("w"): own, **{named(f"b{n}"): full(500) for n in range(6)}} for own in uneven]
    shares = share_out(holdings)
    require_tiling("w", (3, 1000), [box for own in shares for box in own.get(named("w"), ())])
    assert sorted(loads(shares)) == [4000, 6000, 6000, 8000]
    assert sum(loads(shares)) == 4 * (3000 + 6 * 500)


def test_pipeline_stages_write_their_own() -> None:
    shares = share_out([{named("first"): full(10)}, {named("last"): full(20)}])
    assert shares == [{named("first"): (whole((10,)),)}, {named("last"): (whole((20,)),)}]


def test_a_tensor_without_elements_is_written_by_one() -> None:
    shares = share_out(2 * [{named("none"): full(0, 5)}])
    assert shares == [{named("none"): ()}, {}]


def test_a_rank_without_a_part_of_a_tensor_writes_none() -> None:
    shares = share_out([{named("w"): own} for own in sharded(Layout((1, 5), (2,), (Split(0),)))])
    assert shares == [{named("w"): (whole((1, 5)),)}, {}]


@pytest.mark.parametrize(
    ("second", "told"),
    [
        (full(4, 4, dtype="float16"), r"rank 0 has float32 of shape \[4, 4\], rank 1 has float16"),
        (full(4, 5), r"rank 1 has float32 of shape \[4, 5\]"),
        (Holding("float32", (4, 4), (Box((2, 0), (2, 4)),)), "overlap"),
    ],
)
def test_ranks_that_disagree_are_refused(second: Holding, told: str) -> None:
    with pytest.raises(Incompatible, match=f"^model::w: .*{told}"):
        share_out([{named("w"): full(4, 4)}, {named("w"): second}])


def test_what_nobody_holds_is_refused() -> None:
    half = Holding("float32", (4, 4), (Box((0, 0), (2, 4)),))
    with pytest.raises(Incompatible, match=r"^model::w: nobody has \[2:4, 0:4\] of shape \[4, 4\]"):
        share_out([{named("w"): half}] * 2)


def test_what_one_rank_alone_holds_stays_one_box() -> None:
    layout = Layout((4096, 2048), (2,), (Split(0),))
    shares = share_out([{named("w"): own} for own in sharded(layout)])
    assert [own[named("w")] for own in shares] == [(Box((0, 0), (2048, 2048)),), (Box((2048, 0), (2048, 2048)),)]
