"""The bench of remotes, on a small run: it has to keep working between the days on which it is run."""

from pathlib import Path

import pytest

from tools.bench import remote, servers
from tools.bench.progress import progress
from tools.bench.workloads import CACHE
from tools.s3 import SERVERS, Unavailable


@pytest.mark.slow
def test_everything_is_moved_there_and_back_in_turn(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    bench = remote.measure("ministack", 1, "small", 1)
    assert [cells[0] for cells in bench.rows] == list(bench.figures["moves"])
    for moves in bench.figures["moves"].values():
        assert len(moves) == 1
        assert min(move["bytes"] for move in moves) >= bench.figures["history"]["bytes"] * 0.9
        assert min(move["seconds"] for move in moves) > 0
    assert min(move["server_cpu_s"] for move in bench.figures["moves"]["boto3 upload_file"]) > 0
    asked = [bar for bar in bench.bars if "requests" in bar.what or "bytes" in bar.what]
    assert len(asked) == 3
    assert all(bar.met for bar in asked if "requests" in bar.what)
    assert bench.figures["one_step"]["sent_bytes"] > bench.figures["history"]["added_bytes"] * 0.9
    assert list((tmp_path / CACHE / "stores").iterdir()) == []
    assert list((tmp_path / CACHE / "servers").iterdir()) == []


@pytest.mark.slow
def test_a_server_that_is_not_here_is_passed_over(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    monkeypatch.setattr(servers, "_TRIAL_BYTES", 100_000)
    absent = SERVERS["ceph"]

    def unavailable() -> Path:
        raise Unavailable("it is not here")

    gone = type(absent)(absent.name, absent.traits, unavailable, absent.prepare)
    monkeypatch.setattr(servers, "SERVERS", {"ceph": gone, "ministack": SERVERS["ministack"]})
    with progress(1) as shown:
        name, seconds = servers.fastest(shown)
    assert name == "ministack"
    assert list(seconds) == ["ministack"]
