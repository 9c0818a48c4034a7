"""One rank of a real group that loads what others saved, in every layout there is.

Run by ``test_load_gloo.py``: ``load_rank.py DIRECTORY RANK WORLD_SIZE``. The stored states are made there, too, by
``states`` and ``trained``, so that every process knows what they hold.
"""

import os
import sys
from collections.abc import Iterator
from copy import deepcopy
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard
from torch.distributed.tensor.debug import CommDebugMode
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.nn.parallel import DistributedDataParallel

from moonclip import CheckpointManager
from tests.ranks import spread

ROWS = (1, 5, 6, 7, 10)
COLUMNS = 29


def states() -> dict[str, torch.Tensor]:
    """Small and odd sizes, of which four ranks get uneven shards and empty ones."""
    torch.manual_seed(5)
    return {f"{rows}": torch.randn(rows, COLUMNS) for rows in ROWS} | {"tall": torch.randn(1500, 70)}


def network() -> Any:
    torch.manual_seed(6)
    return nn.Sequential(nn.Linear(30, 23), nn.Linear(23, 14), nn.Linear(14, 3))


def loss_of(model: nn.Module, number: int) -> torch.Tensor:
    """The same on every rank, so that a mean over ranks is what one alone computes."""
    torch.manual_seed(number)
    loss: torch.Tensor = (model(torch.randn(8, 30)) - 1).square().mean()
    return loss


def train(model: nn.Module, optimizer: torch.optim.Optimizer, start: int, stop: int) -> list[float]:
    losses = []
    for number in range(start, stop):
        loss: Any = loss_of(model, number)
        loss.backward()
        optimizer.step()
        optimizer.zero_grad()
        losses.append(loss.item())
    return losses


def optimizer_of(model: nn.Module) -> torch.optim.Optimizer:
    return torch.optim.AdamW(model.parameters(), lr=0.02)


def layouts(world_size: int) -> Iterator[tuple[tuple[int, ...], tuple[Placement, ...]]]:
    """Meshes and placements of so many ranks."""
    for placement in (
        Shard(0),
        Shard(1),
        Replicate(),
        _StridedShard(0, split_factor=2),
        _StridedShard(1, split_factor=3),
    ):
        yield (world_size,), (placement,)
    if world_size == 4:
        yield (2, 2), (Shard(0), Shard(1))
        yield (2, 2), (Replicate(), Shard(0))
        yield (2, 2), (Shard(0), Shard(0))
        yield (2, 2), (_StridedShard(0, split_factor=2), Shard(0))


def counting() -> Any:
    """Counts what is communicated inside of it."""
    make: Any = CommDebugMode
    return make()


def load_states(mgr: CheckpointManager, world_size: int) -> int:
    """Every stored layout into every layout of this group; returns how many cells that were."""
    cells = 0
    expected = states()
    for shape, placements in layouts(world_size):
        mesh = init_device_mesh("cpu", shape)
        wanted = {name: spread(full, mesh, placements).to_local() for name, full in expected.items()}
        for branch in sorted(mgr.branches()):
            if not branch.startswith("states/"):
                continue
            target = {name: spread(torch.zeros_like(full), mesh, placements) for name, full in expected.items()}
            with counting() as communication:
                mgr.load(branch, into={"model": target})
            assert communication.get_total_counts() == 0
            assert all(torch.equal(target[name].to_local(), wanted[name]) for name in expected), (branch, placements)
            cells += 1
    return cells


def models(world_size: int) -> dict[str, Any]:
    """The network, laid out in all the ways there are; some without memory yet."""
    found: dict[str, Any] = {"plain": network(), "fsdp": fully_shard(network())}
    if world_size > 1:
        found["ddp"] = DistributedDataParallel(network())
    with torch.device("meta"):
        found["fsdp on meta"] = fully_shard(network())
    plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
    if world_size == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        found["hsdp"] = fully_shard(network(), mesh=mesh)
        found["tp"] = parallelize_module(network(), mesh["inner"], plan)
        found["fsdp over tp"] = fully_shard(parallelize_module(network(), mesh["inner"], plan), mesh=mesh["outer"])
    return found


def load_models(mgr: CheckpointManager, world_size: int) -> None:
    """Into models of all kinds, with fresh optimizers, and on from there: losses as if nothing had happened."""
    full = network()
    alone = optimizer_of(full)
    train(full, alone, 0, 3)
    expected = {
        name: {"": parameter.detach().clone(), **deepcopy(alone.state[parameter])}
        for name, parameter in full.named_parameters()
    }
    losses = train(full, alone, 3, 6)
    for name, model in models(world_size).items():
        for parameter in model.parameters():
            if not parameter.is_meta:
                nn.init.zeros_(parameter)
        with counting() as communication:
            mgr.load("trained", into={"model": model})
            optimizer = optimizer_of(model)
            mgr.load("trained", into={"optimizer": optimizer})
        assert communication.get_total_counts() == 0
        for path, parameter in model.named_parameters():
            found = {"": parameter.detach(), **optimizer.state[parameter]}
            for key, wanted in expected[path.removeprefix("module.")].items():
                whole = found[key].full_tensor() if isinstance(found[key], DTensor) else found[key]
                assert torch.equal(whole, wanted), (name, path, key)
        if not name.endswith("tp"):  # torch itself cannot multiply such uneven shards
            again = train(model, optimizer, 3, 6)
            torch.testing.assert_close(again, losses, rtol=1e-5, atol=0, msg=f"{name}: {again}, not {losses}")


def main(directory: Path, rank: int, world_size: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/group{world_size}", rank=rank, world_size=world_size
    )
    with CheckpointManager(directory / "store", world_size=1) as mgr:
        cells = load_states(mgr, world_size)
        load_models(mgr, world_size)
    print(f"{cells} cells", flush=True)
    dist.destroy_process_group()


def trained(mgr: CheckpointManager) -> None:
    """Commit a network and its optimizer after three steps."""
    model: Any = network()
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 3)
    mgr.save(step=2, model=model, optimizer=optimizer)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
