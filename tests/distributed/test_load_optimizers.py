"""Optimizers of sharded models: state goes to the parameter of its name, laid out as that is, fresh or not."""

from itertools import product
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard

from moonclip import CheckpointManager, Incompatible
from moonclip.sharding.layouts import Layout, Split
from tests.ranks import rank_of, spread
from tests.resharding import reshard

RANKS = 4


def network() -> Any:
    torch.manual_seed(2)
    return torch.nn.Sequential(torch.nn.Linear(30, 23), torch.nn.Linear(23, 5))


def optimizer_of(module: torch.nn.Module, **settings: Any) -> torch.optim.Optimizer:
    return torch.optim.AdamW(module.parameters(), **settings)


def step(module: torch.nn.Module, optimizer: torch.optim.Optimizer) -> None:
    for number, parameter in enumerate(module.parameters()):
        parameter.grad = torch.full_like(parameter, 0.1 * (number + 1))
    optimizer.step()
    optimizer.zero_grad()


def trained(root: Path, **settings: Any) -> tuple[torch.nn.Module, torch.optim.Optimizer]:
    """A run of three ranks' making: three steps, then a learning rate that no constructor gave."""
    model = network()
    optimizer = optimizer_of(model, lr=0.1, **settings)
    for _ in range(3):
        step(model, optimizer)
    optimizer.param_groups[0]["lr"] = 0.0125
    with CheckpointManager(root, async_save=False, world_size=1) as mgr:
        mgr.save(step=3, model=model, optimizer=optimizer)
    reshard(root, lambda _, entry: Layout(entry.shape, (3,), (Split(0),)) if entry.shape else None)
    return model, optimizer


def shard_of(full: torch.Tensor, like: DTensor) -> torch.Tensor:
    return spread(full, like.device_mesh, tuple(like.placements)).to_local()


def require_same(
    model: torch.nn.Module, optimizer: torch.optim.Optimizer, full: torch.nn.Module, whole: torch.optim.Optimizer
) -> None:
    for parameter, reference in zip(model.parameters(), full.parameters(), strict=True):
        assert isinstance(parameter, DTensor)
        assert torch.equal(parameter.to_local(), shard_of(reference.detach(), parameter))
        live, wanted = optimizer.state[parameter], whole.state[reference]
        assert live.keys() == wanted.keys()
        for key, tensor in live.items():
            if isinstance(tensor, DTensor):
                assert tensor.placements == parameter.placements
                assert torch.equal(tensor.to_local(), shard_of(wanted[key], tensor))
            else:
                assert key == "step"
                assert torch.equal(tensor, wanted[key])


@pytest.mark.parametrize(
    ("settings", "has_stepped"), [*product([{}, {"amsgrad": True}], [False, True]), ({"foreach": False}, False)]
)
def test_b23_moments_of_a_sharded_model(tmp_path: Path, settings: dict[str, Any], has_stepped: bool) -> None:
    full, whole = trained(tmp_path / "store", **settings)
    for rank in range(RANKS):
        with rank_of(rank, RANKS) as mesh, CheckpointManager(tmp_path / "store", world_size=1) as mgr:
            model: Any = fully_shard(network(), mesh=mesh)
            optimizer = optimizer_of(model, lr=9.0, **settings)
            if has_stepped:
                step(model, optimizer)
            assert mgr.resume(model=model, optimizer=optimizer) == 4
            assert optimizer.param_groups[0]["lr"] == 0.0125
            assert float(optimizer.state[next(iter(model.parameters()))]["step"]) == 3
            require_same(model, optimizer, full, whole)
            if rank == RANKS - 1:
                step(model, optimizer)
                step(full, whole)
                require_same(model, optimizer, full, whole)


def test_b23_only_the_shards_of_moments_are_made(tmp_path: Path) -> None:
    trained(tmp_path / "store")
    with rank_of(1, 2, 2) as mesh, CheckpointManager(tmp_path / "store", world_size=1) as mgr:
        model: Any = fully_shard(network(), mesh=mesh)
        optimizer = optimizer_of(model)
        mgr.load(into={"optimizer": optimizer})
        for parameter in model.parameters():
            for key in ("exp_avg", "exp_avg_sq"):
                moment = optimizer.state[parameter][key]
                assert moment.placements == parameter.placements == (Replicate(), Shard(0))
                assert moment.to_local().untyped_storage().nbytes() == moment.to_local().nbytes


