"""Saves by several ranks of states of arrays."""

from collections.abc import Mapping, Sequence
from pathlib import Path

from store.boxes import Box
from store.disk.files import Files
from store.format.dtypes import dtype
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.parallel import Threads
from store.repository import Repository
from store.saving.rankbases import RankMemory
from store.saving.ranks import RankSaved, save_rank
from store.saving.saver import SaveRequest
from store.saving.shards import BoxInput, RankInput, RankItem, ShardsInput
from store.saving.snapshots import Snapshot

from .states import ITEM, Array, State


def box_of_rank(shape: tuple[int, ...], rank: int, world_size: int) -> Box | None:
    """The rows that a rank has of a tensor that is split along dim 0 as ``torch.chunk`` does; ``None`` if none."""
    if not shape:
        return Box((), ()) if rank == 0 else None
    row_count = -(-shape[0] // world_size)
    start, stop = (min(shape[0], row_count * each) for each in (rank, rank + 1))
    if start == stop:
        return None
    return Box((start, *(0,) * len(shape[1:])), (stop - start, *shape[1:]))


def data_of(array: Array, box: Box) -> bytes:
    """Bytes of some rows of an array."""
    row_bytes = len(array.data) // array.shape[0] if array.shape else len(array.data)
    start = box.offsets[0] if box.offsets else 0
    count = box.sizes[0] if box.sizes else 1
    assert dtype(array.dtype).item_bytes * box.volume == row_bytes * count
    return array.data[start * row_bytes : (start + count) * row_bytes]


def shard(array: Array, rank: int, world_size: int, position: int = 0) -> ShardsInput:
    """What a rank stores of an array."""
    box = box_of_rank(array.shape, rank, world_size)
    boxes = () if box is None else (BoxInput(box, memoryview(data_of(array, box))),)
    return ShardsInput(position, array.dtype, array.shape, boxes)


def shards(
    state: State, rank: int, world_size: int, more: Mapping[str, RankInput] | None = None, name: str = ITEM
) -> list[RankItem]:
    """What a rank stores of a state, all of whose arrays are split along dim 0."""
    entries: dict[str, RankInput] = {
        entry: shard(array, rank, world_size, position) for position, (entry, array) in enumerate(state.items())
    }
    return [RankItem(name, {**entries, **(more or {})})]


def request(repo: Repository, branch: str = "main", step: int | None = None) -> SaveRequest:
    """A commit on top of a branch."""
    return SaveRequest((), branch=branch, parent=repo.refs.read(branch_name(branch)), step=step)


def save_ranks(
    root: Path,
    snapshot: Snapshot,
    state: State,
    *,
    last: Sequence[RankMemory] | None = None,
    files: Files | None = None,
    threads: Threads | None = None,
) -> list[RankSaved]:
    """Have every rank store its part, one after another."""
    return [
        save_rank(
            root,
            snapshot.id,
            rank,
            shards(state, rank, snapshot.world_size),
            last=None if last is None else last[rank],
            files=files,
            threads=threads,
        )
        for rank in range(snapshot.world_size)
    ]


def save_together(
    repo: Repository,
    state: State,
    world_size: int,
    *,
    last: Sequence[RankMemory] | None = None,
    branch: str = "main",
    step: int | None = None,
) -> tuple[CommitId, list[RankSaved]]:
    """Save a state by several ranks."""
    remember = last is not None
    with repo.create_snapshot(request(repo, branch, step), world_size, ranks_remember=remember) as snapshot:
        saved = save_ranks(repo.layout.root, snapshot, state, last=last, threads=repo.threads)
        return snapshot.finalize(), saved
