"""Optimizers, schedulers and generators: after a resume, one more step is the step that would have been."""

import inspect
import random
import warnings
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager, Incompatible

OPTIMIZERS = sorted(
    name
    for name, found in vars(torch.optim).items()
    if inspect.isclass(found) and issubclass(found, torch.optim.Optimizer) and found is not torch.optim.Optimizer
)

SETTINGS: dict[str, list[dict[str, Any]]] = {
    "SGD": [{"lr": 0.1}, {"lr": 0.1, "momentum": 0.9}],
    "Adam": [{}, {"amsgrad": True}, {"lr": torch.tensor(0.01), "foreach": False}, {"fused": True}],
    "AdamW": [{}, {"fused": True}],
    "LBFGS": [{"lr": 0.1, "max_iter": 3}],
    "RMSprop": [{"centered": True, "momentum": 0.5}],
    "Muon": [{"lr": 0.01}],
}


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    with CheckpointManager(tmp_path / "checkpoints") as mgr:
        yield mgr


class Training:
    """A model and an optimizer, with a step that depends on nothing else."""

    def __init__(self, name: str, settings: dict[str, Any]) -> None:
        torch.manual_seed(3)
        kind = getattr(torch.optim, name)
        self.is_sparse = name == "SparseAdam"
        self.model = torch.nn.Sequential(
            torch.nn.Embedding(20, 6, sparse=self.is_sparse), torch.nn.Linear(6, 5, bias=name != "Muon")
        )
        trained = self.model[:1] if self.is_sparse else self.model
        self.optimizer = kind(trained.parameters(), **settings)

    def step(self, number: int) -> None:
        batch = torch.arange(number, number + 8) % 20

        def closure() -> torch.Tensor:
            self.optimizer.zero_grad()
            loss = (self.model(batch) - 1).square().mean()
            loss.backward()
            return loss.detach()

        self.optimizer.step(closure)

    def parameters(self) -> list[torch.Tensor]:
        return [parameter.detach().clone() for parameter in self.model.parameters()]


@pytest.mark.parametrize("has_stepped", [False, True], ids=["fresh", "stepped"])
@pytest.mark.parametrize(("name", "settings"), [(n, s) for n in OPTIMIZERS for s in SETTINGS.get(n, [{}])])
def test_g8_one_more_step_is_bit_equal(
    mgr: CheckpointManager, name: str, settings: dict[str, Any], has_stepped: bool
) -> None:
    run = Training(name, settings)
    for number in range(3):
        run.step(number)
    mgr.save(step=2, model=run.model, optimizer=run.optimizer)
    run.step(3)

    again = Training(name, settings)
    if has_stepped:
        again.step(11)
        again.step(12)
    assert mgr.resume(model=again.model, optimizer=again.optimizer) == 3
    again.step(3)
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), run.parameters(), strict=True))


def one_cycle(optimizer: torch.optim.Optimizer) -> torch.optim.lr_scheduler.LRScheduler:
    return torch.optim.lr_scheduler.OneCycleLR(optimizer, max_lr=0.5, total_steps=20)


