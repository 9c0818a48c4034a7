"""Real ranks that write their shares of real models, and read them back in other layouts."""

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parents[2]
SCRIPT = Path(__file__).with_name("sharding_rank.py")


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_write_their_shares_and_read_any_layout(tmp_path: Path, world_size: int) -> None:
    """DDP and FSDP2; of four ranks also HSDP, tensor parallelism and FSDP over it."""
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "OMP_NUM_THREADS": "1"}
    ranks = [
        subprocess.Popen(
            [sys.executable, "-W", "ignore", str(SCRIPT), str(tmp_path), str(rank), str(world_size)],
            env=environment,
            stdout=subprocess.PIPE,
            stderr=subprocess.STDOUT,
            text=True,
        )
        for rank in range(world_size)
    ]
    try:
        told = [rank.communicate(timeout=300)[0] for rank in ranks]
    finally:
        for rank in ranks:
            rank.kill()
            rank.wait()
    assert [rank.returncode for rank in ranks] == [0] * world_size, "\n".join(told)
