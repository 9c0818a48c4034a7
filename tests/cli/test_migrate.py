"""``moonclip migrate`` and ``moonclip cat``."""

import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import Result

from moonclip import CheckpointManager
from store.repository import Repository

ROOT = Path(__file__).parents[2]
PEERS = ROOT / ".venv-peers" / "bin" / "python"

Out = Callable[..., str]
Document = Callable[..., Any]
Run = Callable[..., Result]


@pytest.fixture
def source(tmp_path: Path) -> Path:
    """A directory of three checkpoints."""
    place = tmp_path / "runs"
    place.mkdir()
    for step in (5, 40, 300):
        torch.save({"model": {"w": torch.full((300,), float(step))}, "loss": 1 / step}, place / f"step_{step}.pt")
    torch.save({}, place / "best.pt")
    return place


def test_a_directory_becomes_a_history(source: Path, run: Run, output: Out) -> None:
    result = run("migrate", source)
    assert result.exit_code == 0, result.output
    assert [line.split("  ")[1] for line in result.stdout.splitlines()[:3]] == ["step 5", "step 40", "step 300"]
    assert result.stdout.endswith("migrated 3 checkpoints (files of torch.save) to branch main\n")
    assert result.stderr == "passed over best.pt: nothing tells its step\n"
    assert "step 300  loss=0.00333" in output("log", "--oneline")
    again = run("migrate", source)
    assert again.stdout == (
        "migrated 0 checkpoints (files of torch.save) to branch main; 3 checkpoints had been before\n"
    )


def test_a_dry_run_tells_and_makes_nothing(source: Path, run: Run, document: Document, tmp_path: Path) -> None:
    result = run("migrate", source, "--dry-run")
    assert result.stdout.count("would migrate  step") == 3
    assert "would migrate 3 checkpoints" in result.stdout
    assert not (tmp_path / "checkpoints").exists()
    told = document("migrate", source, "--dry-run")
    assert [(each["name"], each["step"], each["state"]) for each in told["checkpoints"]] == [
        ("step_5.pt", 5, "planned"),
        ("step_40.pt", 40, "planned"),
        ("step_300.pt", 300, "planned"),
    ]
    assert (told["kind"], told["branch"], told["passed_over"]) == ("files of torch.save", "main", ["best.pt"])


def test_what_is_new_goes_to_the_branch_that_is_named(source: Path, document: Document, tmp_path: Path) -> None:
    document("migrate", source, "--branch", "old")
    torch.save({"model": {"w": torch.zeros(3)}}, source / "step_400.pt")
    told = document("migrate", source, "--branch", "old")
    assert [each["state"] for each in told["checkpoints"]] == [*["present"] * 3, "migrated"]
    with Repository.open(tmp_path / "checkpoints") as repo:
        assert told["checkpoints"][-1]["commit"] == repo.resolve("old").hex()
        assert set(repo.refs.list()) == {"branches/old"}


def test_faults_are_told_in_a_line(source: Path, failure: Callable[..., str], run: Run, tmp_path: Path) -> None:
    (tmp_path / "empty").mkdir()
    assert "holds no checkpoints that can be migrated" in failure("migrate", tmp_path / "empty")
    assert run("migrate", tmp_path / "nowhere").exit_code == 2
    rust = tmp_path / "rust"
    (rust / "snapshots").mkdir(parents=True)
    (rust / "manifest.json").write_text("{}")
    assert "name its interpreter with --python" in failure("migrate", rust)
    assert "lacks the Rust engine; install moonclip==0.3.1" in failure("migrate", rust, "--python", sys.executable)


_RUST = """
import sys
import moonclip, torch

manager = moonclip.CheckpointManager(sys.argv[1])
for step in range(4):
    torch.manual_seed(step)
    model = torch.nn.Linear(50, 20)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2, 50)).sum().backward()
    optimizer.step()
    extra = {"note": {"step": step, "t": torch.ones(3, dtype=torch.bfloat16)}}
    manager.save(step=step, model=model, optimizer=optimizer, extra=extra, metadata={"loss": str(step)})
manager.flush()
engine = moonclip.MoonclipManager(sys.argv[2])
engine.save_tensors(7, {"a/w": ((300, 2), "float32", torch.arange(600.0).numpy().tobytes())}, {})
engine.flush()
"""


_PARTS = """
import sys
import moonclip

first, second = (moonclip.MoonclipManager(sys.argv[1], world_size=2, rank=rank) for rank in range(2))
snapshot = first.create_snapshot(1)
for engine in (first, second):
    engine.save_rank(snapshot, {"w": ([2], "float32", bytes(8))})
    engine.flush()
first.finalize_snapshot(snapshot)
"""