SCHEDULERS: dict[str, Callable[[torch.optim.Optimizer], Any]] = {
    "LambdaLR": lambda o: torch.optim.lr_scheduler.LambdaLR(o, lambda epoch: 0.9**epoch),
    "MultiplicativeLR": lambda o: torch.optim.lr_scheduler.MultiplicativeLR(o, lambda epoch: 0.9),
    "StepLR": lambda o: torch.optim.lr_scheduler.StepLR(o, 2),
    "MultiStepLR": lambda o: torch.optim.lr_scheduler.MultiStepLR(o, [2, 8]),
    "ConstantLR": lambda o: torch.optim.lr_scheduler.ConstantLR(o, total_iters=4),
    "LinearLR": lambda o: torch.optim.lr_scheduler.LinearLR(o, total_iters=9),
    "ExponentialLR": lambda o: torch.optim.lr_scheduler.ExponentialLR(o, 0.9),
    "PolynomialLR": lambda o: torch.optim.lr_scheduler.PolynomialLR(o, 9),
    "CosineAnnealingLR": lambda o: torch.optim.lr_scheduler.CosineAnnealingLR(o, 9),
    "CosineAnnealingWarmRestarts": lambda o: torch.optim.lr_scheduler.CosineAnnealingWarmRestarts(o, 4),
    "CyclicLR": lambda o: torch.optim.lr_scheduler.CyclicLR(o, 0.01, 0.5, step_size_up=3),
    "OneCycleLR": one_cycle,
    "ReduceLROnPlateau": lambda o: torch.optim.lr_scheduler.ReduceLROnPlateau(o, patience=1),
    "SequentialLR": lambda o: torch.optim.lr_scheduler.SequentialLR(
        o, [torch.optim.lr_scheduler.ConstantLR(o, 0.5, 3), torch.optim.lr_scheduler.ExponentialLR(o, 0.8)], [3]
    ),
    "ChainedScheduler": lambda o: torch.optim.lr_scheduler.ChainedScheduler(
        [torch.optim.lr_scheduler.LinearLR(o, 0.5), torch.optim.lr_scheduler.ExponentialLR(o, 0.8)]
    ),
}


def test_every_scheduler_of_this_torch_is_tried() -> None:
    kinds = vars(torch.optim.lr_scheduler)
    known = {
        name
        for name, found in kinds.items()
        if inspect.isclass(found) and issubclass(found, kinds["LRScheduler"]) and not name.startswith("_")
    }
    assert known - {"LRScheduler"} == SCHEDULERS.keys()


@pytest.mark.parametrize("name", SCHEDULERS)
def test_every_scheduler_goes_on_where_it_was(mgr: CheckpointManager, name: str) -> None:
    def make() -> tuple[torch.optim.Optimizer, Any]:
        optimizer = torch.optim.SGD([torch.nn.Parameter(torch.ones(2))], lr=0.1, momentum=0.9)
        return optimizer, SCHEDULERS[name](optimizer)

    def rates(optimizer: torch.optim.Optimizer, scheduler: Any, count: int) -> list[float]:
        found = []
        for _ in range(count):
            optimizer.step()
            with warnings.catch_warnings():  # SequentialLR's own use of a deprecated argument
                warnings.simplefilter("ignore")
                scheduler.step(*([1.0] if name == "ReduceLROnPlateau" else []))
            found.append(optimizer.param_groups[0]["lr"])
        return found

    optimizer, scheduler = make()
    rates(optimizer, scheduler, 5)
    mgr.save(step=5, optimizer=optimizer, scheduler=scheduler)
    expected = rates(optimizer, scheduler, 6)

    optimizer, scheduler = make()
    mgr.resume(optimizer=optimizer, scheduler=scheduler)
    assert rates(optimizer, scheduler, 6) == expected
    assert len(set(expected)) > 1 or name == "ConstantLR"


def bf16_training() -> tuple[torch.nn.Parameter, torch.optim.Optimizer]:
    parameter = torch.nn.Parameter(torch.ones(300, dtype=torch.bfloat16))
    return parameter, torch.optim.AdamW([parameter])


@pytest.mark.parametrize("has_stepped", [False, True], ids=["fresh", "stepped"])
def test_state_keeps_its_stored_dtype_whatever_its_parameter_is(mgr: CheckpointManager, has_stepped: bool) -> None:
    """``load_state_dict`` would make bf16 of the moments, and 70144 of the counter."""
    parameter, optimizer = bf16_training()
    moments = torch.randn(300, generator=torch.Generator().manual_seed(1))
    optimizer.state[parameter] = {
        "step": torch.tensor(70001.0),
        "exp_avg": moments,
        "exp_avg_sq": moments.double().square(),
        "seen": torch.tensor(70001.0),
        "history": [moments[:2].clone(), (moments[2:4].clone(), "text")],
    }
    mgr.save(step=0, optimizer=optimizer)

    parameter, optimizer = bf16_training()
    live = {"exp_avg": torch.zeros(300), "exp_avg_sq": torch.zeros(300, dtype=torch.bfloat16)}
    if has_stepped:
        optimizer.state[parameter] = dict(live)
    mgr.resume(optimizer=optimizer)
    state = optimizer.state[parameter]
    assert {name: state[name].dtype for name in ("step", "exp_avg", "exp_avg_sq", "seen")} == {
        "step": torch.float32,
        "exp_avg": torch.float32,
        "exp_avg_sq": torch.float64,
        "seen": torch.float32,
    }
    assert torch.equal(state["exp_avg"], moments)
    assert torch.equal(state["exp_avg_sq"], moments.double().square())
    assert (state["step"].item(), state["seen"].item()) == (70001, 70001)
    assert torch.equal(state["history"][0], moments[:2])
    assert torch.equal(state["history"][1][0], moments[2:4])
    if has_stepped:
        assert state["exp_avg"] is live["exp_avg"]  # same shape, same dtype: same tensor


