"""Bar 3: how much of a store a rank reads to load its shard of what other ranks saved, counted chunk by chunk."""

from math import prod
from pathlib import Path

import pytest
import torch
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from moonclip.loading.reading import planned
from moonclip.sharding.dtensors import shards_of
from moonclip.sharding.layouts import Layout, Split, parts_of
from moonclip.state.tensors import writable_bytes
from store.boxes import Box
from store.format.entries import TensorEntry
from store.reading.retrieve import gather
from store.repository import Repository
from store.saving.ranks import save_rank
from store.saving.shards import BoxInput, RankItem, ShardsInput
from tests.ranks import rank_of, spread
from tools.crash.ranks import request

MOST_OVER = 1.1
SHAPE = (1536, 1024)  # 6 MiB


def saved_by(repo: Repository, full: torch.Tensor, layout: Layout) -> TensorEntry:
    """What ranks that hold a tensor so make of it."""
    world_size = prod(layout.mesh)
    with repo.create_snapshot(request(repo), world_size) as snapshot:
        for rank in range(world_size):
            boxes = tuple(BoxInput(part.box, bytes_of(full, part.box)) for part in parts_of(layout, (rank,)))
            item = RankItem("model", {"w": ShardsInput(0, "float32", tuple(full.shape), boxes)})
            save_rank(repo.layout.root, snapshot.id, rank, [item], threads=repo.threads)
        entry = repo.tree(repo.commit(snapshot.finalize()), "model")["w"]
    assert isinstance(entry, TensorEntry)
    return entry


def bytes_of(full: torch.Tensor, box: Box) -> memoryview:
    index = tuple(slice(start, stop) for start, stop in zip(box.offsets, box.stops, strict=True))
    return memoryview(full[index].contiguous().numpy().tobytes())


def read_bytes(entry: TensorEntry, full: torch.Tensor, rank: int, ranks: int, placement: Placement) -> tuple[int, int]:
    """Bytes of the chunks that one rank reads, and of what it needs."""
    with rank_of(rank, ranks) as mesh:
        shards = shards_of(spread(torch.zeros_like(full), mesh, (placement,)))
        memory = writable_bytes(shards.local)
        assert memory is not None
        reads = gather(planned(entry, tuple(shards.local.shape), shards.parts, memory))
        return sum(read.chunk_bytes for read in reads), shards.local.nbytes


@pytest.mark.parametrize("before", [1, 2, 3, 4])
@pytest.mark.parametrize("after", [1, 2, 3, 4])
def test_rows_from_rows_read_a_shard_and_a_chunk_a_piece(tmp_path: Path, before: int, after: int) -> None:
    full = torch.randn(SHAPE)
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        entry = saved_by(repo, full, Layout(SHAPE, (before,), (Split(0),)))
        for rank in range(after):
            chunk_bytes, shard_bytes = read_bytes(entry, full, rank, after, Shard(0))
            if {before, after} <= {1, 2, 4}:
                assert chunk_bytes == shard_bytes  # cut on the grid: not a byte more
            else:  # a shard may begin in the middle of a chunk, and end in the middle of another
                assert shard_bytes <= chunk_bytes <= MOST_OVER * shard_bytes + 2 * max(entry.cuts)
        assert read_bytes(entry, full, 0, 2, Replicate())[0] == full.nbytes


def test_columns_from_columns_read_a_shard_and_a_chunk_a_piece(tmp_path: Path) -> None:
    full = torch.randn(SHAPE)
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        entry = saved_by(repo, full, Layout(SHAPE, (4,), (Split(1),)))
        for rank in range(2):
            assert read_bytes(entry, full, rank, 2, Shard(1)) == (full.nbytes // 2,) * 2


@pytest.mark.parametrize("before", [1, 4])
def test_columns_from_rows_read_every_chunk(tmp_path: Path, before: int) -> None:
    """The exception: chunks hold whole rows, and each has some of every column. So each rank reads the whole tensor."""
    full = torch.randn(SHAPE)
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        entry = saved_by(repo, full, Layout(SHAPE, (before,), (Split(0),)))
        for rank in range(4):
            assert read_bytes(entry, full, rank, 4, Shard(1)) == (full.nbytes, full.nbytes // 4)


def test_rows_from_columns_read_the_chunks_that_they_cross(tmp_path: Path) -> None:
    """The other way round chunks are runs of rows of some columns: no more than one too many at each end of a piece."""
    full = torch.randn(SHAPE)
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        entry = saved_by(repo, full, Layout(SHAPE, (4,), (Split(1),)))
        for rank in range(4):
            chunk_bytes, shard_bytes = read_bytes(entry, full, rank, 4, Shard(0))
            assert chunk_bytes <= MOST_OVER * shard_bytes + 2 * len(entry.pieces) * max(entry.cuts)
