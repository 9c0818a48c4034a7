"""The bench of families, on small models: it has to keep working between the days on which it is run."""

import sys
from pathlib import Path

import pytest
from click.testing import CliRunner

from tools.bench import __main__ as command
from tools.bench import family, keepers
from tools.bench.peers import Peer
from tools.bench.workloads import CACHE
from tools.finetunes import Family, small_family


@pytest.fixture
def few() -> Family:
    whole = small_family()
    return Family(whole.base, tuple(whole.named(name) for name in ("frozen", "adapter", "bf16")))


@pytest.mark.slow
def test_a_family_goes_in_and_comes_out_of_each_in_turn(
    few: Family, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.chdir(tmp_path)
    for name in ("zstd", "hexz"):  # as the bench has them, but without another environment
        monkeypatch.setitem(keepers.KEEPERS, name, Peer(name, keepers.KEEPERS[name].label, Path(sys.executable)))
    bench = family.measure(few, ["copy", "ours", "zstd", "hexz"], 2)
    assert [cells[0] for cells in bench.rows] == ["cp + fsync", "moonclip-store", "zstd -3, each file"]
    for name in ("copy", "ours", "zstd"):
        turns = bench.figures[name]["turns"]
        assert [turn["changed"] for turn in turns] == [(), ()]
        assert min(turn["import_s"] for turn in turns) > 0 < min(turn["export_s"] for turn in turns)
        assert {turn["bytes"] for turn in turns} == {bench.figures["copy"]["turns"][0]["stored_bytes"]}
    assert "No module named 'hexz'" in bench.figures["hexz"]["failure"]
    assert any("No module named 'hexz'" in note for note in bench.notes)
    assert [bar.what for bar in bench.bars] == [
        "stored bytes, beside zstd -3, each file",
        "import: speed, beside cp + fsync",
        "export: speed, beside cp + fsync",
        "files that came back changed",
    ]
    assert bench.bars[0].met and bench.bars[-1].met
    assert list((tmp_path / CACHE / "stores").iterdir()) == []


def turn(stored_bytes: int, import_s: float = 1.0, changed: tuple[str, ...] = ()) -> family.Turn:
    return family.Turn(100, stored_bytes, import_s, 1.0, 1.0, 1.0, 1, changed)


def test_a_peer_that_loses_something_is_not_the_one_to_beat() -> None:
    kept = {
        "copy": family.Kept(keepers.COPY, [turn(100), turn(100)]),
        "ours": family.Kept(keepers.OURS, [turn(30, 4.0), turn(30, 2.0)]),
        "zstd": family.Kept(keepers.ZSTD, [turn(50), turn(50)]),
        "hexz-thin": family.Kept(keepers.HEXZ_THIN, [turn(10), turn(10, changed=("base/config.json",))]),
    }
    stored, imported, exported, changed = family._bars(kept)
    assert (stored.value, stored.what) == (0.6, "stored bytes, beside zstd -3, each file")
    assert (imported.value, exported.value, changed.value) == (0.375, 1.0, 0)


def test_it_is_listed_and_knows_its_peers() -> None:
    said = CliRunner().invoke(command.benches, ["--help"])
    assert "family" in said.output
    said = CliRunner().invoke(command.benches, ["family", "--help"])
    assert "zipnn-delta" in said.output