def test_a_stepped_optimizer_keeps_its_tensors(mgr: CheckpointManager) -> None:
    run = Training("Adam", {"lr": torch.tensor(0.01), "foreach": False})
    run.step(0)
    mgr.save(step=0, optimizer=run.optimizer)
    state = [tensor for of in run.optimizer.state.values() for tensor in of.values()]
    rate = run.optimizer.param_groups[0]["lr"]
    run.step(1)
    rate.fill_(5.0)
    mgr.resume(optimizer=run.optimizer)
    after = [tensor for of in run.optimizer.state.values() for tensor in of.values()]
    assert all(new is old for new, old in zip(after, state, strict=True))
    assert run.optimizer.param_groups[0]["lr"] is rate
    assert rate.item() == pytest.approx(0.01)
    assert state[0].item() == 1


def test_the_order_of_state_stays(mgr: CheckpointManager) -> None:
    """It is the order in which parameters first had a gradient; in another, the next save would write new trees."""

    def stepped(*order: int) -> torch.optim.Optimizer:
        parameters = [torch.nn.Parameter(torch.ones(3)) for _ in range(3)]
        optimizer = torch.optim.AdamW(parameters)
        for number in order:
            optimizer.zero_grad()
            parameters[number].grad = torch.ones(3)
            optimizer.step()
        return optimizer

    mgr.save(step=0, optimizer=stepped(2, 0, 1))
    for again in (stepped(), stepped(0), stepped(0, 1, 2)):
        mgr.resume(optimizer=again)
        assert list(again.state_dict()["state"]) == [2, 0, 1]


def test_a_counter_of_a_fused_optimizer_is_what_torch_takes(mgr: CheckpointManager) -> None:
    run = Training("AdamW", {"fused": True})
    run.step(0)
    for state in run.optimizer.state.values():
        state["step"] = state["step"].double()
    mgr.save(step=0, optimizer=run.optimizer)
    mgr.resume(optimizer=run.optimizer)
    assert {state["step"].dtype for state in run.optimizer.state.values()} == {torch.float32}


def test_groups_that_differ_are_refused_before_anything_is_written(mgr: CheckpointManager) -> None:
    run = Training("Adam", {})
    run.step(0)
    mgr.save(step=0, model=run.model, optimizer=run.optimizer)
    other = Training("Adam", {})
    before = other.parameters()
    two_groups = torch.optim.Adam([{"params": [p]} for p in other.model.parameters()])
    with pytest.raises(Incompatible, match=r"param_groups: groups of \[3\] parameters in the commit, \[1, 1, 1\]"):
        mgr.resume(model=other.model, optimizer=two_groups)
    assert all(torch.equal(*pair) for pair in zip(other.parameters(), before, strict=True))
    with pytest.raises(Incompatible, match="not the state of an optimizer"):
        mgr.load(into={"model": other.optimizer})


KINDS_ALONE = {"SGD", "Adam", "AdamW", "Adagrad", "Adafactor", "RMSprop", "Rprop", "ASGD", "NAdam", "LBFGS"}
"""Optimizers of which each has settings that none of the others has, or differs in one."""


