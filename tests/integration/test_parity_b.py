"""What a person can do with torch_checkpointing, line by line, and the faults that ours must not have.

What is tested elsewhere, under the number of the line or without it:

=====  ==================================================================================================
line   where
=====  ==================================================================================================
B3–B7  ``test_load_targets.py``: ``test_b3_…`` to ``test_b7_…``
B8     ``tests/distributed/test_parity_b.py``; one process: ``test_a_synchronous_save_raises_the_original_error``
B9     ``test_manager_async.py``: ``test_b1_what_save_saw_is_stored_whatever_happens_next``
B10    ``test_manager_async.py``: ``test_two_saves_in_a_row_both_complete_in_two_arenas``
B13    ``test_worker_deaths.py``: ``test_what_was_handed_over_is_finished_when_the_trainer_is_gone`` and others
B16    ``test_manager_exit.py``: ``test_b10_a_save_queued_at_the_very_end_is_written`` and others
B17    also ``test_exchange_layouts.py``
B18    ``test_parity_b_items.py``, as are schemas, callbacks (B25) and events (B34)
B19–23 ``tests/distributed``: see the table in ``test_parity_b.py`` there, also for B26 and B33
B25    storage of one's own: ``tests/docs/test_remotes.py``; callbacks: ``test_parity_b_items.py``; resharders:
       ``test_parity_b_resharders.py``;
       hubs: ``test_exchange_hub.py``, into sharded targets ``tests/distributed/test_exchange_gloo.py``
B27    ``test_manager_async.py``, ``test_worker_scripts.py``: ``test_b27_…``
B28    ``test_load_targets.py``: ``test_b3_…``; ``tests/distributed/test_load_shards.py``: ``test_b28_…``
B29    ``tests/crash/test_flipped_bytes.py``; ``test_cases_a.py``: ``test_a17_…``
B30    ``test_cases_a.py``: ``test_a1_a_view_takes_its_own_bytes_and_overlapping_views_keep_their_values``
=====  ==================================================================================================
"""

import json
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, Conflict, Incompatible, ItemSpec, Layout, SaveFailed, load_files
from store.errors import WorkerEnded
from store.fsck import fsck
from store.repository import Repository
from tests import preloaded, workers
from tests.mounting import overlay_file_system, small_file_system

MIB = 1 << 20

FILE_SYSTEMS: dict[str, Callable[[Path], AbstractContextManager[Path]]] = {
    "the one that tests run on": nullcontext,
    "tmpfs": lambda path: small_file_system(path / "mounted", 64 * MIB),
    "overlay": overlay_file_system,
}


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store") as mgr:
        yield mgr


@pytest.mark.parametrize("kind", FILE_SYSTEMS)
def test_b1_defaults_work_on_any_file_system(tmp_path: Path, kind: str) -> None:
    saved = {"n": 3, "raw": b"\x00\xff" * 50_000, "text": "grün", "deep": {"a": [1, (2.5, None)]}}
    tensor = torch.rand(300_001)
    with FILE_SYSTEMS[kind](tmp_path) as directory:
        with CheckpointManager(directory / "store") as mgr:
            mgr.save("named", {**saved, "w": tensor}).result(60)
        with CheckpointManager(directory / "store") as mgr:
            loaded = mgr.load("named")
    assert torch.equal(loaded.pop("w"), tensor)
    assert loaded == saved


ZERO = """
import torch
from moonclip import CheckpointManager
from tests.workers import only_worker

assert not torch.cuda.is_available()
mgr = CheckpointManager("checkpoints")
assert only_worker()                     # started before anything is to be saved
model = torch.nn.Linear(300, 300)
future = mgr.save("first", {"model": model.state_dict(), "step": 7})
assert len(future.result(60)) == 64
into = {"model": torch.nn.Linear(300, 300).state_dict(), "step": 0}
kept = into["model"]["weight"]
mgr.load("first", into=into)
assert into["step"] == 7 and into["model"]["weight"] is kept and torch.equal(kept, model.weight)
print("done")
"""


def test_b2_nothing_has_to_be_configured_on_a_machine_without_a_gpu(tmp_path: Path) -> None:
    environment = {"PYTHONPATH": str(Path(__file__).parents[2]), "PATH": "/usr/bin:/bin", "CUDA_VISIBLE_DEVICES": ""}
    done = subprocess.run(
        [sys.executable, "-c", ZERO], cwd=tmp_path, env=environment, capture_output=True, text=True, check=False
    )
    assert (done.returncode, done.stdout) == (0, "done\n"), done.stderr


