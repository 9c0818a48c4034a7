"""The size bench, on states of a few kilobytes: it has to keep working between the days on which it is run."""

import subprocess
import sys
from pathlib import Path

import pytest
import torch

from tools.bench import peers, report, workloads


def recorded(folder: Path, count: int) -> workloads.Series:
    weight = torch.arange(3000, dtype=torch.float32)
    paths = tuple(folder / f"{step}.pt" for step in range(count))
    for step, path in enumerate(paths):
        moments = {0: {"step": torch.tensor(float(step)), "exp_avg": weight * step}}
        groups = [{"lr": 0.1, "betas": (0.9, 0.999), "params": [0]}]
        model = {"embed": weight + step, "nan": torch.tensor([float("nan")])}
        torch.save({"model": model, "optimizer": {"state": moments, "param_groups": groups}}, path)
    return workloads.Series("small", paths)


def test_a_series_is_stored_listed_and_comes_back(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    stored = peers.store(peers.OURS, recorded(tmp_path, 3))
    assert stored.steps == (0, 1, 2)
    assert stored.growth_bytes[0] > 0
    assert stored.total_bytes == sum(stored.growth_bytes)


def test_a_library_that_gives_back_something_else_is_found_out(tmp_path: Path) -> None:
    forgetful = (
        "from tools.bench.peers import runner\n"
        "runner.Ours.load = lambda self, step: self._manager.load('step:0')\n"
        "runner.main()"
    )
    command = [sys.executable, "-c", forgetful, "ours", str(tmp_path / "store")]
    command += [str(path) for path in recorded(tmp_path, 2).paths]
    finished = subprocess.run(command, capture_output=True, text=True, check=False)
    assert finished.returncode != 0
    assert "step 1/model/embed: not what was saved" in finished.stderr


def test_raw_bytes_count_a_tied_tensor_once(tmp_path: Path) -> None:
    weight = torch.zeros(100)
    torch.save({"model": {"embed": weight, "head": weight, "bias": torch.zeros(10)}}, tmp_path / "tied.pt")
    assert workloads.raw_bytes(tmp_path / "tied.pt") == 440


@pytest.mark.parametrize(("value", "at_most", "met"), [(1.0, True, True), (1.1, True, False), (0.9, False, False)])
def test_a_bar_is_met_on_one_side_of_its_limit(value: float, at_most: bool, met: bool) -> None:
    assert report.Bar("figure", value, 1.0, at_most=at_most).met is met
