"""A state that one process saves, or several ranks, each its rows of every tensor; the same state either way."""

import ctypes
import json
import os
import subprocess
import sys
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Final

import torch

from ..peers import RUNNER
from .telling import tell

_TENSOR_COUNT: Final = 20
_COLUMNS: Final = 1000
_SCALE: Final = 0.02
_CHANGE: Final = 1e-4
"""How far a save's weights are from the last one's, as after a step of training."""


def ranks(root: str, world_size: int, state_bytes: int, save_count: int) -> None:
    """Run a job ``rank`` in so many processes at once, and tell what they tell.

    Args:
        root: of the store, which has no brother named ``meeting``.
        world_size: how many.
        state_bytes: of all of them together.
        save_count: saves of each.
    """
    common: dict[str, object] = {"do": "rank", "root": root, "meeting": str(Path(root).resolve().with_name("meeting"))}
    common |= {"world_size": world_size, "state_bytes": state_bytes, "save_count": save_count}
    environment = {**os.environ, "OMP_NUM_THREADS": "1", "LOCAL_WORLD_SIZE": str(world_size)}
    processes = [
        subprocess.Popen(
            [sys.executable, "-I", str(RUNNER), json.dumps({**common, "rank": rank})],
            env=environment,
            stdout=subprocess.PIPE,
            text=True,
        )
        for rank in range(world_size)
    ]
    for rank, process in enumerate(processes):
        told = process.communicate()[0]
        if process.returncode:
            sys.exit(f"rank {rank} failed")  # the others end with this process
        for line in told.splitlines():
            event = json.loads(line)
            tell(event.pop("event"), rank=rank, **event)


def rank(root: str, meeting: str, rank: int, world_size: int, state_bytes: int, save_count: int) -> None:
    """Save a state again and again, together with others if there are any; all of them begin at the same time."""
    from moonclip import CheckpointManager

    if world_size > 1:
        torch.distributed.init_process_group("gloo", f"file://{meeting}", rank=rank, world_size=world_size)
    local, state = _state(rank, world_size, state_bytes)
    memory = bytearray(sum(tensor.nbytes for tensor in local.values()))
    generator = torch.Generator().manual_seed(world_size + rank)
    with CheckpointManager(root, world_size=world_size, rank=rank) as manager:
        for number in range(save_count):
            for tensor in local.values():
                tensor.add_(torch.randn(tensor.shape, generator=generator), alpha=_CHANGE)
            _meet(world_size)
            began_s = time.perf_counter()
            future = manager.save(step=number, model=state)
            blocked_s = time.perf_counter() - began_s
            future.result()
            tell("saved", number=number, blocked_s=blocked_s, committed_s=time.perf_counter() - began_s)
            _meet(world_size)
            began_s = time.perf_counter()
            _copy(local, memory)
            tell("copied", number=number, seconds=time.perf_counter() - began_s)
    if world_size > 1:
        torch.distributed.destroy_process_group()


def _state(rank: int, world_size: int, state_bytes: int) -> tuple[dict[str, torch.Tensor], dict[str, torch.Tensor]]:
    """What this rank holds, and the tensors that it holds that of."""
    row_count = state_bytes // (_TENSOR_COUNT * _COLUMNS * 4)
    generator = torch.Generator().manual_seed(0)
    local = {}
    for number in range(_TENSOR_COUNT):
        whole = torch.randn(row_count, _COLUMNS, generator=generator) * _SCALE
        local[f"weight{number}"] = whole.chunk(world_size)[rank].clone()
    if world_size == 1:
        return local, local
    from torch.distributed.device_mesh import init_device_mesh
    from torch.distributed.tensor import DTensor, Shard

    mesh = init_device_mesh("cpu", (world_size,))
    shape, stride = torch.Size((row_count, _COLUMNS)), (_COLUMNS, 1)
    return local, {
        name: DTensor.from_local(tensor, mesh, [Shard(0)], shape=shape, stride=stride) for name, tensor in local.items()
    }


def _copy(tensors: Mapping[str, torch.Tensor], memory: bytearray) -> None:
    target = ctypes.addressof(ctypes.c_char.from_buffer(memory))
    for tensor in tensors.values():
        ctypes.memmove(target, tensor.data_ptr(), tensor.nbytes)
        target += tensor.nbytes


def _meet(world_size: int) -> None:
    if world_size > 1:
        torch.distributed.barrier()
