"""A manager that copies while training goes on, within bounds of memory, and skips what is frozen."""

import gc
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from torch import nn

from moonclip import CheckpointManager, Incompatible, NoRoom, SaveFailed, StateChanged
from moonclip.state.entries import FlatTensor
from store.errors import NotUnchanged
from store.limits import WORKER_BYTES
from tests.gating import GatedThreads

WIDTH = 96


class Training:
    """A small model, and a manager whose late copies wait at a gate."""

    def __init__(self, root: Path, **options: Any) -> None:
        torch.manual_seed(0)
        self.model = nn.Sequential(nn.Linear(WIDTH, WIDTH), nn.BatchNorm1d(WIDTH), nn.Linear(WIDTH, WIDTH))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=0.1)
        self.mgr = CheckpointManager(root, capture="overlap", **options)
        self.threads = GatedThreads(2)
        self.mgr._staging._threads = self.threads

    @property
    def items(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def backward(self) -> None:
        self.model(torch.randn(8, WIDTH)).square().mean().backward()

    def weight(self) -> torch.Tensor:
        return self.model[0].weight.detach().clone()


@pytest.fixture
def training(tmp_path: Path) -> Iterator[Training]:
    training = Training(tmp_path)
    yield training
    training.threads.gate.set()
    training.mgr.close()
    training.threads.close()


def test_what_is_stored_is_the_state_at_the_save(training: Training) -> None:
    weights = []
    for step in range(4):
        weights.append(training.weight())
        training.threads.gate.clear()
        training.mgr.save(step=step, **training.items)
        training.backward()
        training.threads.gate.set()
        training.optimizer.step()
    training.mgr.flush()
    for step, weight in enumerate(weights):
        assert torch.equal(training.mgr.load(f"step:{step}")["model"]["0.weight"], weight)
    other = Training(Path(training.mgr._repo.layout.root))
    try:
        assert other.mgr.resume(**other.items) == 4
        assert torch.equal(other.weight(), weights[3])
    finally:
        other.mgr.close()


def test_a_tensor_that_changed_fails_its_save_and_no_other(training: Training) -> None:
    training.mgr.save(step=0, **training.items)
    training.threads.gate.set()
    training.mgr.flush()
    training.threads.gate.clear()
    future = training.mgr.save(step=1, **training.items)
    training.model[2].weight.data.mul_(2)
    training.threads.gate.set()
    with pytest.raises(SaveFailed, match=r"step 1 failed: model::2\.weight was altered") as failed:
        future.result()
    assert isinstance(failed.value.__cause__, StateChanged)
    with pytest.raises(SaveFailed, match="step 1"):
        training.mgr.flush()
    assert [row.step for row in training.mgr.log()] == [0]
    training.mgr.save(step=2, **training.items)
    training.mgr.flush()
    assert [row.step for row in training.mgr.log()] == [2, 0]
    assert torch.equal(training.mgr.load()["model"]["2.weight"], training.model[2].weight)


def test_whatever_reads_or_writes_the_state_waits_for_the_copy(training: Training) -> None:
    training.threads.gate.set()
    for step, use in enumerate(
        (
            lambda: training.mgr.resume(**training.items),
            lambda: training.mgr.load(into=training.items),
            lambda: training.mgr.save(step=9, **training.items),
            training.mgr.flush,
            training.mgr.close,
        )
    ):
        before = training.weight()
        future = training.mgr.save(step=step, **training.items)
        use()
        assert future.result() and torch.equal(training.weight(), before)


def test_an_exception_in_the_loop_leaves_nothing_hanging(training: Training) -> None:
    def loop() -> None:
        training.mgr.save(step=0, **training.items)
        training.threads.gate.set()
        raise RuntimeError("the loop broke")

    with pytest.raises(RuntimeError, match="the loop broke"), training.mgr:
        loop()
    training.backward()
    training.optimizer.step()


def test_updates_under_the_lock_are_not_torn(training: Training) -> None:
    training.threads.gate.set()
    for step in range(3):
        before = training.weight()
        training.mgr.save(step=step, **training.items)
        with training.mgr.lock(), torch.no_grad():
            training.model[0].weight.mul_(2)
        training.mgr.flush()
        assert torch.equal(training.mgr.load()["model"]["0.weight"], before)


# --- bounds ---------------------------------------------------------------------------------------------------------


def state(size_bytes: int, value: int) -> torch.Tensor:
    return torch.full((size_bytes,), value, dtype=torch.uint8)


@pytest.mark.parametrize("async_save", [True, False])
def test_with_room_for_one_copy_saves_are_as_they_should_be(tmp_path: Path, async_save: bool) -> None:
    size_bytes = 3 << 20
    with CheckpointManager(tmp_path, max_host_memory=(4 << 20) + WORKER_BYTES, async_save=async_save) as mgr:
        for step in range(4):
            mgr.save(step=step, x=state(size_bytes, step), y=torch.arange(1000) + step)
            mgr.flush()
        for step in range(4):
            loaded = mgr.load(f"step:{step}")
            assert torch.equal(loaded["x"], state(size_bytes, step)) and torch.equal(
                loaded["y"], torch.arange(1000) + step
            )


def test_a_state_without_room_is_refused_and_the_manager_goes_on(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, max_host_memory=f"{(WORKER_BYTES >> 20) + 2}MiB") as mgr:
        with pytest.raises(NoRoom, match="max_host_memory"):
            mgr.save(step=0, x=state(3 << 20, 0))
        with pytest.raises(MemoryError):
            mgr.prewarm(x=state(3 << 20, 0))
        mgr.save(step=1, x=state(1 << 20, 1))
        mgr.flush()
        assert [row.step for row in mgr.log()] == [1]


class Unready:
    """Takes its state, and cannot say what it is before the first step."""

    def __init__(self) -> None:
        self.state: dict[str, object] = {}

    def state_dict(self) -> dict[str, object]:
        return self.state or {"not yet": object()}

    def load_state_dict(self, state: dict[str, object]) -> None:
        self.taken = state


def test_a_resume_does_not_need_what_only_the_next_save_does(tmp_path: Path) -> None:
    saved, resumed = Unready(), Unready()
    saved.state = {"epoch": 3}
    with CheckpointManager(tmp_path / "store") as mgr:
        mgr.save(step=7, loader=saved).result()
        assert mgr.resume(loader=resumed) == 8
        assert resumed.taken == {"epoch": 3}
        with pytest.raises(Incompatible, match="not yet"):
            mgr.save(loader=resumed)


def test_a_manager_that_was_prewarmed_or_resumed_has_its_arenas(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path) as mgr:
        mgr.prewarm(x=state(1 << 20, 0))
        assert [arena and mgr._staging._pages.made_bytes(arena) for arena in mgr._staging._arenas] == [1 << 20, 1 << 20]
        mgr.save(step=0, x=state(1 << 20, 1))
    with CheckpointManager(tmp_path) as mgr:
        target = state(1 << 20, 0)
        assert mgr.resume(x=target) == 1
        assert None not in mgr._staging._arenas
        assert torch.equal(target, state(1 << 20, 1))


def test_the_collector_finds_nothing_of_a_state_that_was_handed_over(tmp_path: Path) -> None:
    """What was flattened is gone when collections are allowed again, of which each looks at every object."""
    seen: list[int] = []

    def look(phase: str, _: dict[str, int]) -> None:
        if phase == "start":
            seen.append(sum(type(each) is FlatTensor for each in gc.get_objects()))

    small = {str(number): torch.ones(2) for number in range(3000)}
    with CheckpointManager(tmp_path) as mgr:
        gc.collect()
        gc.callbacks.append(look)
        try:
            mgr.save(step=0, x=small)
        finally:
            gc.callbacks.remove(look)
    assert seen
    assert not any(seen)


@pytest.mark.parametrize("options", [{"capture": "later"}, {"max_host_memory": "much"}], ids=str)
def test_options_that_make_no_sense_are_refused_and_no_store_is_made(tmp_path: Path, options: dict[str, Any]) -> None:
    with pytest.raises(Incompatible):
        CheckpointManager(tmp_path / "store", **options)
    assert not (tmp_path / "store").exists()


# --- frozen parameters ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("async_save", [True, False])
def test_frozen_parameters_that_are_skipped_are_in_every_commit(tmp_path: Path, async_save: bool) -> None:
    model = nn.Sequential(nn.Linear(512, 512), nn.Linear(512, 512))
    model[0].requires_grad_(requires_grad=False)
    with CheckpointManager(tmp_path, skip_unmodified=True, async_save=async_save) as mgr:
        states = []
        for step in range(4):
            with torch.no_grad():
                model[1].weight.add_(1)
                if step == 2:
                    model[0].weight.add_(1)
            states.append({name: tensor.clone() for name, tensor in model.state_dict().items()})
            mgr.save(step=step, model=model)
        mgr.flush()
        for step, expected in enumerate(states):
            loaded = mgr.load(f"step:{step}")["model"]
            assert all(torch.equal(loaded[name], tensor) for name, tensor in expected.items())
        assert mgr.fsck(full=True).clean


def test_a_worker_that_knows_no_last_save_is_given_the_bytes_after_all(tmp_path: Path) -> None:
    model = nn.Linear(512, 512)
    model.weight.requires_grad_(requires_grad=False)
    with CheckpointManager(tmp_path, skip_unmodified=True) as mgr:
        mgr.save(step=0, model=model)
        mgr.flush()
        client = mgr._recorder._client
        assert client is not None and client._worker is not None
        client._worker._process.kill()
        client._worker._process.wait()
        mgr.save(step=1, model=model)
        mgr.flush()
        assert torch.equal(mgr.load("step:1")["model"]["weight"], model.weight)
    assert issubclass(NotUnchanged, Exception)


def test_a_save_beside_one_inside_lock_does_not_hang(tmp_path: Path) -> None:
    inside, done = threading.Event(), threading.Event()
    with CheckpointManager(tmp_path) as mgr:

        def beside() -> None:
            inside.wait()
            mgr.save(step=2, x=torch.ones(3))
            done.set()

        thread = threading.Thread(target=beside, daemon=True)
        thread.start()
        with mgr.lock():
            inside.set()
            for step in range(10, 40):
                mgr.save(step=step, x=torch.ones(3))
        assert done.wait(timeout=60)
        assert 2 in [snapshot.step for snapshot in mgr.list_snapshots()]
