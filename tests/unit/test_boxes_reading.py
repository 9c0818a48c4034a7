"""Boxes read from a real store, whose pieces ranks of another layout made; and how little of it that touches."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from moonclip.sharding.layouts import Layout, Split, local_shape, parts_of
from store.boxes import Box, whole
from store.errors import Incompatible
from store.format.entries import TensorEntry
from store.reading.boxes import Target, contiguous, inner, plan_box
from store.reading.copies import ChunkCopy, Copy, StridedCopy
from store.reading.retrieve import execute, gather
from store.repository import Repository
from tests import packing
from tests.arrays import Array, noise
from tests.sharding import Chunks, coordinates, local_of, planned, written

BIG = noise("big", 1536, 1024)  # 6 MB: rows of 4 KiB, eight chunks on the grid
SAVED = {
    "rows of 4": Layout(BIG.shape, (4,), (Split(0),)),
    "rows of 3": Layout(BIG.shape, (3,), (Split(0),)),
    "columns of 2": Layout(BIG.shape, (2,), (Split(1),)),
    "a mesh of 2 x 3": Layout(BIG.shape, (2, 3), (Split(0), Split(1))),
    "strided": Layout(BIG.shape, (2,), (Split(0, 3),)),
}
LOADED = {**SAVED, "rows of 5": Layout(BIG.shape, (5,), (Split(0),)), "copies": Layout(BIG.shape, (2,), (None,))}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def stored(repo: Repository, layout: Layout, array: Array = BIG) -> TensorEntry:
    """A tensor in the store, as the ranks of a layout wrote it."""
    chunks: Chunks = {}
    entry = written(array, layout, chunks)
    table = packing.write(repo.layout.packs, [packing.chunk(raw) for raw in chunks.values()])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    return entry


def read(repo: Repository, entry: TensorEntry, layout: Layout, coordinate: tuple[int, ...]) -> bytes:
    out = bytearray(len(local_of(BIG, layout, coordinate)))
    target = contiguous(local_shape(layout, coordinate), 4, memoryview(out))
    execute(repo.reader, gather(planned(entry, layout, coordinate, target)), repo.threads, verify_hash=True)
    return bytes(out)


@pytest.mark.parametrize("saved", SAVED)
def test_ranks_of_every_layout_get_their_shards(repo: Repository, saved: str) -> None:
    entry = stored(repo, SAVED[saved])
    assert repo.read_tensor(entry) == BIG.data
    for layout in LOADED.values():
        for each in coordinates(layout):
            assert read(repo, entry, layout, each) == local_of(BIG, layout, each)


@pytest.mark.parametrize("saved", SAVED)
def test_rows_and_spans_of_every_layout(repo: Repository, saved: str) -> None:
    entry = stored(repo, SAVED[saved])
    out, span = bytearray(5 * 4096), bytearray(5001)
    repo.read_rows(entry, 510, 515, memoryview(out))
    assert out == BIG.data[510 * 4096 : 515 * 4096]
    repo.read_spans(entry, [(4095, memoryview(span))])
    assert span == BIG.data[4095:][:5001]


def bytes_read(copies: list[Copy]) -> int:
    return sum(chunk.chunk_bytes for chunk in gather(copies))


@pytest.mark.parametrize(("before", "after"), [(8, 16), (16, 8), (8, 1), (1, 8), (4, 3), (3, 4), (8, 5), (5, 7)])
def test_g10_other_numbers_of_ranks_read_little_more_than_their_shards(before: int, after: int) -> None:
    """At most 1.1 of its shard, and one chunk for each box that was saved of what it reads."""
    saved, loaded = (Layout(BIG.shape, (ranks,), (Split(0),)) for ranks in (before, after))
    boxes = [part.box for each in coordinates(saved) for part in parts_of(saved, each)]
    entry = written(BIG, saved, {})
    for each in coordinates(loaded):
        out = memoryview(bytearray(len(local_of(BIG, loaded, each))))
        copies = list(planned(entry, loaded, each, contiguous(local_shape(loaded, each), 4, out)))
        (part,) = parts_of(loaded, each)
        touched = sum(box.offsets[0] < part.box.stops[0] and part.box.offsets[0] < box.stops[0] for box in boxes)
        assert bytes_read(copies) <= 1.1 * len(out) + touched * max(entry.cuts)


@pytest.mark.parametrize("mesh", [(2, 2), (4, 1), (1, 4)])
def test_g10_a_rank_of_the_same_layout_reads_its_shard_and_nothing_else(mesh: tuple[int, int]) -> None:
    layout = Layout(BIG.shape, mesh, (Split(0), Split(1)))
    entry = written(BIG, layout, {})
    for each in coordinates(layout):
        out = memoryview(bytearray(len(local_of(BIG, layout, each))))
        copies = list(planned(entry, layout, each, contiguous(local_shape(layout, each), 4, out)))
        assert bytes_read(copies) == len(out)
        assert all(isinstance(copy, ChunkCopy) and copy.is_whole for copy in copies)  # decoded straight into place


def test_columns_of_chunks_of_rows_are_one_copy_for_each_chunk() -> None:
    entry = written(BIG, Layout(BIG.shape, (1,), (None,)), {})
    out = memoryview(bytearray(1536 * 16))
    copies = plan_box(entry, Box((0, 100), (1536, 4)), contiguous((1536, 4), 4, out))
    assert len(copies) == len(entry.chunks)
    assert all(isinstance(copy, StridedCopy) and copy.moves.sizes == (192, 16) for copy in copies)


def test_a_chunk_that_holds_nothing_of_a_box_is_not_read() -> None:
    """Rows so long that a chunk is a part of one: of columns at their end only the last chunks are wanted."""
    array = noise("long", 2, 2 * 1024 * 1024)
    entry = written(array, Layout(array.shape, (1,), (None,)), {})
    out = memoryview(bytearray(2 * 40))
    copies = plan_box(entry, Box((0, 2 * 1024 * 1024 - 10), (2, 10)), contiguous((2, 10), 4, out))
    assert len(entry.chunks) == 4
    assert [copy.chunk for copy in copies] == [entry.chunks[1], entry.chunks[3]]
    assert all(isinstance(copy, ChunkCopy) for copy in copies)  # each is one run


def test_chunks_that_end_within_rows_are_decoded_straight_into_their_place() -> None:
    """Of rows that lie one behind the other, in the store as in memory."""
    array = noise("w", 10, 300)
    entry = written(array, Layout(array.shape, (1,), (None,)), {}, lambda *_: (700 * 4,) * 4 + (200 * 4,))
    out = memoryview(bytearray(8 * 1200))
    copies = plan_box(entry, Box((1, 0), (8, 300)), contiguous((8, 300), 4, out))
    assert [(copy.start, len(copy.out)) for copy in copies] == [(1200, 1600), (0, 2800), (0, 2800), (0, 2400)]
    assert [copy.is_whole for copy in copies] == [False, True, True, False]


def test_a_box_of_an_inline_tensor() -> None:
    entry = written(Array("int16", (3, 4), bytes(range(24))), Layout((3, 4), (2,), (Split(1),)), {})
    assert entry.inline == bytes(range(24))
    out = bytearray(b"." * 10)
    assert plan_box(entry, Box((1, 1), (2, 2)), Target(memoryview(out), 1, (5, 2))) == []
    assert out == b"." + bytes(range(10, 14)) + b"." + bytes(range(18, 22))


def test_a_tensor_without_dims() -> None:
    entry = TensorEntry(0, "float32", (), inline=b"abcd")
    out = bytearray(4)
    assert plan_box(entry, whole(()), contiguous((), 4, memoryview(out))) == []
    assert out == b"abcd"


def test_an_empty_box_is_nothing() -> None:
    entry = written(BIG, SAVED["rows of 4"], {})
    assert plan_box(entry, Box((1536, 0), (0, 1024)), contiguous((0, 1024), 4, memoryview(b""))) == []
    assert plan_box(entry, Box((0, 5), (5, 0)), Target(memoryview(b""), 0, (4096, 4))) == []


def test_the_memory_of_a_part_begins_inside_that_of_the_tensor() -> None:
    assert inner(contiguous((4, 10), 2, memoryview(bytearray(80))), (2, 3)).start == 46


@pytest.mark.parametrize("box", [Box((0, 0), (1537, 1)), Box((0, -1), (1, 1)), Box((0, 0), (-1, 1)), Box((0,), (1,))])
def test_a_box_outside_the_tensor_is_refused(box: Box) -> None:
    entry = written(BIG, SAVED["rows of 4"], {})
    with pytest.raises(Incompatible, match=r"outside of|number of dims"):
        plan_box(entry, box, Target(memoryview(bytearray(10_000)), 0, (4096, 4)))


@pytest.mark.parametrize(
    "target",
    [
        Target(memoryview(bytearray(79)), 0, (40, 4)),
        Target(memoryview(bytearray(80)), 1, (40, 4)),
        Target(memoryview(bytearray(80)), -1, (40, 4)),
        Target(memoryview(bytearray(80)), 40, (-40, 4)),
    ],
)
def test_memory_that_is_too_small_is_refused_before_anything_is_read(target: Target) -> None:
    entry = written(BIG, SAVED["rows of 4"], {})
    with pytest.raises(Incompatible, match="bytes of memory"):
        plan_box(entry, Box((0, 0), (2, 10)), target)
    small = replace(entry, shape=(3,), dtype="uint8", pieces=(), inline=b"abc")
    with pytest.raises(Incompatible, match="bytes of memory"):
        plan_box(small, Box((0,), (3,)), contiguous((3,), 1, memoryview(bytearray(2))))
