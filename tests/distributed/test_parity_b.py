"""The lines of parity that are about several ranks, with real ones.

=====  =============================================================================================
line   where it is tested, unless here
=====  =============================================================================================
B8     ``save_rank.failing`` of ``test_rank_saves.py``, and here
B19    ``test_what_ranks_save_is_one_commit_that_any_other_number_of_them_takes_up``, and here
B20    ``test_b20_a_rank_that_fails_fails_the_save_of_all_and_the_next_one_works``
B21    ``test_load_gloo.py``, ``test_b21_b22_shards_of_every_layout_are_bit_equal``
B22    the same, and ``test_b22_a_layout_that_torch_reads_in_two_ways_is_refused``
B23    ``test_load_optimizers.py``; resumed runs in ``test_rank_saves.py``
B26    ``test_b26_a_shard_is_never_cut_from_another_shape_and_nothing_is_altered`` and its neighbours
=====  =============================================================================================
"""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from tests.distributed.parity_b_rank import CASES, WHOLE
from tests.launching import require_done

pytestmark = pytest.mark.slow


@pytest.mark.parametrize("world_size", CASES)
def test_b8_b18_b19_b24_b25_b33_b34_of_several_ranks(tmp_path: Path, world_size: int) -> None:
    require_done("parity_b_rank.py", tmp_path, world_size)
    with CheckpointManager(tmp_path / f"resharded{world_size}") as mgr:
        assert torch.equal(mgr.load()["model"]["w"], WHOLE)
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [1, 2]
    with CheckpointManager(tmp_path / f"dtensors{world_size}") as mgr:
        whole = mgr.load("named")
        assert whole["step"] == 7
        assert all(torch.equal(whole["model"][name], WHOLE) for name in ("rows", "columns", "everywhere"))
        assert torch.equal(mgr.load("later1")["model"]["only1"], WHOLE[:6])
