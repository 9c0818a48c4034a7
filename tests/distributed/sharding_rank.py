"""One rank of a real group: writes its shares of a model's tensors into a store, and reads them in other layouts.

Run by ``test_boxes_gloo.py``: ``sharding_rank.py DIRECTORY RANK WORLD_SIZE``.
"""

import os
import sys
from itertools import accumulate
from pathlib import Path
from typing import Any

import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Replicate, Shard, distribute_tensor
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module

from moonclip.sharding.dtensors import Shards, shards_of
from moonclip.sharding.layouts import place_of
from moonclip.sharding.writers import Holding, Name, share_out
from moonclip.state.tensors import writable_bytes
from store.boxes import Box
from store.format.entries import Piece, TensorEntry
from store.ids import chunk_id
from store.reading.boxes import contiguous, inner, plan_box
from store.reading.retrieve import execute, gather
from store.repository import Repository
from store.saving.pieces import BoxBytes, box_cuts, entry_of_bytes, entry_of_pieces, is_inline
from tests import packing
from tests.sharding import within


def models(world_size: int) -> dict[str, nn.Module]:
    """The same weights on every rank, in sizes that no mesh divides, laid out in all the ways there are."""

    def model() -> nn.Module:
        torch.manual_seed(0)
        return nn.Sequential(nn.Linear(30, 23), nn.Linear(23, 14), nn.Linear(14, 3))

    found: dict[str, nn.Module] = {"ddp": model(), "fsdp": fully_shard(model())}
    if world_size == 4:
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        found["hsdp"] = fully_shard(model(), mesh=mesh)
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        found["tp"] = parallelize_module(model(), mesh["inner"], plan)
        found["fsdp over tp"] = fully_shard(parallelize_module(model(), mesh["inner"], plan), mesh=mesh["outer"])
    return found


def gathered(mine: Any) -> list[Any]:
    """What every rank has, by rank."""
    found: list[Any] = [None] * dist.get_world_size()
    dist.all_gather_object(found, mine)
    return found


def main(directory: Path, rank: int, world_size: int) -> None:
    """Save, then load into every layout and compare."""
    dist.init_process_group("gloo", init_method=f"file://{directory}/group", rank=rank, world_size=world_size)
    tensors = {
        Name(item, name): parameter.detach()
        for item, model in models(world_size).items()
        for name, parameter in model.named_parameters()
    }
    entries = save(directory, rank, {name: shards_of(tensor) for name, tensor in tensors.items()})
    with Repository.open(directory / "store", read_only=True) as repo:
        for name, tensor in tensors.items():
            full = tensor.full_tensor() if isinstance(tensor, DTensor) else tensor
            load(repo, entries[name], full)
    dist.destroy_process_group()


def save(directory: Path, rank: int, held: dict[Name, Shards]) -> dict[Name, TensorEntry]:
    """Write what falls to this rank; returns the entries of all tensors."""
    holdings = {
        name: Holding("float32", each.shape, tuple(part.box for part in each.parts)) for name, each in held.items()
    }
    mine = share_out(gathered(holdings))[rank]
    chunks: dict[bytes, bytes] = {}
    wrote: dict[Name, list[Piece | BoxBytes]] = {}
    for name, boxes in mine.items():
        for box in boxes:
            data = _bytes_of(held[name], box)
            if is_inline("float32", held[name].shape):
                wrote.setdefault(name, []).append(BoxBytes(box, data))
                continue
            cuts = box_cuts(held[name].shape, box, 4)
            parts = [data[stop - cut : stop] for cut, stop in zip(cuts, accumulate(cuts), strict=True)]
            chunks.update((chunk_id(part), part) for part in parts)
            wrote.setdefault(name, []).append(Piece(box.offsets, box.sizes, cuts, tuple(map(chunk_id, parts))))
    if rank == 0:
        Repository.init(directory / "store").close()
    dist.barrier()
    own = directory / f"rank{rank}"
    table = packing.write(own, [packing.chunk(raw) for raw in chunks.values()])
    for path in own.iterdir():
        path.rename(directory / "store" / "packs" / path.name)
    tables, everything = gathered(table), gathered(wrote)
    if rank == 0:
        with Repository.open(directory / "store") as repo:
            repo.index.write(lambda writer: [writer.add_pack(table.id, table.entries) for table in tables])
    dist.barrier()
    return {
        name: _entry(name, each.shape, [one for wrote in everything for one in wrote.get(name, ())])
        for name, each in held.items()
    }


def _bytes_of(held: Shards, box: Box) -> bytes:
    index = within(Box(place_of(box, held.parts), box.sizes))
    return held.local[index].contiguous().numpy().tobytes()


def _entry(name: Name, shape: tuple[int, ...], wrote: list[Any]) -> TensorEntry:
    make = entry_of_bytes if is_inline("float32", shape) else entry_of_pieces
    return make(str(name), 0, "float32", shape, wrote)


def load(repo: Repository, entry: TensorEntry, full: torch.Tensor) -> None:
    """Read a tensor into other layouts, each of which has to hold what torch would have put there."""
    mesh = init_device_mesh("cpu", (dist.get_world_size(),))
    for placement in [Shard(0), Replicate(), *([Shard(1)] if full.dim() > 1 else [])]:
        expected = distribute_tensor(full, mesh, [placement])
        target = shards_of(distribute_tensor(torch.full_like(full, 7), mesh, [placement]))
        memory = writable_bytes(target.local)
        if memory is not None:
            room = contiguous(tuple(target.local.shape), 4, memory)
            copies = [copy for part in target.parts for copy in plan_box(entry, part.box, inner(room, part.local))]
            execute(repo.reader, gather(copies), None, verify_hash=True)
        assert torch.equal(target.local, expected.to_local())


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
