"""One rank of a real group that exchanges files with torch.distributed.checkpoint and with model hubs.

Run by ``test_exchange_gloo.py``: ``exchange_rank.py DIRECTORY RANK WORLD_SIZE``.
"""

import os
import sys
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch import nn
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from moonclip import CheckpointManager, load_files
from tests.distributed.load_rank import network, optimizer_of, train


def sharded(model: nn.Module, world_size: int) -> nn.Module:
    mesh = init_device_mesh("cpu", (world_size,))
    for layer in model:  # type: ignore[attr-defined]
        fully_shard(layer, mesh=mesh)
    fully_shard(model, mesh=mesh)
    return model


def full(tensor: torch.Tensor) -> torch.Tensor:
    return tensor.full_tensor() if isinstance(tensor, DTensor) else tensor


def same(model: nn.Module, state: Any) -> None:
    for name, tensor in model.state_dict().items():
        assert torch.equal(full(tensor), state[name]), name


def torch_loads_what_we_wrote(directory: Path, world_size: int) -> None:
    """A run of one process goes on with FSDP, by torch's own loading, and its losses are as if nothing had happened."""
    model = sharded(network(), world_size)
    optimizer = optimizer_of(model)
    names = {"model": {}, "optimizer": {}}
    names["model"], names["optimizer"] = get_state_dict(model, optimizer)
    dcp.load(names, checkpoint_id=directory / "ours")
    set_state_dict(model, optimizer, model_state_dict=names["model"], optim_state_dict=names["optimizer"])
    same(model, torch.load(directory / "expected.pt", weights_only=True))
    losses = train(model, optimizer, 3, 6)
    expected = torch.load(directory / "losses.pt", weights_only=True)
    assert torch.allclose(torch.tensor(losses), torch.tensor(expected), rtol=1e-5), (losses, expected)


def hub_into_shards(directory: Path, world_size: int) -> None:
    with torch.device("meta"):
        model = network()
    sharded(model, world_size)
    load_files(directory / "hub", into=model)
    same(model, torch.load(directory / "expected.pt", weights_only=True))


def torch_writes(directory: Path, world_size: int) -> None:
    """What two ranks wrote is imported by the test, afterwards."""
    model = sharded(network(), world_size)
    optimizer = optimizer_of(model)
    train(model, optimizer, 0, 3)
    states = get_state_dict(model, optimizer)
    dcp.save({"model": states[0], "optimizer": states[1], "step": 3}, checkpoint_id=directory / "theirs")


def ranks_export(directory: Path, rank: int, world_size: int) -> None:
    """A commit that ranks made, exported by one of them."""
    with CheckpointManager(directory / "ranks", world_size="auto", rank="auto") as mgr:
        mgr.save(step=1, model=sharded(network(), world_size)).result()
        if rank == 0:
            mgr.export("main", directory / "from_ranks", format="hf")


def main(directory: Path, rank: int, world_size: int) -> None:
    dist.init_process_group(
        "gloo", init_method=f"file://{directory}/group{world_size}", rank=rank, world_size=world_size
    )
    torch_loads_what_we_wrote(directory, world_size)
    hub_into_shards(directory, world_size)
    torch_writes(directory, world_size)
    ranks_export(directory, rank, world_size)
    dist.barrier()
    dist.destroy_process_group()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
