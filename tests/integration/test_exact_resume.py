"""A run that is resumed goes on as if it had never stopped, to the last bit."""

from pathlib import Path

import pytest
import torch

from moonclip import CheckpointManager
from tools.training import Shape, Training

SMALL = Shape(width=20, layer_count=2, context=16, batch=2)


@pytest.fixture(autouse=True)
def settings_of_torch(monkeypatch: pytest.MonkeyPatch) -> None:
    """A training run chooses threads and determinism for the whole process; the other tests keep theirs."""
    monkeypatch.setattr(torch, "set_num_threads", lambda _: None)
    monkeypatch.setattr(torch, "use_deterministic_algorithms", lambda **_: None)


def test_c5_a_resumed_run_repeats_the_uninterrupted_one(tmp_path: Path) -> None:
    run = Training(shape=SMALL)
    with CheckpointManager(tmp_path) as mgr:
        for step in range(4):
            run.step()
            mgr.save(step=step, rng=True, model=run.model, optimizer=run.optimizer, scheduler=run.scheduler)
    expected = [run.step() for _ in range(3)]

    resumed = Training(seed=1, shape=SMALL)
    with CheckpointManager(tmp_path) as mgr:
        start = mgr.resume(rng=True, model=resumed.model, optimizer=resumed.optimizer, scheduler=resumed.scheduler)
    assert start == 4
    assert [resumed.step() for _ in range(3)] == expected
    for name, tensor in run.model.state_dict().items():
        assert torch.equal(resumed.model.state_dict()[name], tensor), name


def test_a2_a_tied_tensor_is_filled_whichever_name_comes_first(tmp_path: Path) -> None:
    run = Training(shape=SMALL)
    with CheckpointManager(tmp_path) as mgr:
        mgr.save("tied", {"model": run.model})
        other = Training(seed=1, shape=SMALL)
        mgr.load("tied", into={"model": other.model})
    assert other.model.head.weight is other.model.embed.weight
    assert torch.equal(other.model.embed.weight, run.model.embed.weight)
