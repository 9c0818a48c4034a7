"""Where a tensor is cut that resembles a stored one, and what of that each chunk sees."""

from dataclasses import replace
from itertools import accumulate, pairwise
from math import prod

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.codec.views import View, can_see
from store.format.chunking import tensor_cuts
from store.format.dtypes import Element, dtype
from store.format.entries import Piece, TensorEntry
from store.ids import ChunkId, ObjectId
from store.limits import KIB, MAX_CHUNK_BYTES, MIB
from store.saving.likeness import LikeBase, likeness


def entry(name: str, shape: tuple[int, ...], cuts: tuple[int, ...] | None = None) -> TensorEntry:
    """A stored tensor in one piece."""
    found = tensor_cuts(shape, dtype(name).item_bytes) if cuts is None else cuts
    return TensorEntry(0, name, shape, (Piece((0,) * len(shape), shape, found, ids(len(found))),))


def ids(count: int, first: int = 0) -> tuple[ChunkId, ...]:
    return tuple(ChunkId(ObjectId(bytes([first + number]) * 32)) for number in range(count))


def planned(name: str, shape: tuple[int, ...], like: TensorEntry) -> list[tuple[int, LikeBase | None]]:
    """Length of each chunk, and its base."""
    found = likeness(dtype(name), shape, like)
    assert found is not None
    cuts = found.cuts(dtype(name), shape)
    return list(zip(cuts, found.bases(dtype(name).element, cuts), strict=True))


def test_a_tensor_of_the_same_shape_and_dtype_is_cut_alike_and_sees_chunks_as_they_are() -> None:
    like = entry("float32", (1000, 256), (300 * KIB, 500 * KIB, 200 * KIB))
    assert planned("float32", (1000, 256), like) == [
        (size, LikeBase(chunk, None)) for size, chunk in zip(like.cuts, like.chunks, strict=True)
    ]


def test_what_has_more_rows_is_cut_as_usual_behind_those_that_both_have() -> None:
    like = entry("float32", (1000, 256), (1000 * KIB,))
    assert planned("float32", (1010, 256), like) == [(1000 * KIB, LikeBase(like.chunks[0], None)), (10 * KIB, None)]
    grown = planned("float32", (5000, 256), like)[1:]
    assert grown == [(size, None) for size in tensor_cuts((4000, 256), 4)]


def test_what_has_fewer_rows_sees_the_beginning_of_the_last_chunk() -> None:
    like = entry("float32", (1000, 256), (600 * KIB, 400 * KIB))
    assert planned("float32", (700, 256), like) == [
        (600 * KIB, LikeBase(like.chunks[0], None)),
        (100 * KIB, LikeBase(like.chunks[1], View(Element.FP32, 0))),
    ]
    assert len(planned("float32", (600, 256), like)) == 1


def test_narrower_words_make_shorter_chunks_and_wider_ones_several_that_see_a_part_each() -> None:
    wide = entry("float32", (2, MIB), (4 * MIB, 4 * MIB))
    assert planned("bfloat16", (2, MIB), wide) == [
        (2 * MIB, LikeBase(chunk, View(Element.FP32, 0))) for chunk in wide.chunks
    ]
    narrow = entry("bfloat16", (3, MIB), (4 * MIB, 2 * MIB))
    one, two = narrow.chunks
    assert planned("float32", (3, MIB), narrow) == [
        (4 * MIB, LikeBase(one, View(Element.BF16, 0))),
        (4 * MIB, LikeBase(one, View(Element.BF16, MIB))),
        (4 * MIB, LikeBase(two, View(Element.BF16, 0))),
    ]


def test_halves_of_equal_length_are_seen_by_a_cast_all_the_same() -> None:
    like = entry("float16", (100, 100))
    assert planned("bfloat16", (100, 100), like) == [(20_000, LikeBase(like.chunks[0], View(Element.FP16, 0)))]


def test_complex_numbers_are_two_words() -> None:
    like = entry("complex64", (100, 100), (40_000, 40_000))
    assert planned("complex64", (60, 100), like) == [
        (40_000, LikeBase(like.chunks[0], None)),
        (8_000, LikeBase(like.chunks[1], View(Element.FP32, 0))),
    ]
    assert likeness(dtype("float32"), (100, 100), like) is None