@pytest.mark.parametrize("there", sorted(KINDS_ALONE))
def test_the_state_of_another_kind_of_optimizer_is_refused(mgr: CheckpointManager, there: str) -> None:
    """torch takes it: lr and betas of the other, and a KeyError in the next step."""
    saved = Training(there, {"lr": 0.01})
    mgr.save(step=0, optimizer=saved.optimizer).result()
    for here in sorted(KINDS_ALONE):
        fresh = Training(here, {"lr": 0.5})
        if here == there:
            mgr.resume(optimizer=fresh.optimizer)
        else:
            with pytest.raises(Incompatible, match=r"param_groups/0: (of another optimizer|decoupled_weight_decay is)"):
                mgr.resume(optimizer=fresh.optimizer)
            assert fresh.optimizer.param_groups[0]["lr"] == 0.5


@pytest.mark.parametrize("is_plain", [True, False])
def test_settings_that_versions_and_people_add_are_no_other_kind(mgr: CheckpointManager, is_plain: bool) -> None:
    saved = Training("AdamW", {"lr": 0.01} if is_plain else {"lr": torch.tensor(0.01)})
    saved.step(0)
    (group,) = saved.optimizer.param_groups
    del group["decoupled_weight_decay"], group["fused"]  # as versions of torch that knew none
    group |= {"initial_lr": 0.01, "scale": 2.0}
    mgr.save(step=0, optimizer=saved.optimizer).result()
    fresh = Training("AdamW", {})
    mgr.resume(optimizer=fresh.optimizer)
    assert fresh.optimizer.param_groups[0]["scale"] == 2.0 and fresh.optimizer.param_groups[0]["lr"] == 0.01
    fresh.step(1)


@pytest.mark.parametrize("groups", [{"lr": torch.ones(3)}, [torch.ones(3)], 5, {"lr": 1}])
def test_what_is_no_optimizers_state_is_refused(mgr: CheckpointManager, groups: Any) -> None:
    mgr.save(step=0, optimizer={"param_groups": groups, "state": {"x": torch.ones(2)}})
    with pytest.raises(Incompatible, match="not the state of an optimizer"):
        mgr.resume(optimizer=Training("SGD", {"lr": 0.1}).optimizer)


def draws() -> list[Any]:
    return [torch.rand(3).tolist(), np.random.rand(3).tolist(), random.random()]


def test_g7_state_under_numbers_in_words_is_refused(mgr: CheckpointManager) -> None:
    """As whoever went by way of JSON has it: nothing of it would be loaded."""
    model = torch.nn.Linear(2, 2)
    optimizer = torch.optim.AdamW(model.parameters())
    model(torch.ones(2)).sum().backward()
    optimizer.step()
    state = optimizer.state_dict()
    mgr.save(optimizer={**state, "state": {str(key): value for key, value in state["state"].items()}})
    fresh = torch.optim.AdamW(model.parameters())
    with pytest.raises(Incompatible, match="its key is the text '0', and no parameter's"):
        mgr.load(into={"optimizer": fresh})
    assert not fresh.state


def test_a16_streams_of_random_numbers_go_on_exactly(mgr: CheckpointManager) -> None:
    draws()
    mgr.save(step=0, rng=True, x=1)
    expected = draws()
    draws()
    mgr.resume(rng=True, x=None)
    assert draws() == expected


