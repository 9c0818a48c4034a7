"""Files that are stored with a commit."""

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager
from store import RemoteConfig, Repository, add_remote, clone, open_remote, push
from store.errors import Incompatible, NotFound, Pruned
from store.fsck import fsck
from store.gc import collect
from store.upkeep.prune import Pruner
from tests.storages import noise

MIB = 1 << 20


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with Repository.init(tmp_path / "store") as opened:
        yield opened


def packs_bytes(repo: Repository) -> int:
    return sum(path.stat().st_size for path in repo.layout.packs.glob("*.pack"))


@pytest.mark.parametrize("size_bytes", [0, 1, 23, 24, 255, 256, 16_381, 16_382, 65_535, 65_536, 3 * MIB + 1])
def test_a23_a_file_comes_back_byte_for_byte(repo: Repository, size_bytes: int, tmp_path: Path) -> None:
    source, target = tmp_path / "a.bin", tmp_path / "new" / "b.bin"
    source.write_bytes(noise(size_bytes))
    repo.save_arrays({}, files={"logs/a.bin": source, "b.bin": noise(size_bytes, 1)})
    files = repo.at("main").files
    assert {path: file.size_bytes for path, file in files.items()} == {"b.bin": size_bytes, "logs/a.bin": size_bytes}
    files["logs/a.bin"].copy_to(target)
    assert target.read_bytes() == source.read_bytes()
    assert files["b.bin"].read() == noise(size_bytes, 1)
    assert fsck(repo, full=True).clean


def test_a_log_that_grew_costs_what_it_grew_by(repo: Repository) -> None:
    log = noise(8 * MIB)
    repo.save_arrays({}, files={"log": log})
    before = packs_bytes(repo)
    repo.save_arrays({}, files={"log": log + noise(1000, 1)})
    repo.save_arrays({}, files={"log": noise(1000, 2) + log, "copy": log})
    assert packs_bytes(repo) - before < 4 * MIB  # three times the chunk around a change, of 1 MiB at most


def test_files_are_put_beside_what_the_tip_holds(repo: Repository) -> None:
    weight = np.arange(500_000, dtype=np.float32)
    repo.save_arrays({"model": {"w": weight}}, step=5, metadata={"loss": 1.0}, files={"a": b"1", "d/b": noise(MIB)})
    before = packs_bytes(repo)
    repo.put_files({"a": b"2", "c": b"3"}, message="Report")
    assert packs_bytes(repo) - before < 10_000
    tip = repo.at("main")
    assert {path: file.read() for path, file in tip.files.items()} == {"a": b"2", "c": b"3", "d/b": noise(MIB)}
    assert (tip.step, dict(tip.metadata), tip.commit.message) == (5, {"loss": 1.0}, "Report")
    assert np.array_equal(tip.arrays["model::w"].read(), weight)
    assert repo.at("main~1").files["a"].read() == b"1"
    assert fsck(repo, full=True).clean


def test_paths_that_lead_elsewhere_are_refused(repo: Repository) -> None:
    for path in ("", "/etc/passwd", "../a", "a/../b", "a//b", "a/", "./a", "nul\0"):
        with pytest.raises(Incompatible, match="cannot be a file"):
            repo.save_arrays({}, files={path: b""})
    with pytest.raises(Incompatible, match="is no container"):
        repo.save_arrays({}, files={"a": b"", "a/b": b""})
    with pytest.raises(FileNotFoundError):
        repo.save_arrays({}, files={"a": "not/there"})
    with pytest.raises(Incompatible, match="another name"):
        repo.save_arrays({"files": {"x": np.zeros(3)}}, files={"a": b""})
    with pytest.raises(NotFound, match="has no commit that files could lie beside"):
        repo.put_files({"a": b""})
    assert not repo.refs.list()


def test_a_trainers_files_are_files(repo: Repository) -> None:
    log = noise(MIB)
    with CheckpointManager(repo.layout.root) as manager:
        files = {"run.json": b"{}", "logs": {"train.txt": log}, "not a file": 7}
        manager.save(step=1, model={"w": torch.ones(3)}, files=files)
        manager.flush()
        found = repo.at("main").files
        assert {path: file.read() for path, file in found.items()} == {"run.json": b"{}", "logs/train.txt": log}
    repo.put_files({"logs/eval.txt": b"e"})
    found = repo.at("main").files
    assert {path: file.size_bytes for path, file in found.items()} == {
        "logs/eval.txt": 1,
        "logs/train.txt": MIB,
        "run.json": 2,
    }


def test_what_is_no_file_is_told(repo: Repository) -> None:
    repo.save_arrays({"files": {"a": 7}})
    with pytest.raises(Incompatible, match="a was saved as a int, not as a file"):
        repo.at("main").files["a"].read()


def test_files_travel_and_come_when_they_are_read(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    log = noise(3 * MIB)
    repo.save_arrays({"model": {"w": np.ones(3)}}, files={"log": log, "run.json": b"{}"})
    config = RemoteConfig("origin", str(tmp_path / "remote"))
    add_remote(repo.layout, repo.files, config)
    with open_remote(repo, "origin") as remote:
        push(repo, remote, ["main"]).require_all()
    with clone(config, tmp_path / "clone", lazy=True) as lazy:
        lazy_files = lazy.at("main").files
        assert packs_bytes(lazy) < MIB
        assert lazy_files["log"].size_bytes == len(log)
        assert lazy_files["run.json"].read() == b"{}"
        assert packs_bytes(lazy) < MIB
        assert lazy_files["log"].read() == log


def test_a15_a_lazy_store_fetches_what_is_looked_at_and_no_more(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    weight = np.frombuffer(noise(8 * MIB), np.uint8).reshape(8, MIB)
    repo.save_arrays({"model": {"w": weight, "x": weight[::-1]}}, files={"log": noise(2 * MIB, 1)})
    config = RemoteConfig("origin", str(tmp_path / "remote"))
    add_remote(repo.layout, repo.files, config)
    with open_remote(repo, "origin") as remote:
        push(repo, remote, ["main"]).require_all()
    with clone(config, tmp_path / "clone", lazy=True) as lazy:
        commit = lazy.at("main")
        assert commit.arrays["model::w"].shape == (8, MIB)
        assert packs_bytes(lazy) < 10_000
        assert np.array_equal(commit.arrays["model::w"][3], weight[3])
        assert packs_bytes(lazy) < 1.1 * MIB
        assert np.array_equal(commit.read(["*::x"])["model::x"], weight[::-1])
        assert packs_bytes(lazy) < 8.5 * MIB  # rows that both have were here
        lazy.put_files({"report": b"done"})
        tip = lazy.at("main")
        assert tip.files["log"].read() == noise(2 * MIB, 1)
        assert np.array_equal(tip.arrays["model::w"].read(), weight)
        assert fsck(lazy, full=True).clean


def test_files_are_pruned_like_any_item(repo: Repository) -> None:
    for step in range(3):
        repo.save_arrays({"model": {"w": np.ones(3)}}, step=step, files={"log": noise(MIB, step)})
    before = packs_bytes(repo)
    pruner = Pruner(repo)
    pruner.apply(pruner.items(["files"], 1, ()))
    collect(repo)
    assert packs_bytes(repo) < before - MIB
    assert repo.at("main").files["log"].read() == noise(MIB, 2)
    assert repo.at("main~2").arrays.keys() == {"model::w"}
    with pytest.raises(Pruned):
        _ = repo.at("main~2").files
    pruner = Pruner(repo)
    pruner.apply(pruner.items(["model"], 0, ()))
    assert repo.at("main~2").values() == {}
