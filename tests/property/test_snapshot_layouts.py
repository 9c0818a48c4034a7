"""However a tensor is cut into boxes, and whichever rank stores which, it is read back; so is what changes then."""

from pathlib import Path

import numpy as np
from hypothesis import HealthCheck, given, settings
from hypothesis import strategies as st

from store.boxes import Box
from store.repository import Repository
from store.saving.rankbases import RankMemory
from store.saving.ranks import save_rank
from store.saving.shards import BoxInput, RankItem, ShardsInput
from tests.arrays import Array, read
from tools.crash.ranks import request


@st.composite
def layouts(draw: st.DrawFn) -> tuple[tuple[int, ...], list[list[Box]]]:
    """A shape, and for each rank the boxes that it stores; together they tile the shape."""
    shape = tuple(draw(st.lists(st.integers(1, 12), min_size=1, max_size=3)))
    boxes = [Box((0,) * len(shape), shape)]
    for _ in range(draw(st.integers(0, 6))):
        number, dim = draw(st.integers(0, len(boxes) - 1)), draw(st.integers(0, len(shape) - 1))
        box = boxes[number]
        if box.sizes[dim] > 1:
            at = draw(st.integers(1, box.sizes[dim] - 1))
            low, high = list(box.sizes), list(box.sizes)
            low[dim], high[dim] = at, box.sizes[dim] - at
            moved = list(box.offsets)
            moved[dim] += at
            boxes[number : number + 1] = [Box(box.offsets, tuple(low)), Box(tuple(moved), tuple(high))]
    ranks: list[list[Box]] = [[] for _ in range(draw(st.integers(1, 4)))]
    for box in boxes:
        ranks[draw(st.integers(0, len(ranks) - 1))].append(box)
    return shape, ranks


def part(array: np.ndarray[tuple[int, ...], np.dtype[np.uint8]], boxes: list[Box]) -> list[RankItem]:
    """What a rank stores; elements are of one complex number each, so that few of them are chunks."""
    inputs = []
    for box in boxes:
        index = tuple(slice(start, stop) for start, stop in zip(box.offsets, box.stops, strict=True))
        inputs.append(BoxInput(box, memoryview(array[index].tobytes())))
    return [RankItem("model", {"w": ShardsInput(0, "complex128", array.shape[:-1], tuple(inputs))})]


@settings(max_examples=20, suppress_health_check=[HealthCheck.function_scoped_fixture])
@given(layout=layouts(), seed=st.integers(0, 99))
def test_any_tiling_by_any_ranks_is_read_back(
    tmp_path: Path, layout: tuple[tuple[int, ...], list[list[Box]]], seed: int
) -> None:
    shape, ranks = layout
    root = tmp_path / f"{len(list(tmp_path.iterdir()))}"
    chance = np.random.default_rng(seed)
    array = chance.integers(0, 256, (*shape, 16), np.uint8)
    last: list[RankMemory | None] = [None] * len(ranks)
    with Repository.init(root, thread_count=1) as repo:
        for remember in (False, True, False):
            with repo.create_snapshot(request(repo), len(ranks), ranks_remember=remember) as snapshot:
                for rank, boxes in enumerate(ranks):
                    known, items = (last[rank] if remember else None), part(array, boxes)
                    last[rank] = save_rank(root, snapshot.id, rank, items, last=known, threads=repo.threads).memory
                commit = snapshot.finalize()
            assert read(repo, commit) == {"w": Array("complex128", shape, array.tobytes())}
            array = array.copy()
            array[0, ..., 0] ^= 1