def test_an_exact_resume_is_bit_equal_with_dropout_and_shuffling(mgr: CheckpointManager) -> None:
    def make() -> tuple[torch.nn.Module, torch.optim.Optimizer]:
        model = torch.nn.Sequential(torch.nn.Linear(8, 32), torch.nn.Dropout(0.5), torch.nn.Linear(32, 1))
        return model, torch.optim.AdamW(model.parameters(), lr=0.01)

    def train(model: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
        batch = torch.randn(16, 8)[torch.randperm(16)] * random.random() + np.random.rand()
        optimizer.zero_grad()
        model(batch.float()).square().mean().backward()
        optimizer.step()

    torch.manual_seed(11)
    model, optimizer = make()
    for step in range(4):
        train(model, optimizer)
        mgr.save(step=step, model=model, optimizer=optimizer, rng=True)
    for _ in range(3):
        train(model, optimizer)
    again, its_optimizer = make()
    torch.manual_seed(99)
    assert mgr.resume(model=again, optimizer=its_optimizer, rng=True) == 4
    for _ in range(3):
        train(again, its_optimizer)
    assert all(torch.equal(*pair) for pair in zip(again.parameters(), model.parameters(), strict=True))


def test_asking_for_generators_that_were_not_saved_is_refused(mgr: CheckpointManager) -> None:
    mgr.save(step=0, x=1)
    with pytest.raises(Incompatible, match="rng: no such item"):
        mgr.resume(rng=True, x=None)


def test_a_grad_scaler_is_an_item(mgr: CheckpointManager) -> None:
    scaler = torch.amp.GradScaler("cpu", init_scale=512.0)
    mgr.save(step=0, scaler=scaler)
    again = torch.amp.GradScaler("cpu")
    mgr.resume(scaler=again)
    assert again.state_dict() == scaler.state_dict()


class _Asking(torch.optim.AdamW):
    """Remembers for how many parameters it was given state."""

    given_count = -1

    def load_state_dict(self, state_dict: Any) -> None:
        self.given_count = len(state_dict["state"])
        super().load_state_dict(state_dict)


class _Unpacking(torch.optim.AdamW):
    """The same, one layer further down."""

    given_count = -1

    def __setstate__(self, state: Any) -> None:
        self.given_count = len(state["state"])
        super().__setstate__(state)  # type: ignore[no-untyped-call]


def _stepped(kind: Any) -> tuple[torch.nn.Linear, Any]:
    model = torch.nn.Linear(3, 2)
    optimizer = kind(model.parameters())
    model(torch.ones(3)).sum().backward()
    optimizer.step()
    return model, optimizer


def test_state_that_was_written_in_place_is_not_looked_at_again(
    mgr: CheckpointManager, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Torch looks for each tensor's group in a list of all parameters: seconds, for many."""
    _, optimizer = _stepped(torch.optim.AdamW)
    mgr.save(optimizer=optimizer)
    model, again = _stepped(torch.optim.AdamW)
    before = {key: dict(state) for key, state in again.state.items()}

    def refuse(*_: object, **__: object) -> None:
        raise AssertionError("a tensor was looked at")

    monkeypatch.setattr(torch.optim.Optimizer, "_process_value_according_to_param_policy", staticmethod(refuse))
    mgr.load(into={"optimizer": again})
    assert all(again.state[parameter].keys() == before[parameter].keys() for parameter in model.parameters())
    assert all(again.state[p][key] is tensor for p, state in before.items() for key, tensor in state.items())
    saved = [state["exp_avg"] for state in optimizer.state.values()]
    assert all(torch.equal(*pair) for pair in zip(saved, (s["exp_avg"] for s in again.state.values()), strict=True))


@pytest.mark.parametrize("kind", [_Asking, _Unpacking])
def test_who_looks_at_the_state_is_given_all_of_it(mgr: CheckpointManager, kind: type[_Asking | _Unpacking]) -> None:
    _, optimizer = _stepped(kind)
    mgr.save(optimizer=optimizer)
    _, again = _stepped(kind)
    mgr.load(into={"optimizer": again})
    assert again.given_count == 2


def test_hooks_are_given_the_whole_state(mgr: CheckpointManager) -> None:
    _, optimizer = _stepped(torch.optim.AdamW)
    mgr.save(optimizer=optimizer)
    _, again = _stepped(torch.optim.AdamW)
    given: list[int] = []
    again.register_load_state_dict_pre_hook(lambda _, state: given.append(len(state["state"])))
    mgr.load(into={"optimizer": again})
    assert given == [2]


def test_state_of_some_parameters_only(mgr: CheckpointManager) -> None:
    """Those that the target has are written in place, the others come anew."""
    model, optimizer = _stepped(torch.optim.AdamW)
    mgr.save(optimizer=optimizer)
    _, again = _stepped(torch.optim.AdamW)
    bias = again.param_groups[0]["params"][1]
    del again.state[bias]
    mgr.load(into={"optimizer": again})
    for old, new in zip(model.parameters(), again.param_groups[0]["params"], strict=True):
        assert torch.equal(optimizer.state[old]["exp_avg_sq"], again.state[new]["exp_avg_sq"])
