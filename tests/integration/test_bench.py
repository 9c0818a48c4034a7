"""The benches, on a run of some hundred kilobytes: they have to keep working between the days on which they are run."""

import json
import os
import signal
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest
import torch

from tools.bench import figures, load, memory, peers, plots, report, rows, save, sessions, storing, workloads
from tools.bench.measured.clocks import tree
from tools.bench.workloads.recorded import Series, raw_bytes
from tools.bench.workloads.run import WHOLE

pytestmark = pytest.mark.slow

HERE = peers.Peer("torch", "torch.save + fsync", Path(sys.executable))
"""As the benches have it, but without another environment."""


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Path]:
    """A working directory whose cache holds the warmed-up run, and at the end no store."""
    before = Path.cwd()
    folder = tmp_path_factory.mktemp("bench")
    os.chdir(folder)
    with pytest.MonkeyPatch.context() as patch:
        patch.setitem(peers.PEERS, "torch", HERE)
        yield folder
    os.chdir(before)


def recorded(folder: Path, count: int) -> Series:
    weight = torch.arange(3000, dtype=torch.float32)
    paths = tuple(folder / f"{step}.pt" for step in range(count))
    for step, path in enumerate(paths):
        moments = {0: {"step": torch.tensor(float(step)), "exp_avg": weight * step}}
        groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}]
        model = {"embed": weight + step, "nan": torch.tensor([float("nan")])}
        torch.save({"model": model, "optimizer": {"state": moments, "param_groups": groups}}, path)
    return Series("small", paths)


def stores() -> list[Path]:
    return list((workloads.CACHE / "stores").iterdir())


def test_saving_is_measured_beside_a_peer(home: Path, capsys: pytest.CaptureFixture[str]) -> None:
    bench = save.measure("small", ["copy", "ours", "torch"], 1)
    assert [cells[0] for cells in bench.rows] == ["bare copy, 2 threads", "moonclip-store", "torch.save + fsync"]
    for name in ("ours", "torch"):
        found = bench.figures[name]
        assert found["is_same"] == [True] * 3
        assert [len(found[key]) for key in ("first_blocked_s", "blocked_s", "durable_s", "pss_bytes")] == [2, 3, 2, 1]
        assert min(found["cpu_s"] + found["durable_s"] + found["stored_bytes"] + found["load_s"]) > 0
    assert {bar.what for bar in bench.bars} >= {"blocked, beside a bare copy", "loads of something else than was saved"}
    bench.show()
    bench.keep()
    assert "torch.save + fsync" in capsys.readouterr().out
    kept = json.loads((home / workloads.CACHE / "results" / "save-small.json").read_text())
    assert kept["figures"]["ours"]["state_bytes"] == bench.figures["ours"]["state_bytes"]
    assert stores() == []


def test_loading_is_measured_beside_a_peer(home: Path) -> None:
    bench = load.measure("small", ["ours", "torch"], 1)
    assert [cells[-1] for cells in bench.rows] == ["yes", "yes"]
    assert bench.figures["ours"]["full"]["step"] == 1
    assert bench.figures["ours"]["chained"]["step"] == 6
    assert stores() == []


def test_memory_is_looked_at_ten_times(home: Path) -> None:
    bench = memory.measure(["ours"], 10, "small")
    assert len(bench.figures["pss_bytes"]["ours"]) == 10
    assert min(bench.figures["pss_bytes"]["ours"]) > bench.figures["state_bytes"]


def test_a_run_grows_a_store(home: Path) -> None:
    grown = storing.grow(peers.OURS, "small", 3, 1)[WHOLE]
    assert grown.stored.steps == (0, 1, 2)
    assert max(grown.stored.growth_bytes[1:]) < grown.raw_bytes[0] < grown.stored.growth_bytes[0]


def test_a_warmed_up_run_goes_on_in_the_same_way_each_time(home: Path) -> None:
    first, second = (sessions.run(HERE, "chain", library="torch", root=f"stores/{n}", workload="small") for n in (1, 2))
    assert first == second


def test_a_series_is_stored_listed_and_comes_back(home: Path, tmp_path: Path) -> None:
    stored = storing.store(peers.OURS, recorded(tmp_path, 3))
    assert stored.steps == (0, 1, 2)
    assert stored.growth_bytes[0] > 0
    assert stored.total_bytes == sum(stored.growth_bytes)


