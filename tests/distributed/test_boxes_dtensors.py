"""Our boxes against the shards that torch makes: each of a group's ranks in turn, in this process.

torch remembers meshes from one group to the next, with the place of the rank that it was then: so what is asked of a
rank goes by tensors that were made for it.
"""

from collections.abc import Iterator
from contextlib import contextmanager
from itertools import product
from math import prod

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard, distribute_tensor
from torch.distributed.tensor._utils import compute_local_shape_and_global_offset
from torch.distributed.tensor.placement_types import Placement, _StridedShard
from torch.testing._internal.distributed.fake_pg import FakeStore

from moonclip.sharding.dtensors import shards_of
from moonclip.state.refusals import Refused
from store.boxes import require_tiling, whole
from tests.sharding import within

COLUMNS = 5
DIMS = (1, 5, 6, 7, 10)
MESHES = ((2,), (4,), (2, 2), (3, 2))
PLACEMENTS = (Shard(0), Shard(1), Replicate(), _StridedShard(0, split_factor=2), _StridedShard(1, split_factor=3))
MISLAID = (((3, 2), 7),)
"""Where FSDP over tensor parallelism has rows elsewhere than its placements say."""


@contextmanager
def rank_of(rank: int, *mesh: int) -> Iterator[dist.DeviceMesh]:
    """This process as one rank of a mesh, of whose others there are none."""
    dist.init_process_group("fake", store=FakeStore(), rank=rank, world_size=prod(mesh))
    try:
        yield init_device_mesh("cpu", mesh)
    finally:
        dist.destroy_process_group()


def check(full: torch.Tensor, shard: DTensor) -> None:
    """A rank's boxes hold what torch put into its shard, and all of it."""
    found = shards_of(shard)
    assert torch.equal(found.local, shard.to_local())
    assert sum(part.box.volume for part in found.parts) == found.local.numel()
    for part in found.parts:
        local = tuple(slice(at, at + size) for at, size in zip(part.local, part.box.sizes, strict=True))
        assert torch.equal(full[within(part.box)], found.local[local])


@pytest.mark.parametrize("mesh", MESHES, ids=str)
def test_boxes_hold_what_torch_put_into_the_shard(mesh: tuple[int, ...]) -> None:
    for rank in range(prod(mesh)):
        with rank_of(rank, *mesh) as devices:
            for placements, rows in product(product(PLACEMENTS, repeat=len(mesh)), DIMS):
                full = torch.arange(rows * COLUMNS).view(rows, COLUMNS)
                shard = distribute_tensor(full, devices, placements, src_data_rank=None)
                if (mesh, rows) in MISLAID and placements == (_StridedShard(0, split_factor=2), Shard(0)):
                    with pytest.raises(Refused, match="not where its placements say"):
                        shards_of(shard)
                else:
                    check(full, shard)


@pytest.mark.parametrize("mesh", [(4,), (3, 2)], ids=str)
def test_where_torch_tells_where_a_shard_begins_so_do_we(mesh: tuple[int, ...]) -> None:
    """For plain placements, whose shards are one box."""
    for rank in range(prod(mesh)):
        with rank_of(rank, *mesh) as devices:
            for placements, rows in product(product((Shard(0), Shard(1), Replicate()), repeat=len(mesh)), DIMS):
                shard = distribute_tensor(torch.zeros(rows, COLUMNS), devices, placements, src_data_rank=None)
                sizes, offsets = compute_local_shape_and_global_offset(shard.shape, devices, placements)
                parts = shards_of(shard).parts
                assert [(part.box.offsets, part.box.sizes) for part in parts] == [(offsets, sizes)] * bool(prod(sizes))


def test_the_boxes_of_a_mesh_tile_the_tensor() -> None:
    placements = (_StridedShard(0, split_factor=2), _StridedShard(0, split_factor=3))
    boxes = set()
    for rank in range(6):
        with rank_of(rank, 3, 2) as devices:
            shard = distribute_tensor(torch.zeros(13, 2), devices, placements, src_data_rank=None)
            boxes.update(part.box for part in shards_of(shard).parts)
    require_tiling("w", (13, 2), list(boxes))


@pytest.mark.parametrize("reduce_op", ["sum", "avg"])
def test_partial_is_refused_by_name(reduce_op: str) -> None:
    with rank_of(0, 2) as devices:
        shard = DTensor.from_local(torch.zeros(4), devices, [Partial(reduce_op)], run_check=False)
        with pytest.raises(Refused, match=rf"Partial\({reduce_op}\) is yet to be summed over ranks.*Replicate"):
            shards_of(shard)


class Odd(Shard):
    """A placement that somebody made up."""


def test_a_placement_that_is_not_known_is_refused_by_name() -> None:
    with rank_of(0, 2) as devices:
        shard = DTensor.from_local(torch.zeros(4), devices, [Odd(0)], run_check=False)
        with pytest.raises(Refused, match="no way is known to lay a tensor out by"):
            shards_of(shard)


@pytest.mark.parametrize("placement", [Shard(0), Replicate()])
def test_a_local_tensor_of_another_size_than_placements_say_is_refused(placement: Placement) -> None:
    with rank_of(0, 2) as devices:
        local = torch.zeros(3, 2)
        shard = DTensor.from_local(local, devices, [placement], run_check=False, shape=(7, 2), stride=(2, 1))
        with pytest.raises(Refused, match=r"holds \[3, 2\] of a tensor of shape \[7, 2\]"):
            shards_of(shard)


def test_a_rank_outside_the_mesh_holds_nothing() -> None:
    with rank_of(3, 4):
        few = dist.DeviceMesh("cpu", [0, 1])
        shard = DTensor.from_local(torch.zeros(0), few, [Shard(0)], run_check=False, shape=(7,), stride=(1,))
        assert shards_of(shard).parts == ()


def test_a_plain_tensor_is_held_whole() -> None:
    for tensor in (torch.zeros(3, 2), torch.tensor(1.0), torch.nn.Parameter(torch.zeros(2))):
        (part,) = shards_of(tensor).parts
        assert part.box == whole(tuple(tensor.shape))
        assert not any(part.local)
    assert shards_of(torch.zeros(0, 2)).parts == ()


def test_parameters_and_tensors_without_dims() -> None:
    with rank_of(1, 2) as devices:
        shard = distribute_tensor(torch.nn.Parameter(torch.arange(5.0)), devices, [Shard(0)], src_data_rank=None)
        found = shards_of(shard)
        assert not found.local.requires_grad
        assert [str(part.box) for part in found.parts] == ["[3:5]"]
        scalar = distribute_tensor(torch.tensor(3.0), devices, [Replicate()], src_data_rank=None)
        assert [part.box.volume for part in shards_of(scalar).parts] == [1]