def test_b11_the_original_error_comes_with_the_workers_traceback_and_the_next_save_works(
    mgr: CheckpointManager,
) -> None:
    with workers.no_large_file(workers.only_worker()):
        future = mgr.save(step=1, w=torch.rand(MIB))
        error = future.exception(60)
    assert isinstance(error, SaveFailed)
    assert isinstance(error.__cause__, OSError)
    (note,) = error.__cause__.__notes__
    assert note.startswith("In the worker process:\nTraceback")
    assert "store/saving/saver.py" in note
    with pytest.raises(SaveFailed, match="step 1"):
        mgr.flush()
    mgr.save(step=2, w=torch.rand(MIB)).result(60)


def test_b12_the_save_of_a_killed_worker_fails_at_once_and_the_next_one_has_another(mgr: CheckpointManager) -> None:
    mgr.save(step=0, w=torch.zeros(MIB)).result(60)
    root = mgr._repo.layout.root
    with workers.refs_held(root):
        future = mgr.save(step=1, w=torch.ones(MIB))
        workers.await_save(root)  # one that was not handed over yet would be made by the next worker
        workers.kill(workers.only_worker())
        error = future.exception(workers.PATIENCE_S)
    assert error is not None
    assert isinstance(error.__cause__, WorkerEnded)
    assert mgr.load()["w"].sum() == 0
    with pytest.raises(SaveFailed, match="step 1"):
        mgr.save(step=2, w=torch.full((MIB,), 2.0))
    mgr.flush()
    assert [snapshot.step for snapshot in mgr.list_snapshots()] == [0, 2]


KILLED = """
import sys
import torch
from moonclip import CheckpointManager

mgr = CheckpointManager(sys.argv[1])
sys.stdin.readline()
mgr.save("nightly", {"old": torch.rand(300_000)})
sys.stdin.readline()
"""