def test_a_library_that_gives_back_something_else_is_found_out(home: Path, tmp_path: Path) -> None:
    forgetful = (
        "from tools.bench.measured.series import series\n"
        "from tools.bench.peers.ours import Ours\n"
        "Ours.load_state = lambda self, step: self._manager.load('step:0')\n"
        f"series('ours', {str(tmp_path / 'store')!r}, {[str(path) for path in recorded(tmp_path, 2).paths]!r})"
    )
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    command = [sys.executable, "-c", forgetful]
    finished = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert finished.returncode != 0
    assert "step 1/model/embed: not what was saved" in finished.stderr


def test_a_library_that_fails_is_reported_and_costs_no_other_its_figures(home: Path) -> None:
    bench = save.measure("small", ["copy"], 1)
    assert bench.figures["copy"]["failure"] == ""
    with pytest.raises(sessions.PeerFailed, match="ended with exit code 1"):
        sessions.run(HERE, "load", library="torch", root="nowhere", workload="small", step=1, again=0)


def test_an_interrupted_bench_leaves_nothing_behind(home: Path) -> None:
    command = [sys.executable, "-m", "tools.bench", "save", "--workload", "small", "--peers", "ours", "--rounds", "99"]
    environment = {**os.environ, "PYTHONPATH": str(Path(__file__).parents[2])}
    with subprocess.Popen(command, stderr=subprocess.PIPE, text=True, env=environment) as bench:
        assert bench.stderr is not None
        assert "moonclip-store" in bench.stderr.readline()  # one session is over
        while not (started := tree(bench.pid)[1:]):
            assert bench.poll() is None
        bench.send_signal(signal.SIGINT)
        bench.wait()
    assert started
    assert not any(Path(f"/proc/{pid}").exists() for pid in started)
    assert stores() == []


def test_raw_bytes_count_a_tied_tensor_once(tmp_path: Path) -> None:
    weight = torch.zeros(100)
    torch.save({"model": {"embed": weight, "head": weight, "bias": torch.zeros(10)}}, tmp_path / "tied.pt")
    assert raw_bytes(tmp_path / "tied.pt") == 440


def test_extra_time_is_what_steps_took_beyond_undisturbed_ones() -> None:
    def step(seconds: float) -> dict[str, float]:
        return {"all_s": seconds, "until_update_s": seconds / 2, "held_s": 0.0}

    row = rows.Row(peers.OURS)
    saved = {"event": "saved", "first": False, "blocked_s": 0.1, "stored_bytes": 1, "steps": [step(1.5), step(1.25)]}
    captured = {"event": "captured", "blocked_s": 0.1, "step": step(1.5)}
    row.take([{"event": "undisturbed", "steps": [step(1.0), step(1.0), step(9.0)]}, saved, captured])
    assert row.extra_s == pytest.approx([0.1 + 0.5 + 0.25])
    assert row.window_s == pytest.approx([0.1 + 0.75 - 0.5])
    assert row.steps_s == [1.0, 1.0, 9.0]
    assert row.beside_s == [1.5, 1.25]


def test_panels_are_drawn(tmp_path: Path) -> None:
    spreads = {"moonclip-store": figures.spread([1.0, 2.0, 4.0]), "DCP async_save": figures.spread([3.0])}
    plots.draw(tmp_path / "plots" / "one.png", "title", [plots.Panel("seconds", spreads)] * 2)
    assert (tmp_path / "plots" / "one.png").read_bytes().startswith(b"\x89PNG")


@pytest.mark.parametrize(("share", "value"), [(0.5, 51), (0.99, 100), (0.0, 1)])
def test_a_percentile_is_one_of_the_values(share: float, value: int) -> None:
    assert figures.percentile(range(1, 101), share) == value


@pytest.mark.parametrize(("value", "at_most", "met"), [(1.0, True, True), (1.1, True, False), (0.9, False, False)])
def test_a_bar_is_met_on_one_side_of_its_limit(value: float, at_most: bool, met: bool) -> None:
    assert report.Bar("figure", value, 1.0, at_most=at_most).met is met
