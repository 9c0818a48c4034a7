"""A commit that several ranks make by name, each in a process of its own."""

import subprocess
import sys
from pathlib import Path

import numpy as np
import pytest

from store import Repository, SaveRequest, Shard, rank_items, save_rank
from store.errors import Incompatible, NotFound

ROOT = Path(__file__).parents[2]
RANK = """
import sys
import numpy as np
from store import Shard, rank_items, save_rank

root, snapshot, rank = sys.argv[1], sys.argv[2], int(sys.argv[3])
weight = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
rows = weight[4 * rank : 4 * rank + 4]
given = {"w": Shard(rows, (8, 6), (4 * rank, 0)), "lr": 0.1, f"own/{rank}": np.full(100, rank)}
save_rank(root, snapshot, rank, rank_items({"model": given}))
assert "torch" not in sys.modules
"""


def test_ranks_store_their_shards_and_anybody_reads_the_whole(tmp_path: Path) -> None:
    weight = np.arange(8 * 6, dtype=np.float32).reshape(8, 6)
    with Repository.init(tmp_path / "store") as repo:
        with repo.create_snapshot(SaveRequest((), branch="main", step=3), 2) as snapshot:
            ranks = [
                subprocess.Popen(
                    [sys.executable, "-c", RANK, str(tmp_path / "store"), snapshot.id, str(rank)], cwd=ROOT
                )
                for rank in range(2)
            ]
            assert [rank.wait(60) for rank in ranks] == [0, 0]
            commit = snapshot.finalize()
        at = repo.at("main")
        assert (at.id, at.step, at.values()) == (commit, 3, {"model::lr": 0.1})
        assert np.array_equal(at.arrays["model::w"].read(), weight)
        assert np.array_equal(at.arrays["model::w"][2:6, 1:3], weight[2:6, 1:3])
        assert [at.arrays[f"model::own/{rank}"][5] for rank in range(2)] == [0, 1]


def test_a_missing_rank_and_a_hole_are_told(tmp_path: Path) -> None:
    with Repository.init(tmp_path / "store") as repo:
        with repo.create_snapshot(SaveRequest((), branch="main"), 2) as snapshot:
            rows = rank_items({"w": Shard(np.ones((4, 6)), (8, 6), (0, 0))})
            save_rank(tmp_path / "store", snapshot.id, 0, rows)
            with pytest.raises(NotFound, match="1"):
                snapshot.finalize()
            save_rank(tmp_path / "store", snapshot.id, 1, rank_items({}))
            with pytest.raises(Incompatible, match="nobody has"):
                snapshot.finalize()
        assert not repo.refs.list()
    with pytest.raises(Incompatible, match="1 offsets for a box of 2 dims"):
        rank_items({"w": Shard(np.ones((4, 6)), (8, 6), (0,))})