def test_b14_a_retry_of_a_save_that_was_killed_has_nothing_of_it(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.save(step=0, w=1)
    with preloaded.start("-c", KILLED, str(tmp_path)) as trainer:
        worker = workers.only_worker(trainer.pid)
        with workers.refs_held(tmp_path):
            trainer.stdin.write("go\n")
            trainer.stdin.flush()
            workers.await_save(tmp_path)
            workers.kill(worker)
            trainer.send_signal(signal.SIGKILL)
            trainer.wait(60)
    new = torch.rand(300_000)
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("nightly", {"new": new}).result(60)
        loaded = mgr.load("nightly")
        assert list(loaded) == ["new"]
        assert torch.equal(loaded["new"], new)
        mgr.gc()
    with Repository.open(tmp_path) as repo:
        assert fsck(repo, full=True).findings == []
        assert sum(path.stat().st_size for path in repo.layout.packs.rglob("*") if path.is_file()) < 2 * new.nbytes


def test_b17_items_become_files_at_the_paths_that_they_declare_and_come_back_from_there(tmp_path: Path) -> None:
    state = {"layer.weight": torch.rand(300, 70), "layer.bias": torch.rand(3)}
    config = {"lr": 0.5, "names": ["a", None], "deep": {"on": True}}
    layouts = {
        "model": Layout("safetensors", "weights/model.safetensors"),
        "optimizer": Layout("torch"),
        "config": Layout("json", "config.json"),
        "tokens": Layout("raw", "weights/tokens.txt"),
    }
    items = {item: ItemSpec(layout=layout) for item, layout in layouts.items()}
    optimizer = {"state": {0: {"exp_avg": torch.rand(5)}}, "step": 3}
    with CheckpointManager(tmp_path / "store", items=items) as mgr:
        mgr.save("x", {"model": state, "optimizer": optimizer, "config": config, "tokens": "grün\n", "other": {1, 2}})
        mgr.export("x", tmp_path / "out", format="dir")
    files = {str(path.relative_to(tmp_path / "out")) for path in (tmp_path / "out").rglob("*") if path.is_file()}
    assert files == {"weights/model.safetensors", "optimizer.pt", "config.json", "weights/tokens.txt", "other.pt"}
    loaded = torch.load(tmp_path / "out" / "optimizer.pt", weights_only=True)
    assert torch.equal(loaded["state"][0]["exp_avg"], optimizer["state"][0]["exp_avg"])  # type: ignore[index]
    assert json.loads((tmp_path / "out" / "config.json").read_text()) == config
    assert (tmp_path / "out" / "weights" / "tokens.txt").read_text() == "grün\n"
    into = {name: torch.zeros_like(tensor) for name, tensor in state.items()}
    load_files(tmp_path / "out" / "weights" / "model.safetensors", into)
    assert all(torch.equal(into[name], tensor) for name, tensor in state.items())


@pytest.mark.parametrize("path", ["../model.pt", "/tmp/model.pt", "a/../../model.pt", "", "a\\..\\b", "nul\0.pt"])
def test_b17_a_path_that_leaves_the_directory_is_refused_where_it_is_declared(path: str) -> None:
    with pytest.raises(Incompatible, match="no path of a file below the directory"):
        Layout("torch", path)


@pytest.mark.parametrize(("one", "other"), [("a.pt", "./a.pt"), ("a.pt", "A.PT"), ("a", "a/b.pt"), ("x//y", "x/y")])
def test_b17_a_path_that_is_used_twice_is_refused_when_the_manager_is_made(
    tmp_path: Path, one: str, other: str
) -> None:
    items = {"one": ItemSpec(layout=Layout("torch", one)), "other": ItemSpec(layout=Layout("torch", other))}
    with pytest.raises(Incompatible, match=r"would (both )?be"):
        CheckpointManager(tmp_path / "store", items=items)
    assert not (tmp_path / "store").exists()


class Unread:
    """A state that nobody may ask for."""

    def state_dict(self) -> Any:
        raise AssertionError("it was asked for")


def test_b15_a_name_that_exists_is_refused_before_anything_is_read_or_written_unless_it_is_to_move(
    mgr: CheckpointManager, tmp_path: Path
) -> None:
    first = mgr.save("best", {"w": torch.zeros(300_000)}).result(60)
    before = {path: path.stat().st_size for path in (tmp_path / "store" / "packs").rglob("*")}
    with pytest.raises(Conflict, match="best"):
        mgr.save("best", {"w": Unread()})
    assert {path: path.stat().st_size for path in (tmp_path / "store" / "packs").rglob("*")} == before
    assert mgr.tags()["best"] == first == mgr.head
    second = mgr.save("best", {"w": torch.ones(300_000)}, overwrite=True).result(60)
    assert mgr.tags()["best"] == second
    assert mgr.load("best")["w"].sum() == 300_000


@pytest.mark.parametrize("async_save", [True, False])
def test_b24_every_later_save_is_described_by_what_it_holds_itself(tmp_path: Path, async_save: bool) -> None:
    states = [
        {"a": torch.zeros(5, 3), "b": torch.zeros(2, dtype=torch.int64)},
        {"a": torch.zeros(7, 3), "c": torch.zeros(2, dtype=torch.float64)},
        {"c": torch.zeros(4), "a": torch.zeros(7, 3, dtype=torch.bfloat16)},
        {"a": torch.zeros(5, 3)},
    ]
    with CheckpointManager(tmp_path, async_save=async_save) as mgr:
        for step, state in enumerate(states):
            mgr.save(step=step, model=state, metadata={"keys": sorted(state)})
        for step, state in enumerate(states):
            told = mgr.describe(f"step:{step}")
            assert {name: (found.dtype, found.shape) for name, found in told.tensors.items()} == {
                f"model::{name}": (str(tensor.dtype).removeprefix("torch."), tuple(tensor.shape))
                for name, tensor in state.items()
            }
            assert told.snapshot.metadata == {"keys": sorted(state)}


def test_b31_tied_weights_and_names_that_collide_when_flattened_both_survive(mgr: CheckpointManager) -> None:
    tied = torch.rand(100_000)
    state = {"a.b": torch.ones(3), "a": {"b": torch.zeros(3)}, "a/b": torch.full((3,), 2.0), "x": tied, "y": tied}
    mgr.save(model=state)
    loaded = mgr.load()["model"]
    assert [loaded["a.b"][0], loaded["a"]["b"][0], loaded["a/b"][0]] == [1, 0, 2]
    assert loaded["x"] is loaded["y"]
    assert torch.equal(loaded["x"], tied)


@pytest.mark.filterwarnings("ignore:.*quantized tensor creation functions")
def test_b32_sparse_and_quantized_tensors_come_back_and_a_meta_tensor_is_refused_by_name(
    mgr: CheckpointManager,
) -> None:
    sparse = torch.eye(5).to_sparse()
    quantized = torch.quantize_per_tensor(torch.arange(6.0), 0.5, 3, torch.quint8)
    mgr.save(model={"sparse": sparse, "quantized": quantized}).result(60)
    loaded = mgr.load()["model"]
    assert loaded["sparse"].is_coalesced() == sparse.is_coalesced()
    assert torch.equal(loaded["sparse"].to_dense(), torch.eye(5))
    assert torch.equal(loaded["quantized"].int_repr(), quantized.int_repr())
    assert loaded["quantized"].q_scale() == 0.5
    with pytest.raises(Incompatible, match=r"model: 'deep/w': .*meta device"):
        mgr.save(model={"deep": {"w": torch.empty(3, device="meta")}})
