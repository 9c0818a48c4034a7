"""This process as one rank of several, for tests of what a rank does by itself."""

from collections.abc import Iterator
from contextlib import contextmanager
from math import prod

import torch
import torch.distributed as dist
from torch.distributed.device_mesh import DeviceMesh, init_device_mesh
from torch.distributed.tensor import DTensor, distribute_tensor
from torch.distributed.tensor.placement_types import Placement
from torch.testing._internal.distributed.fake_pg import FakeStore


@contextmanager
def rank_of(rank: int, *mesh: int) -> Iterator[DeviceMesh]:
    """One rank of a mesh, of whose others there are none: what a collective would bring is never set.

    torch remembers equal meshes from one group to the next, with the rank that it was then: names make them differ.
    """
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(mesh))
    try:
        yield init_device_mesh("cpu", mesh, mesh_dim_names=tuple(f"rank{rank}dim{dim}" for dim in range(len(mesh))))
    finally:
        dist.destroy_process_group()


def spread(full: torch.Tensor, mesh: DeviceMesh, placements: tuple[Placement, ...]) -> DTensor:
    """What torch puts on this rank, of a tensor that all have."""
    return distribute_tensor(full, mesh, placements, src_data_rank=None)
