"""The same state saved by 1, 2, 4 and 8 ranks along dim 0: hardly a byte more, and the same tree where cuts agree."""

from pathlib import Path

import numpy as np
import pytest

from store.boxes import Box
from store.ids import CommitId
from store.repository import Repository
from store.saving.inputs import ItemInput, TensorInput
from store.saving.ranks import save_rank
from store.saving.saver import SaveRequest
from store.saving.shards import BoxInput, RankInput, RankItem, ShardsInput
from tools.crash.ranks import box_of_rank, request

Shapes = dict[str, tuple[int, int]]
GRID = (1, 2, 4, 8)
ON_GRID: Shapes = {"wide": (1024, 1100), "tall": (4096, 512), "odd": (1031, 1021)}
"""At least 4 MiB each; 8 does not divide the odd one, and torch gives the last rank fewer rows."""

MOST_NEW = 0.02


def arrays(shapes: Shapes) -> dict[str, bytes]:
    chance = np.random.default_rng(7)
    return {name: chance.bytes(4 * shape[0] * shape[1]) for name, shape in shapes.items()}


def by_ranks(repo: Repository, shapes: Shapes, data: dict[str, bytes], ranks: int) -> CommitId:
    with repo.create_snapshot(request(repo), ranks) as snapshot:
        for rank in range(ranks):
            entries: dict[str, RankInput] = {}
            for position, (name, shape) in enumerate(shapes.items()):
                box = box_of_rank(shape, rank, ranks)
                inputs = () if box is None else (BoxInput(box, rows(data[name], shape, box)),)
                entries[name] = ShardsInput(position, "float32", shape, inputs)
            save_rank(repo.layout.root, snapshot.id, rank, [RankItem("model", entries)], threads=repo.threads)
        return snapshot.finalize()


def rows(data: bytes, shape: tuple[int, int], box: Box) -> memoryview:
    row_bytes = len(data) // shape[0]
    return memoryview(data)[box.offsets[0] * row_bytes : box.stops[0] * row_bytes]


def tree(repo: Repository, commit: CommitId) -> bytes:
    return repo.commit(commit).items["model"]


def test_ranks_on_the_grid_make_the_same_tree_and_store_nothing_again(tmp_path: Path) -> None:
    data = arrays(ON_GRID)
    with Repository.init(tmp_path / "s", thread_count=1) as repo:
        inputs = {
            name: TensorInput(position, "float32", shape, memoryview(data[name]))
            for position, (name, shape) in enumerate(ON_GRID.items())
        }
        trees = {tree(repo, repo.save(SaveRequest([ItemInput("model", inputs)], branch="main")).commit)}
        held_bytes = repo.packs.total_bytes()
        for ranks in GRID:
            trees.add(tree(repo, by_ranks(repo, ON_GRID, data, ranks)))
        assert len(trees) == 1
        assert repo.packs.total_bytes() - held_bytes < MOST_NEW * sum(map(len, data.values()))


@pytest.mark.parametrize(("ranks", "share"), [(3, 1 / 4), (6, 1 / 2), (16, 1)])
def test_ranks_off_the_grid_store_again_the_chunks_in_which_a_rank_ends(
    tmp_path: Path, ranks: int, share: float
) -> None:
    """Measured, for docs/ranks.md: eight chunks, of which three ranks' ends lie in two, and sixteen ranks' in all."""
    shapes: Shapes = {"wide": (3072, 2048)}  # 24 MiB
    data = arrays(shapes)
    with Repository.init(tmp_path / "s", thread_count=1) as repo:
        by_ranks(repo, shapes, data, 1)
        held_bytes = repo.packs.total_bytes()
        by_ranks(repo, shapes, data, ranks)
        assert (repo.packs.total_bytes() - held_bytes) / len(data["wide"]) == pytest.approx(share, abs=MOST_NEW)
