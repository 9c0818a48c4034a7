"""The bench of ranks, on a small state: it has to keep working between the days on which it is run."""

from pathlib import Path

import pytest

from tools.bench import ranks
from tools.bench.workloads import CACHE


@pytest.mark.slow
def test_one_process_and_ranks_save_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = ranks.measure(1, 2, 8_000_000, 4)
    assert [cells[0] for cells in bench.rows] == ["1", "2"]
    for saves in bench.figures.values():
        assert [len(seconds) for seconds in saves.values()] == [2, 2, 2]  # the first two are not counted
        assert all(
            0 < blocked < committed for blocked, committed in zip(saves["blocked_s"], saves["committed_s"], strict=True)
        )
    assert len(bench.bars) == 2
    assert list((tmp_path / CACHE / "stores").iterdir()) == []
