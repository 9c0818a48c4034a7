"""Real ranks that write their shares of real models, and read them back in other layouts."""

from pathlib import Path

import pytest

from tests.launching import launch


@pytest.mark.slow
@pytest.mark.parametrize("world_size", [2, 4])
def test_ranks_write_their_shares_and_read_any_layout(tmp_path: Path, world_size: int) -> None:
    """DDP and FSDP2; of four ranks also HSDP, tensor parallelism and FSDP over it."""
    codes, told = launch("sharding_rank.py", tmp_path, world_size)
    assert codes == [0] * world_size, "\n".join(told)
