"""The scale bench, on stores of few commits: it has to keep working between the days on which it is run."""

from pathlib import Path

import pytest

from store.fsck import fsck
from store.repository import Repository
from tools.bench import collecting, histories, scale


def test_a_history_is_a_store_like_any_other(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    made = histories.history(3)
    histories.copy(made, tmp_path / "copy")
    for root in (made, tmp_path / "copy"):
        with Repository.open(root, read_only=True) as repo:
            assert [row.step for row in repo.log([repo.resolve("main")])] == [200, 100, 0]
            assert len(repo.refs.reflog("branches/main")) == 3
            report = fsck(repo, full=True)
            assert report.clean
            assert report.object_count == 3 * histories.OBJECT_COUNT
    assert histories.history(3) == made


@pytest.mark.slow
def test_everything_is_measured_in_both_stores(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    for name, value in {"FEW": 2, "MANY": 4, "ROUND_COUNT": 2, "PROCESS_ROUND_COUNT": 1}.items():
        monkeypatch.setattr(scale, name, value)
    bench = scale.measure()
    assert len(bench.rows) == len(bench.bars) == 5
    assert all(cost["cpu_seconds"] > 0 for figures in bench.figures.values() for cost in figures.values())
    assert [folder.name for folder in (tmp_path / scale.CACHE).iterdir()] == ["histories"]


def test_gc_is_measured(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(collecting, "MANY", 6)
    monkeypatch.setattr(collecting, "ROUND_COUNT", 1)
    bench = collecting.measure()
    assert bench.figures["removed_count"] == 3 * (histories.OBJECT_COUNT - 1)
    assert min(bench.figures.values()) > 0
    assert [bar.what for bar in bench.bars if bar.at_most] == ["ms in one transaction, at most"]
