"""Where a model is looked at."""

from hypothesis import given
from hypothesis import strategies as st

from moonclip.families.pairing import Kind
from moonclip.families.spots import Wanted, chunks_of, cuts_of, spread, wanted_of
from store.format.chunking import tensor_cuts
from store.format.entries import Piece, TensorEntry
from store.ids import ChunkId, ObjectId
from store.saving.inputs import ItemInput, MadeInput, ValueInput


def made(start: int, stop: int) -> memoryview:
    return memoryview(bytes(stop - start))


def tensor(name: str, count: int) -> Wanted:
    shape = (count,)
    return Wanted(("model", name), Kind("uint8", shape), made, tensor_cuts(shape, 1))


@given(st.lists(st.integers(0, 3_000_000), max_size=20), st.integers(1, 50))
def test_weights_are_the_bytes(sizes: list[int], count: int) -> None:
    tensors = [tensor(str(number), size) for number, size in enumerate(sizes)]
    chunks = list(chunks_of(tensors))
    assert sum(chunk.size_bytes for chunk in chunks) == sum(sizes)
    spots = spread(chunks, count)
    assert len(spots) <= count
    known = sum(chunk.size_bytes for chunk in chunks if chunk.size_bytes >= 1024)
    assert abs(sum(spot.weight_bytes for spot in spots) - known) <= 1e-6 * known
    assert [spot.place for spot in spots] == [c.place for c in chunks if c.place in {s.place for s in spots}]


def test_large_tensors_are_met_more_often() -> None:
    spots = spread(chunks_of([tensor("small", 100_000), tensor("large", 64_000_000), tensor("tiny", 10)]), 10)
    assert {spot.tensor.key[1] for spot in spots} == {"large"}
    assert len(spots) == 10


def test_blobs_are_not_compared() -> None:
    tensors = MadeInput(0, "float32", (300,), made)
    entries = {"w": tensors, "blob": tensors._replace(cuts=(1200,)), "v": ValueInput(1, 1)}
    assert [wanted.key for wanted in wanted_of([ItemInput("model", entries)])] == [("model", "w")]


def test_cut_as_a_save_cuts() -> None:
    ids = tuple(ChunkId(ObjectId(bytes([number]) * 32)) for number in range(2))
    like = TensorEntry(0, "float32", (400,), (Piece((0,), (400,), (400, 1200), ids),))
    given_tensor = MadeInput(0, "float32", (500,), made)
    assert cuts_of(given_tensor) == (2000,)
    assert cuts_of(given_tensor._replace(like=like)) == (400, 1200, 400)
    assert cuts_of(given_tensor._replace(cuts=(1000, 1000))) == (1000, 1000)