def test_pieces_that_are_rows_are_taken_in_order_of_the_rows() -> None:
    above, below = (Piece((first, 0), (50, 100), (20_000,), ids(1, first)) for first in (0, 50))
    like = TensorEntry(0, "float32", (100, 100), (below, above))
    assert planned("float32", (100, 100), like) == [
        (20_000, LikeBase(above.chunks[0], None)),
        (20_000, LikeBase(below.chunks[0], None)),
    ]


def test_a_tensor_that_was_cast_resembles_what_it_was_cast_to() -> None:
    like = replace(entry("bfloat16", (100, 100)), dtype="float32", stored="bfloat16")
    assert planned("bfloat16", (100, 100), like) == [(20_000, LikeBase(like.chunks[0], None))]
    assert planned("float32", (100, 100), like) == [(40_000, LikeBase(like.chunks[0], View(Element.BF16, 0)))]


COLUMNS = tuple(Piece((0, first), (100, 50), (20_000,), ids(1, first)) for first in (0, 50))


@pytest.mark.parametrize(
    ("name", "shape", "like"),
    {
        "rows of another length": ("float32", (100, 101), entry("float32", (100, 100))),
        "another number of dims": ("float32", (100, 10, 10), entry("float32", (100, 100))),
        "integers": ("float32", (100, 100), entry("int32", (100, 100))),
        "doubles": ("float32", (100, 100), entry("float64", (100, 100))),
        "inline": ("float32", (100, 2), TensorEntry(0, "float32", (3, 2), inline=bytes(24))),
        "scaled": (
            "float32",
            (100, 100),
            replace(entry("float8_e4m3fn", (100, 100)), dtype="float32", stored="float8_e4m3fn", scale=b"\0\0"),
        ),
        "columns": ("float32", (100, 100), TensorEntry(0, "float32", (100, 100), COLUMNS)),
        "no rows": ("float32", (0, 100), entry("float32", (100, 100))),
        "a scalar": ("float32", (), entry("float32", (100,))),
    }.values(),
)
def test_what_does_not_resemble_is_told(name: str, shape: tuple[int, ...], like: TensorEntry) -> None:
    assert likeness(dtype(name), shape, like) is None


def test_chunks_that_are_cut_elsewhere_see_a_window_or_nothing() -> None:
    like = entry("uint8", (1000,), (400, 600))
    found = likeness(dtype("uint8"), (1100,), like)
    assert found is not None
    one, two = like.chunks
    assert found.bases(Element.INT8, (300, 200, 500, 100)) == [
        LikeBase(one, View(Element.INT8, 0)),
        None,
        LikeBase(two, View(Element.INT8, 100)),
        None,
    ]


NAMES = st.sampled_from(["float32", "bfloat16", "float16", "complex64", "complex32", "uint8", "float64"])
ROWS = st.integers(1, 40) | st.integers(1000, 3000)


@given(NAMES, NAMES, ROWS, ROWS, st.sampled_from([1, 3, 1000]))
def test_every_chunk_sees_what_stands_in_its_place(one: str, other: str, rows: int, more: int, columns: int) -> None:
    like, known, shape = entry(other, (more, columns)), dtype(one), (rows, columns)
    found = likeness(known, shape, like)
    words = {each.name: each.item_bytes // each.element.width_bytes for each in (known, dtype(other))}
    assert (found is None) == (not can_see(dtype(other).element, known.element) or len(set(words.values())) == 2)
    if found is None:
        return
    cuts = found.cuts(known, shape)
    assert sum(cuts) == prod(shape) * known.item_bytes
    assert all(0 < cut <= MAX_CHUNK_BYTES and cut % known.item_bytes == 0 for cut in cuts)
    width, held = known.element.width_bytes, dtype(like.stored_dtype).element
    starts = {chunk: stop - cut for chunk, cut, stop in zip(like.chunks, like.cuts, accumulate(like.cuts), strict=True)}
    sizes = dict(zip(like.chunks, like.cuts, strict=True))
    shared = min(rows, more) * columns * (known.item_bytes // width)
    for (start, stop), base in zip(pairwise((0, *accumulate(cuts))), found.bases(known.element, cuts), strict=True):
        assert (base is None) == (start // width >= shared)
        if base is not None:
            view = base.view or View(held, 0)
            assert starts[base.chunk] // held.width_bytes + view.first == start // width
            assert view.fits(known.element, (stop - start) // width, sizes[base.chunk])
            assert base.view is not None or (sizes[base.chunk], held) == (stop - start, known.element)