_TORCH_CHECKPOINTING = """
import sys

import torch
from torch_checkpointing import CheckpointManager
from torch_checkpointing.config import AsyncCheckpointSaverConfig
from torch_checkpointing.staging import CheckpointStagerConfig
from torch_checkpointing.storage.filesystem import LocalFileSystemStorageConfig

if __name__ == "__main__":
    stager = CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
    storage = LocalFileSystemStorageConfig(use_direct_io=False)
    config = CheckpointManager.Config(save=AsyncCheckpointSaverConfig(staging_config=stager), storage_config=storage)
    manager = CheckpointManager(config)
    for step in (9, 10):
        items = {"model": {"w": torch.full((300,), float(step))}, "step": step, "blob": b"abc", "n": {"a": [1, None]}}
        manager.save(f"{sys.argv[1]}/checkpoint_{step}", items).result()
    manager.close()
"""

with_peers = pytest.mark.skipif(not PEERS.exists(), reason="what the benches compare with is not installed")


@pytest.mark.slow
@with_peers
def test_a_store_of_the_rust_engine_becomes_a_history(tmp_path: Path, document: Document) -> None:
    subprocess.run([PEERS, "-I", "-c", _RUST, tmp_path / "manager", tmp_path / "engine"], check=True)
    before = {path: path.read_bytes() for path in (tmp_path / "manager").rglob("*") if path.is_file()}
    told = document("migrate", tmp_path / "manager", "--python", PEERS)
    assert [(each["step"], each["state"]) for each in told["checkpoints"]] == [(step, "migrated") for step in range(4)]
    assert {path: path.read_bytes() for path in (tmp_path / "manager").rglob("*") if path.is_file()} == before
    again = document("migrate", tmp_path / "manager", "--python", PEERS)
    assert {each["state"] for each in again["checkpoints"]} == {"present"}
    document("migrate", tmp_path / "engine", "--python", PEERS, "--branch", "engine")
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        torch.manual_seed(2)
        expected = torch.nn.Linear(50, 20)
        optimizer = torch.optim.AdamW(expected.parameters())
        expected(torch.ones(2, 50)).sum().backward()
        optimizer.step()
        loaded = manager.load("step:2")
        assert torch.equal(loaded["model"]["weight"], expected.weight)
        assert torch.equal(loaded["optimizer"]["state"][0]["exp_avg"], optimizer.state[expected.weight]["exp_avg"])
        assert loaded["extra"]["note"]["step"] == 2
        assert torch.equal(loaded["extra"]["note"]["t"], torch.ones(3, dtype=torch.bfloat16))
        assert manager.list_snapshots()[2].metadata["loss"] == "2"
        assert torch.equal(manager.load("engine")["model"]["a/w"], torch.arange(600.0).view(300, 2))


@with_peers
def test_a_rust_snapshot_of_several_ranks_is_refused(tmp_path: Path, failure: Callable[..., str]) -> None:
    subprocess.run([PEERS, "-I", "-c", _PARTS, tmp_path / "parts"], check=True)
    assert "was saved by 2 ranks" in failure("migrate", tmp_path / "parts", "--python", PEERS)


@pytest.mark.slow
@with_peers
def test_what_torch_checkpointing_saved_becomes_a_history(tmp_path: Path, document: Document) -> None:
    (tmp_path / "save.py").write_text(_TORCH_CHECKPOINTING)
    subprocess.run([PEERS, "-I", tmp_path / "save.py", tmp_path / "saved"], check=True)
    told = document("migrate", tmp_path / "saved")
    assert [(each["name"], each["step"]) for each in told["checkpoints"]] == [
        ("checkpoint_9", 9),
        ("checkpoint_10", 10),
    ]
    with CheckpointManager(tmp_path / "checkpoints") as manager:
        loaded = manager.load("main")
        assert (loaded["step"], loaded["blob"], loaded["n"]) == (10, b"abc", {"a": [1, None]})
        assert torch.equal(loaded["model"]["w"], torch.full((300,), 10.0))


def test_cat_gives_a_file_byte_for_byte(run: Run, failure: Callable[..., str], output: Out, tmp_path: Path) -> None:
    content = bytes(range(256)) * 300
    with Repository.init(tmp_path / "checkpoints") as repo:
        repo.save_arrays({}, step=300, files={"run.json": b"{}", "logs/a.bin": content})
        repo.save_arrays({}, step=301)
    assert run("cat", "main~1:logs/a.bin").stdout_bytes == content
    assert run("cat", "step:300:run.json").stdout_bytes == b"{}"
    assert run("cat", "main@step:300:run.json").stdout_bytes == b"{}"
    assert "files::logs/a.bin" in output("ls", "main~1")
    assert "no file 'run.txt'" in failure("cat", "main~1:run.txt")
    assert "it has: logs/a.bin, run.json" in failure("cat", "main~1:run.txt")
    assert "it has: none" in failure("cat", "main:run.json")
    for wrong in ("main", "main:", ":run.json"):
        assert run("cat", wrong).exit_code == 2
