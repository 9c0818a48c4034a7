"""Accelerate: what a loop has prepared is saved and resumed, and its batches know where they are."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
from accelerate import Accelerator, DataLoaderConfiguration
from accelerate.state import GradientState
from torch.utils.data import DataLoader, TensorDataset

from moonclip import CheckpointManager, Incompatible
from moonclip.integrations.accelerate import Batches, items_of, state_directory
from tests.launching import require_done

pytestmark = pytest.mark.filterwarnings("ignore")

COUNT = 10


@pytest.fixture(autouse=True)
def nothing_accumulated() -> Iterator[None]:
    """All accelerators of a process share what they know of gradients."""
    yield
    GradientState._reset_state()


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "store", async_save=False, threads=1) as manager:
        yield manager


def shuffled(**options: Any) -> DataLoader[Any]:
    return DataLoader(TensorDataset(torch.arange(3 * COUNT)), batch_size=3, **options)


def seeded() -> DataLoader[Any]:
    return shuffled(shuffle=True, generator=torch.Generator().manual_seed(7))


def drawn_with_replacement() -> DataLoader[Any]:
    data = TensorDataset(torch.arange(3 * COUNT))
    generator = torch.Generator().manual_seed(7)
    sampler = torch.utils.data.RandomSampler(data, replacement=True, generator=generator)
    return DataLoader(data, batch_size=3, sampler=sampler)


LOADERS: dict[str, tuple[Callable[[], DataLoader[Any]], bool]] = {
    "in order": (shuffled, False),
    "shuffled": (lambda: shuffled(shuffle=True), False),
    "seedable": (lambda: shuffled(shuffle=True), True),
    "of its own generator": (seeded, False),
    "with replacement": (drawn_with_replacement, False),
    "read by workers": (lambda: shuffled(shuffle=True, num_workers=1), False),
}


def prepared(kind: str) -> Batches:
    make, is_seedable = LOADERS[kind]
    config = DataLoaderConfiguration(use_seedable_sampler=is_seedable)
    return Batches(Accelerator(cpu=True, dataloader_config=config).prepare(make()))


def drawn(batches: Batches, until: int) -> list[tuple[list[int], float]]:
    """What a loop sees until so many batches were given out, and what it draws itself."""
    seen = []
    while batches.step < until:
        for (batch,) in batches:
            seen.append((batch.tolist(), torch.rand(()).item()))
            if batches.step == until:
                break
    return seen


@pytest.mark.parametrize("at", [4, COUNT, COUNT + 1], ids=["in an epoch", "after its last batch", "in the second"])
@pytest.mark.parametrize("kind", LOADERS)
def test_b4_batches_go_on_where_they_were(kind: str, at: int, mgr: CheckpointManager) -> None:
    torch.manual_seed(1)
    batches = prepared(kind)
    before = drawn(batches, at)
    mgr.save(step=at, rng=True, batches=batches)
    after = drawn(batches, 2 * COUNT + 3)
    assert len(before) + len(after) == 2 * COUNT + 3

    torch.manual_seed(2)
    resumed = prepared(kind)
    assert mgr.resume(rng=True, batches=resumed) == at + 1
    assert drawn(resumed, 2 * COUNT + 3) == after
    assert (resumed.epoch, resumed.batch, resumed.step) == (2, 3, 2 * COUNT + 3)


def test_b4_another_batch_size_is_refused_within_an_epoch_and_taken_between_two(mgr: CheckpointManager) -> None:
    batches = prepared("in order")
    for until in (4, COUNT):
        drawn(batches, until)
        mgr.save(step=until, batches=batches)
    list(batches)
    mgr.save(step=2 * COUNT, batches=batches)
    other = Batches(Accelerator(cpu=True).prepare(DataLoader(TensorDataset(torch.arange(3 * COUNT)), batch_size=6)))
    with pytest.raises(Incompatible, match=r"4 batches of 3 were given out .* are of 6"):
        mgr.load("step:4", batches=other)
    assert (other.epoch, other.batch) == (0, 0)
    mgr.resume(batches=other)
    assert (other.epoch, len(list(other))) == (batches.epoch, 5)


def test_b4_batches_are_of_a_prepared_loader() -> None:
    with pytest.raises(Incompatible, match="prepare it first"):
        Batches(shuffled())
    assert len(prepared("in order")) == COUNT


def trained(accelerator: Accelerator) -> dict[str, Any]:
    """Items of a model, its optimizer and its scheduler, after one step of two micro-batches."""
    net: Any = torch.nn.Linear(3, 1)
    optimizer: Any = torch.optim.AdamW(net.parameters())
    scheduler: Any = torch.optim.lr_scheduler.LinearLR(optimizer)
    net, optimizer, scheduler = accelerator.prepare(net, optimizer, scheduler)
    items = items_of(accelerator, model=net, optimizer=optimizer, scheduler=scheduler)
    for _ in range(2):
        accumulate(accelerator, items)
    return items


def accumulate(accelerator: Accelerator, items: dict[str, Any]) -> None:
    with accelerator.accumulate(items["model"]):
        accelerator.backward(items["model"](torch.ones(1, 3)).sum())
        items["optimizer"].step()
        items["scheduler"].step()
        items["optimizer"].zero_grad()


def test_b4_half_a_step_is_not_saved(mgr: CheckpointManager) -> None:
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    items = trained(accelerator)
    mgr.save(step=1, **items)
    accumulate(accelerator, items)
    with pytest.raises(Incompatible, match="sync_gradients"):
        mgr.save(step=2, **items)
    assert mgr.step == 1


def test_b4_the_scaler_is_saved_if_there_is_one(mgr: CheckpointManager) -> None:
    accelerator = Accelerator(cpu=True)
    assert "scaler" not in items_of(accelerator)
    accelerator.scaler = torch.amp.GradScaler("cpu", init_scale=8.0)
    mgr.save(step=1, **items_of(accelerator))
    accelerator.scaler = torch.amp.GradScaler("cpu")
    mgr.resume(**items_of(accelerator))
    assert accelerator.scaler.state_dict()["scale"] == 8.0


def test_b4_names_of_the_accelerators_own_items_are_taken() -> None:
    with pytest.raises(Incompatible, match="another name"):
        items_of(Accelerator(cpu=True), scaler={})


def test_b4_a_commit_is_read_by_load_state(mgr: CheckpointManager) -> None:
    with state_directory(mgr) as path:
        assert path is None
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=2)
    items = trained(accelerator)
    mgr.save(step=5, rng=True, **items)
    expected = torch.rand(3)

    other = Accelerator(cpu=True)
    fresh = trained(other)
    accumulate(other, fresh)
    with state_directory(mgr) as path:
        assert path is not None
        other.load_state(str(path))
    assert torch.equal(torch.rand(3), expected)
    assert other.step == accelerator.step
    assert torch.equal(fresh["model"].weight, items["model"].weight)
    assert fresh["scheduler"].state_dict() == items["scheduler"].state_dict()
    moments = [each["optimizer"].state_dict()["state"][0]["exp_avg"] for each in (fresh, items)]
    assert torch.equal(*moments)
    assert not path.exists()


@pytest.mark.slow
def test_b4_each_of_several_ranks_goes_on_with_its_own_batches(tmp_path: Path) -> None:
    require_done("accelerate_ranks.py", tmp_path, 2)
