"""Whatever one layout writes, any other reads: bit for bit, wherever chunks end and whatever memory it goes to."""

from itertools import accumulate

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from moonclip.sharding.layouts import Layout, Split, local_shape, parts_of
from store.boxes import Box, require_tiling
from store.errors import Incompatible
from store.format.canonical import decode
from store.format.dtypes import DTYPES
from store.format.entries import Piece, TensorEntry, decode_entry, encode_entry
from store.ids import ChunkId, ObjectId, chunk_id
from store.limits import MIN_GRID_PART_BYTES, RANK_GRID
from store.reading.retrieve import gather, plan_span
from store.saving.pieces import box_cuts, entry_of_pieces
from tests.arrays import noise
from tests.sharding import Chunks, Cutter, coordinates, local_of, read_by, written

SHAPES = st.lists(st.integers(0, 10), max_size=3).map(tuple) | st.tuples(st.integers(1, 40), st.integers(1, 40))


@st.composite
def layouts(draw: st.DrawFn, shape: tuple[int, ...]) -> Layout:
    mesh = tuple(draw(st.lists(st.integers(1, 4), min_size=1, max_size=2)))
    splits = st.none()
    if shape:
        splits |= st.builds(Split, st.integers(0, len(shape) - 1), st.sampled_from([1, 1, 2, 3]))
    layout = Layout(shape, mesh, tuple(draw(splits) for _ in mesh))
    try:
        parts_of(layout, (0,) * len(mesh))
    except Incompatible:
        assume(False)
    return layout


@st.composite
def cutters(draw: st.DrawFn) -> Cutter:
    """Cut a box anywhere between elements."""
    factor = draw(st.integers(1, 50))

    def cut(_shape: tuple[int, ...], box: Box, item_bytes: int) -> tuple[int, ...]:
        left, found = box.volume, list[int]()
        while left:
            found.append(min(left, 1 + factor * (len(found) + 1) % 37))
            left -= found[-1]
        return tuple(size * item_bytes for size in found)

    return cut


@given(st.data())
def test_what_one_layout_writes_any_other_reads(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    array = noise(data.draw(st.integers(0, 3)), *shape, dtype_name=data.draw(st.sampled_from(sorted(DTYPES))))
    chunks: Chunks = {}
    entry = written(array, data.draw(layouts(shape)), chunks, data.draw(cutters()))
    layout, gap_items = data.draw(layouts(shape)), data.draw(st.sampled_from([0, 0, 1, 3]))
    for each in coordinates(layout):
        assert read_by(entry, layout, chunks, each, gap_items) == local_of(array, layout, each)


@given(st.data())
def test_what_is_written_is_an_entry_that_readers_accept(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    entry = written(noise(0, *shape), data.draw(layouts(shape)), {}, data.draw(cutters()))
    name, body = decode(encode_entry("w", entry), "w")
    assert (name, decode_entry(body, "w")) == ("w", entry)


@given(st.data())
def test_bytes_of_a_run_come_from_pieces_of_any_form(data: st.DataObject) -> None:
    """In C order of the tensor, of which a box has them far apart."""
    shape = data.draw(SHAPES)
    array, chunks = noise(0, *shape, dtype_name=data.draw(st.sampled_from(["uint8", "bfloat16", "complex128"]))), {}
    entry = written(array, data.draw(layouts(shape)), chunks, data.draw(cutters()))
    start = data.draw(st.integers(0, len(array.data)))
    out = bytearray(data.draw(st.integers(0, len(array.data) - start)))
    for read in gather(plan_span(entry, start, memoryview(out))):
        for copy in read.copies:
            copy.put(memoryview(chunks[read.chunk]))
    assert out == array.data[start : start + len(out)]


@given(st.data())
def test_the_boxes_of_all_ranks_tile_the_tensor(data: st.DataObject) -> None:
    shape = data.draw(SHAPES)
    layout = data.draw(layouts(shape))
    parts = {each: parts_of(layout, each) for each in coordinates(layout)}
    boxes = {part.box for own in parts.values() for part in own}
    require_tiling("w", shape, list(boxes))
    for each, own in parts.items():
        require_tiling("local", local_shape(layout, each), [Box(part.local, part.box.sizes) for part in own])
        assert all(part.box.volume for part in own)


@given(st.integers(1, 70), st.sampled_from(RANK_GRID), st.booleans())
def test_ranks_along_dim_0_write_what_one_would(rows: int, ranks: int, beside_columns: bool) -> None:
    """The chunks of 1, 2, 4 and 8 ranks are the same, and so is the entry, where the grid has their ends."""
    shape = (rows, MIN_GRID_PART_BYTES // 4)
    assume(-(-rows // ranks) * shape[1] * 4 // (2 if beside_columns else 1) >= MIN_GRID_PART_BYTES)
    mesh, columns = (2, Split(1)) if beside_columns else (1, None)
    one, many = Layout(shape, (1, mesh), (None, columns)), Layout(shape, (ranks, mesh), (Split(0), columns))
    assert named_after_places(many) == named_after_places(one)


def named_after_places(layout: Layout) -> TensorEntry:
    """The entry of a tensor whose chunks are named after where they begin: nothing that large is made."""
    pieces = []
    for box in {part.box for each in coordinates(layout) for part in parts_of(layout, each)}:
        sizes_bytes = box_cuts(layout.shape, box, 4)
        begins = list(accumulate(sizes_bytes, initial=box.offsets[0] * box.sizes[1] * 4))[:-1]
        ids = [ChunkId(ObjectId(f"{box.offsets[1]} {begin}".encode().ljust(32))) for begin in begins]
        pieces.append(Piece(box.offsets, box.sizes, sizes_bytes, tuple(ids)))
    return entry_of_pieces("w", 0, "float32", layout.shape, pieces)


@pytest.mark.parametrize("rows", [64, 61])
def test_the_same_tensor_on_1_2_4_and_8_ranks_is_the_same_entry(rows: int) -> None:
    array, chunks = noise("w", rows, 32768), {}
    layouts = [Layout(array.shape, (ranks,), (Split(0),)) for ranks in (1, 2, 4, 8)]
    entries = {written(array, layout, chunks) for layout in layouts}
    assert len(entries) == 1
    (entry,) = entries
    assert entry.pieces[0].sizes == array.shape
    assert sum(map(len, chunks.values())) == len(array.data)
    assert [chunk_id(chunk) for chunk in array.chunks] == list(entry.chunks)


def test_other_numbers_of_ranks_share_all_but_the_chunks_at_their_ends() -> None:
    array, chunks = noise("w", 64, 32768), {}
    written(array, Layout(array.shape, (1,), (Split(0),)), chunks)
    before = set(chunks)
    entry = written(array, Layout(array.shape, (3,), (Split(0),)), chunks)
    new_bytes = sum(len(chunks[chunk]) for chunk in set(chunks) - before)
    assert len(entry.pieces) == 1
    assert 0 < new_bytes <= 2 * max(map(len, array.chunks))