def test_b26_moments_of_another_shape_are_refused_also_by_a_fresh_optimizer(tmp_path: Path) -> None:
    trained(tmp_path / "store")
    with rank_of(0, 2) as mesh, CheckpointManager(tmp_path / "store", world_size=1) as mgr:
        model: Any = torch.nn.Sequential(torch.nn.Linear(30, 24), torch.nn.Linear(24, 5))
        fully_shard(model, mesh=mesh)
        optimizer = optimizer_of(model)
        with pytest.raises(Incompatible) as refused:
            mgr.load(into={"optimizer": optimizer})
        told = refused.value.details["problems"]
        assert len(told) == 6
        assert (
            "optimizer::state/0/exp_avg: shape [23, 30] in the commit, and its parameter [24, 30] in the target" in told
        )
        assert not optimizer.state


def test_an_optimizer_of_parameters_without_memory_is_refused(tmp_path: Path) -> None:
    trained(tmp_path / "store")
    with CheckpointManager(tmp_path / "store", world_size=1) as mgr:
        with torch.device("meta"):
            model = network()
        with pytest.raises(Incompatible, match="load the model first, then make the optimizer"):
            mgr.resume(model=model, optimizer=optimizer_of(model))
        assert all(parameter.is_meta for parameter in model.parameters())


@pytest.mark.parametrize("has_stepped", [False, True])
@pytest.mark.parametrize("are_named", [True, False])
def test_g6_state_goes_by_name_where_parameters_come_in_another_order(
    tmp_path: Path, has_stepped: bool, are_named: bool
) -> None:
    """Names that the optimizer was given, or else what the module beside it calls its parameters."""
    full = network()
    whole = torch.optim.AdamW(full.named_parameters(), lr=0.1)
    whole.param_groups[0]["note"] = "mine"
    step(full, whole)
    with CheckpointManager(tmp_path / "store", async_save=False, world_size=1) as mgr:
        mgr.save(step=1, model=full, optimizer=whole)
    for rank in range(2):
        with rank_of(rank, 2) as mesh, CheckpointManager(tmp_path / "store", world_size=1) as mgr:
            model: Any = fully_shard(network(), mesh=mesh)
            backwards = list(model.named_parameters())[::-1]
            optimizer = torch.optim.AdamW(backwards if are_named else [each for _, each in backwards])
            if has_stepped:
                step(model, optimizer)
            mgr.resume(model=model, optimizer=optimizer)
            require_same(model, optimizer, full, whole)
            group = optimizer.param_groups[0]
            assert (group["note"], group["lr"]) == ("mine", 0.1)
            assert group["param_names"] == [name for name, _ in backwards]


def test_g7_a_parameter_without_state_is_named(tmp_path: Path) -> None:
    full = network()
    whole = torch.optim.AdamW(full.named_parameters())
    step(full, whole)
    with CheckpointManager(tmp_path / "store", async_save=False, world_size=1) as mgr:
        mgr.save(step=1, optimizer=whole)
        other = torch.nn.Sequential(*full, torch.nn.Linear(5, 2, bias=False))
        optimizer = torch.optim.AdamW(other.named_parameters())
        with pytest.raises(Incompatible, match=r"no parameter '2\.weight' in the commit, but in the target"):
            mgr.resume(optimizer=optimizer)
        fewer = torch.optim.AdamW(list(full.named_parameters())[:3])
        with pytest.raises(Incompatible, match=r"parameter '1\.bias' in the commit, but not in the target"):
            mgr.resume(optimizer=fewer)


def test_state_that_is_keyed_by_name(tmp_path: Path) -> None:
    """As torch's ``get_optimizer_state_dict`` gives it."""
    full = network()
    whole = optimizer_of(full, lr=0.1)
    step(full, whole)
    names = [name for name, _ in full.named_parameters()]
    state = whole.state_dict()
    keyed = {
        "state": {names[number]: value for number, value in state["state"].items()},
        "param_groups": [{**group, "params": names} for group in state["param_groups"]],
    }
    with CheckpointManager(tmp_path / "store", async_save=False, world_size=1) as mgr:
        mgr.save(step=1, model=full, optimizer=keyed)
        with rank_of(1, 2) as mesh:
            model: Any = fully_shard(network(), mesh=mesh)
            optimizer = torch.optim.AdamW(list(model.parameters())[::-1])
            mgr.resume(model=model, optimizer=optimizer)
            require_same(model, optimizer, full, whole)
