"""Cuts are part of the format: they decide what dedups with what."""

import itertools
import random
from itertools import accumulate

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.format.chunking import BlobCutter, blob_cuts, grid_rows, tensor_cuts
from store.limits import KIB, MAX_CHUNK_BYTES, MIB


def test_small_tensor_is_one_chunk() -> None:
    assert tensor_cuts((3, 5), 4) == (60,)
    assert tensor_cuts((), 8) == (8,)


@pytest.mark.parametrize("shape", [(0,), (0, 7), (5, 0, 3)])
def test_zero_size_tensor_has_no_chunk(shape: tuple[int, ...]) -> None:
    assert tensor_cuts(shape, 4) == ()


def test_even_tensor_is_cut_for_eight_ranks() -> None:
    assert tensor_cuts((1024, 4096), 4) == (2 * MIB,) * 8


def test_grid_leaves_out_world_sizes_whose_parts_are_small() -> None:
    row_bytes = 256 * KIB
    assert grid_rows(8, row_bytes) == [0, 2, 4, 6, 8]
    assert grid_rows(2, row_bytes) == [0, 2]


@pytest.mark.parametrize("row_count", [16, 1001, 50257])
@pytest.mark.parametrize("world_size", [2, 4, 8])
def test_every_rank_boundary_is_a_cut(row_count: int, world_size: int) -> None:
    row_bytes = 1536 * 4 if row_count > 16 else MIB
    rows_per_rank = -(-row_count // world_size)
    ends = set(accumulate(tensor_cuts((row_count, row_bytes // 4), 4)))
    assert {rows * row_bytes for rows in range(rows_per_rank, row_count, rows_per_rank)} <= ends


def test_long_rows_are_cut_at_whole_elements() -> None:
    cuts = tensor_cuts((1, 3 * MIB), 16)
    assert sum(cuts) == 48 * MIB
    assert max(cuts) == MAX_CHUNK_BYTES
    assert all(cut % 16 == 0 for cut in cuts)


def test_blob_cuts_survive_a_changed_header() -> None:
    body = bytes((i * i * 2654435761 >> 13) & 255 for i in range(3 * MIB))
    plain, shifted = blob_cuts(body), blob_cuts(b"x" * 1000 + body)
    assert sum(plain) == len(body)
    assert sum(shifted) == len(body) + 1000
    ends = set(accumulate(plain))
    kept = [end for end in accumulate(shifted) if end - 1000 in ends]
    assert len(kept) >= len(plain) // 2


@pytest.mark.parametrize("size_bytes", [0, 1, 64 * KIB])
def test_small_blob_is_at_most_one_chunk(size_bytes: int) -> None:
    assert blob_cuts(b"a" * size_bytes) == ((size_bytes,) if size_bytes else ())


@given(
    data=st.binary(max_size=50), times=st.integers(1, 90_000), blocks=st.lists(st.integers(1, 1_500_000), min_size=1)
)
def test_a_blob_that_comes_in_blocks_is_cut_as_all_of_it_is(data: bytes, times: int, blocks: list[int]) -> None:
    whole = memoryview(random.Random(times).randbytes(times * 10) + data * times)
    chunks: list[bytes] = []
    cutter, start = BlobCutter(lambda chunk: chunks.append(bytes(chunk))), 0
    for size_bytes in itertools.cycle(blocks):
        cutter.add(whole[start : start + max(size_bytes, 50_000)])
        start += max(size_bytes, 50_000)
        if start >= len(whole):
            break
    assert cutter.finish() == blob_cuts(whole)
    assert tuple(map(len, chunks)) == blob_cuts(whole)
    assert b"".join(chunks) == whole
