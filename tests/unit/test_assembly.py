"""Parts of ranks put together: what fits becomes entries, what does not is refused by name."""

import re
from collections.abc import Mapping

import pytest

from store.boxes import Box
from store.errors import Incompatible
from store.format import values
from store.format.entries import ContainerEntry, Piece, TensorEntry, ValueEntry
from store.format.trees import Ties
from store.ids import ChunkId, chunk_id
from store.saving.assembly import assemble
from store.saving.parts import EntryPart, ItemPart, Part, TensorPart
from store.saving.pieces import BoxBytes


def chunk(name: str) -> ChunkId:
    return chunk_id(name.encode())


def part(rank: int, entries: Mapping[str, EntryPart], ties: Ties = ()) -> Part:
    return Part(rank, (), {"model": ItemPart(entries, ties)})


def rows(start: int, stop: int, position: int = 0) -> TensorPart:
    """Some rows of a tensor of eight, 400 bytes each."""
    piece = Piece((start, 0), (stop - start, 100), (400 * (stop - start),), (chunk(f"{start}:{stop}"),))
    return TensorPart(position, "float32", (8, 100), (piece,))


def value(what: object, position: int = 0) -> ValueEntry:
    return ValueEntry(position, inline=values.encode(what))


def refused(parts: list[Part]) -> Incompatible:
    with pytest.raises(Incompatible) as refusal:
        assemble(parts)
    return refusal.value


def test_rows_of_several_ranks_become_one_piece() -> None:
    (entry,) = assemble([part(0, {"w": rows(4, 8)}), part(1, {"w": rows(0, 4)})])["model"].entries.values()
    piece = Piece((0, 0), (8, 100), (1600, 1600), (chunk("0:4"), chunk("4:8")))
    assert entry == TensorEntry(0, "float32", (8, 100), (piece,))


def test_a_tensor_that_sits_in_the_tree_is_put_together_of_bytes() -> None:
    parts = [
        part(rank, {"b": TensorPart(3, "uint8", (6,), inline=(BoxBytes(Box((2 * rank,), (2,)), bytes([rank] * 2)),))})
        for rank in range(3)
    ]
    assert assemble(parts)["model"].entries["b"] == TensorEntry(3, "uint8", (6,), inline=b"\0\0\1\1\2\2")


def test_a_tensor_without_elements_needs_nobody_to_write_any() -> None:
    empty = TensorPart(0, "float32", (0, 4))
    assert assemble([part(0, {"e": empty})])["model"].entries["e"] == TensorEntry(0, "float32", (0, 4), inline=b"")


def test_a_hole_is_told_with_tensor_and_ranks() -> None:
    error = refused([part(0, {"w": rows(0, 4)}), part(1, {"w": rows(6, 8)})])
    assert re.search(r"model::w: nobody has \[4:6, 0:100\] of shape \[8, 100\]; it came from ranks 0, 1", str(error))
    assert error.details == {"tensor": "model::w", "ranks": [0, 1]}


def test_rows_that_two_ranks_write_are_refused() -> None:
    error = refused([part(0, {"w": rows(0, 5)}), part(1, {"w": rows(4, 8)})])
    assert "model::w: [0:5, 0:100] and [4:8, 0:100] of shape [8, 100] overlap" in str(error)


def test_ranks_that_disagree_about_a_tensor_are_named() -> None:
    other = rows(4, 8)._replace(dtype="int32")
    error = refused([part(0, {"w": rows(0, 4)}), part(2, {"w": other})])
    assert "rank 0 gives float32 of shape [8, 100], rank 2 gives int32 of shape [8, 100]" in str(error)
    assert error.details["ranks"] == [0, 2]


@pytest.mark.parametrize(
    ("one", "other"),
    [
        (value(1), value(2)),
        (value(1), value(True)),
        (value(1), rows(0, 8)),
        (rows(0, 8), value(1)),
        (ContainerEntry(0, "dict"), ContainerEntry(0, "list")),
        (ContainerEntry(0, "defaultdict", "int"), ContainerEntry(0, "defaultdict", "list")),
        (ContainerEntry(0, "dict"), value(1)),
        (ValueEntry(0, None, (20_000,), (chunk("a"),)), ValueEntry(0, None, (20_000,), (chunk("b"),))),
    ],
)
def test_what_is_no_tensor_has_to_be_the_same_on_all_ranks_that_give_it(one: EntryPart, other: EntryPart) -> None:
    error = refused([part(1, {"x": one}), part(3, {"x": other})])
    assert str(error).startswith("model::x: rank 1 gives")
    assert error.details == {"name": "model::x", "ranks": [1, 3]}


def test_what_is_the_same_on_several_ranks_has_the_first_ones_position() -> None:
    parts = [
        part(0, {"x": value(1, 5), "c": ContainerEntry(2, "dict")}),
        part(1, {"x": value(1, 7), "c": ContainerEntry(1, "dict")}),
    ]
    assert assemble(parts)["model"].entries == {"x": value(1, 5), "c": ContainerEntry(2, "dict")}


def test_names_and_items_of_some_ranks_only_are_there_too() -> None:
    stages = [part(0, {"layers/0": rows(0, 8)}), Part(1, (), {"rng": ItemPart({"1": value(1)})})]
    found = assemble([*stages, Part(2, (), {})])
    assert {item: set(each.entries) for item, each in found.items()} == {"model": {"layers/0"}, "rng": {"1"}}


@pytest.mark.parametrize(
    ("given", "joined"),
    [
        ([(("a", "b"),), (("a", "b"),)], (("a", "b"),)),
        ([(("b", "a"), ("d", "c"))], (("b", "a"), ("d", "c"))),
        ([(("a", "b"),), (("c", "d"),)], (("a", "b"), ("c", "d"))),
        ([(("a", "b"),), (("c", "d"),), (("b", "c"),)], (("c", "d", "a", "b"),)),
    ],
)
def test_a2_ties_that_any_rank_knows_of_are_kept(given: list[Ties], joined: Ties) -> None:
    parts = [part(rank, {}, ties) for rank, ties in enumerate(given)]
    found = assemble(parts)["model"].ties
    assert [set(names) for names in found] == [set(names) for names in joined]
    if len(set(given)) == 1:
        assert found == given[0]
