"""One rank of a real group that uses torch's distributed checkpointing. Run by ``test_dcp_ranks.py``.

``dcp_rank.py DIRECTORY RANK WORLD_SIZE WHAT …``: functions of this module by name, one after the other.
"""

import faulthandler
import gc
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
import torch.distributed.checkpoint as dcp
from torch.distributed._shard import sharded_tensor
from torch.distributed._shard.sharded_tensor import ShardedTensor
from torch.distributed._shard.sharding_spec import ChunkShardingSpec
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.metadata import Metadata
from torch.distributed.checkpoint.planner import SavePlan, SavePlanner
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.checkpoint.state_dict_saver import AsyncCheckpointerType
from torch.distributed.checkpoint.storage import WriteResult
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from moonclip.dcp import StorageReader, StorageWriter
from store.errors import Conflict, Incompatible
from store.repository import Repository
from tests.distributed.load_rank import network, optimizer_of, states, train
from tests.ranks import spread


def layouts(world_size: int) -> Iterator[tuple[str, tuple[int, ...], tuple[Placement, ...]]]:
    """Meshes and placements of which torch's checkpointing knows what they mean."""
    yield "s0", (world_size,), (Shard(0),)
    yield "s1", (world_size,), (Shard(1),)
    yield "r", (world_size,), (Replicate(),)
    if world_size == 4:
        yield "s0s1", (2, 2), (Shard(0), Shard(1))
        yield "rs0", (2, 2), (Replicate(), Shard(0))
        yield "s0s0", (2, 2), (Shard(0), Shard(0))


def stored_bytes(root: Path) -> int:
    dist.barrier()
    size = sum(path.stat().st_size for path in (root / "packs").iterdir())
    dist.barrier()
    return size


def others(rank: int) -> dict[str, Any]:
    """What is no shard: plain tensors that all ranks have, values, and some that are one rank's own."""
    torch.manual_seed(8)
    return {
        "plain": {"w": torch.randn(300, 40), "step": torch.tensor(3.0)},
        "own": {f"rank{rank}": torch.full((100,), float(rank)), "list": [torch.ones(2), {"n": 1}]},
        "values": {"lr": 0.1, "text": "x", f"seed{rank}": rank},
        "step": 7,
    }


def save_layouts(root: Path, rank: int, world_size: int) -> None:
    """The same tensors in every layout, each on a branch of its own; and what is no shard."""
    full = states()
    for name, shape, placements in layouts(world_size):
        mesh = init_device_mesh("cpu", shape)
        state = {"model": {key: spread(each, mesh, placements) for key, each in full.items()}, **others(rank)}
        id_ = f"{name}-{world_size}/step-{world_size}"
        metadata = dcp.save(state, checkpoint_id=id_, storage_writer=StorageWriter(root, branch=f"{name}/{world_size}"))
        assert len(metadata.storage_data) == 64


def load_layouts(root: Path, rank: int, world_size: int) -> None:
    """What any number of ranks saved in any layout into every layout of this many."""
    full = states()
    with Repository.open(root, read_only=True) as repo:
        branches = [name for each in repo.refs.names("branches/") if "/" in (name := each.removeprefix("branches/"))]
    assert branches
    for _, shape, placements in layouts(world_size):
        mesh = init_device_mesh("cpu", shape)
        for branch in branches:
            target = {key: spread(torch.zeros_like(each), mesh, placements) for key, each in full.items()}
            state = {
                "model": target,
                "plain": {"w": torch.zeros(300, 40)},
                "own": {"rank0": torch.zeros(100)},
                "step": 0,
            }
            state["own"]["list"] = [torch.zeros(2), {"n": 0}]
            dcp.load(state, storage_reader=StorageReader(root, branch))
            for key, each in full.items():
                assert torch.equal(state["model"][key].to_local(), spread(each, mesh, placements).to_local()), (
                    branch,
                    key,
                )
            expected = others(0)
            assert torch.equal(state["plain"]["w"], expected["plain"]["w"])
            assert (state["step"], state["own"]["list"][1]["n"]) == (7, 1)
            assert torch.equal(state["own"]["list"][0], torch.ones(2))
            assert not state["own"]["rank0"].any()


def trained(root: Path, rank: int, world_size: int) -> None:
    """FSDP2 and AdamW by way of torch's own state dicts, each step saved; then once more with nothing changed."""
    model = fully_shard(network())
    optimizer = optimizer_of(model)
    for step in range(3):
        train(model, optimizer, step, step + 1)
        state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
        dcp.save(state, checkpoint_id=f"step-{step}", storage_writer=StorageWriter(root, branch="trained"))
    size = stored_bytes(root)
    dcp.save(state, storage_writer=StorageWriter(root, branch="trained"))
    assert stored_bytes(root) - size < 4096


def resumed(root: Path, rank: int, world_size: int) -> None:
    """It goes on as one process would have."""
    alone = network()
    optimizer = optimizer_of(alone)
    train(alone, optimizer, 0, 3)
    expected = train(alone, optimizer, 3, 6)
    model: Any = fully_shard(network()) if world_size > 1 else network()
    optimizer = optimizer_of(model)
    model_state, optimizer_state = get_state_dict(model, optimizer)
    state = {"model": model_state, "optim": optimizer_state}
    dcp.load(state, checkpoint_id="step-2", storage_reader=StorageReader(root))
    set_state_dict(model, optimizer, model_state_dict=state["model"], optim_state_dict=state["optim"])
    torch.testing.assert_close(train(model, optimizer, 3, 6), expected, rtol=1e-5, atol=0)


def replicated(root: Path, rank: int, world_size: int) -> None:
    """Tensors that all ranks have are stored once."""
    torch.manual_seed(11)
    tensors = {f"w{number}": torch.randn(500, 500) for number in range(4)}
    size = stored_bytes(root)
    dcp.save({"model": tensors}, storage_writer=StorageWriter(root, branch="replicated"))
    assert stored_bytes(root) - size < 1.05 * sum(each.nbytes for each in tensors.values())


def sharded_tensors(root: Path, rank: int, world_size: int) -> None:
    """What was there before DTensors: rows saved, columns loaded, then as DTensors and whole."""
    full = torch.arange(31 * 20.0).view(31, 20)

    def of_dim(dim: int, source: torch.Tensor) -> ShardedTensor:
        spec = ChunkShardingSpec(dim=dim, placements=[f"rank:{each}/cpu" for each in range(world_size)])
        made = sharded_tensor.zeros(spec, *full.shape)
        for shard in made.local_shards():
            where = zip(shard.metadata.shard_offsets, shard.metadata.shard_sizes, strict=True)
            shard.tensor.copy_(source[tuple(slice(start, start + size) for start, size in where)])
        return made

    dcp.save({"model": {"w": of_dim(0, full)}}, storage_writer=StorageWriter(root, branch="sharded"))
    loaded = {"model": {"w": of_dim(1, full * 0)}}
    dcp.load(loaded, storage_reader=StorageReader(root, "sharded"))
    expected = of_dim(1, full).local_shards()
    for own, shard in zip(loaded["model"]["w"].local_shards(), expected, strict=True):
        assert torch.equal(own.tensor, shard.tensor)
    mesh = init_device_mesh("cpu", (world_size,))
    for target in (spread(full * 0, mesh, (Shard(0),)), torch.zeros(31, 20)):
        dcp.load({"model": {"w": target}}, storage_reader=StorageReader(root, "sharded"))
        whole = target.full_tensor() if isinstance(target, DTensor) else target
        assert torch.equal(whole, full)


def lopsided(root: Path, rank: int, world_size: int) -> None:
    """What only some ranks have decides what things are called on all of them."""
    groups = {} if rank else {"param_groups": [{"lr": 0.1, "params": [0, 1]}]}
    state = {
        "optim": {"state": {rank: {"exp_avg": torch.full((300,), float(rank))}}, **groups},
        **({"model": {"w": torch.ones(300)}} if rank else {"fc.weight": torch.ones(400)}),
    }
    dcp.save(state, checkpoint_id="lopsided", storage_writer=StorageWriter(root, branch="lopsided"))


def leases(root: Path, rank: int, world_size: int) -> None:
    """A writer that lives on holds nothing once its save is over, and remembers it all the same."""
    mesh = init_device_mesh("cpu", (world_size,))
    state = {"model": {"w": spread(torch.randn(600, 500), mesh, (Shard(0),))}}
    writer = StorageWriter(root, branch="leases")
    dcp.save(state, storage_writer=writer)
    size = stored_bytes(root)
    assert [path for path in (root / "writers").iterdir() if not path.name.startswith("branches~")] == []
    dcp.save(state, storage_writer=writer)
    assert stored_bytes(root) - size < 4096


def part_of_the_ranks(root: Path, rank: int, world_size: int) -> None:
    """A group of some ranks saves, and another one loads: nobody else is asked."""
    first, last = dist.new_group([0, 1]), dist.new_group([world_size - 1])
    full = {"w": torch.arange(900.0)}
    if rank in {0, 1}:
        dcp.save({"model": full}, storage_writer=StorageWriter(root, branch="few"), process_group=first)
    dist.barrier()
    if rank == world_size - 1:
        state = {"model": {"w": torch.zeros(900)}}
        dcp.load(state, storage_reader=StorageReader(root, "few"), process_group=last)
        assert torch.equal(state["model"]["w"], full["w"])


def in_background(root: Path, rank: int, world_size: int) -> None:
    """In a thread, in a process, and with plans that torch uses again: right each time, and each time what changed."""
    mesh = init_device_mesh("cpu", (world_size,))
    torch.manual_seed(12)
    frozen, tuned = torch.randn(600, 500), torch.randn(600, 500)
    for kind in AsyncCheckpointerType:
        branch = kind.value
        planner = DefaultSavePlanner(enable_plan_caching=True)
        planner._cached_plans_key = branch
        sizes = []
        for step in range(3):
            state = {
                "model": {"frozen": spread(frozen, mesh, (Shard(0),)), "tuned": spread(tuned + step, mesh, (Shard(0),))}
            }
            state["step"] = step
            future = dcp.async_save(
                state,
                checkpoint_id=f"{branch}/step-{step}",
                storage_writer=StorageWriter(root, branch=branch),
                planner=planner,
                async_checkpointer_type=kind,
            )
            with torch.no_grad():
                state["model"]["tuned"].zero_()
            future.result(200)
            sizes.append(stored_bytes(root))
        assert sizes[1] - sizes[0] < tuned.nbytes and sizes[2] - sizes[1] < tuned.nbytes, (kind, sizes)
        for step in range(3):
            loaded = {
                "model": {"tuned": torch.zeros(600, 500), "frozen": spread(torch.zeros(600, 500), mesh, (Shard(1),))},
                "step": None,
            }
            dcp.load(loaded, checkpoint_id=f"{branch}/step-{step}", storage_reader=StorageReader(root))
            assert torch.equal(loaded["model"]["tuned"], tuned + step), (kind, step)
            assert torch.equal(loaded["model"]["frozen"].to_local(), spread(frozen, mesh, (Shard(1),)).to_local())
            assert loaded["step"] == step


class Failing(DefaultSavePlanner):
    """Fails on the last rank, once its plan is made."""

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        if dist.get_rank() == dist.get_world_size() - 1:
            raise RuntimeError("planted")
        return super().finish_plan(new_plan)  # type: ignore[no-untyped-call, no-any-return]


def refused(root: Path, state: dict[str, Any], checkpoint_id: str | None = None, **options: Any) -> BaseException:
    """The first failure, of whichever rank, that a save ends with on this one."""
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state, checkpoint_id=checkpoint_id, storage_writer=StorageWriter(root, branch="failing"), **options)
    error = next(iter(caught.value.failures.values()))[0].with_traceback(None)
    del caught
    gc.collect()
    return error


def failing(root: Path, rank: int, world_size: int) -> None:
    """Whatever fails fails on all ranks, publishes nothing and leaves the next save as it was."""
    mesh = init_device_mesh("cpu", (world_size,))
    state = {"model": {"w": spread(torch.arange(30_000.0).view(300, 100), mesh, (Shard(0),))}}
    dcp.save(state, checkpoint_id="taken", storage_writer=StorageWriter(root, branch="failing"))
    size = stored_bytes(root)
    assert isinstance(refused(root, state, "taken"), Conflict)
    assert isinstance(refused(root, {**state, "own": {"x": object()}}), Incompatible)
    with pytest.raises(Incompatible, match="use_collectives"):
        dcp.save(state, storage_writer=StorageWriter(root, branch="failing"), use_collectives=False)
    assert stored_bytes(root) == size
    assert str(refused(root, state, planner=Failing())) == "planted"
    partial = DTensor.from_local(torch.ones(300), mesh, (Partial(),), run_check=False)
    assert "artial" in str(refused(root, {"model": {"w": partial}}))
    strided = spread(torch.arange(24.0), mesh, (_StridedShard(0, split_factor=3),))
    error = refused(root, {"model": {"w": strided}})
    assert "strided" in str(error) or "torch takes" in str(error) or "overlap" in str(error), error
    dcp.save(
        {"model": {"w": state["model"]["w"] + 1}},
        checkpoint_id="next",
        storage_writer=StorageWriter(root, branch="failing"),
    )
    target = {"model": {"w": torch.zeros(300, 100)}}
    dcp.load(target, checkpoint_id="next", storage_reader=StorageReader(root))
    assert torch.equal(target["model"]["w"], torch.arange(30_000.0).view(300, 100) + 1)
    with Repository.open(root, read_only=True) as repo:
        assert len(list(repo.log([repo.resolve("failing")]))) == 2
    partly = {"model": {"w": torch.zeros(300, 100), "new": torch.ones(3)}}
    dcp.load(partly, storage_reader=StorageReader(root, "next"), planner=DefaultLoadPlanner(allow_partial_load=True))
    assert partly["model"]["new"].all() and partly["model"]["w"].any()


class Dying(StorageWriter):
    """Kills its process at a point of its save."""

    at: str = ""

    def set_up_storage_writer(self, is_coordinator: bool, *args: Any, **kwargs: Any) -> None:
        super().set_up_storage_writer(is_coordinator, *args, **kwargs)
        self._die("planning")

    def write_data(self, plan: SavePlan, planner: SavePlanner) -> Any:
        self._die("before")
        made = super().write_data(plan, planner)
        self._die("stored")
        return made

    def finish(self, metadata: Metadata, results: list[list[WriteResult]]) -> None:
        self._die("finish")
        super().finish(metadata, results)

    def _die(self, at: str) -> None:
        if self.at == at:
            os.kill(os.getpid(), signal.SIGKILL)


def killed(root: Path, rank: int, world_size: int) -> None:
    """One rank is killed at a point of a save. The others learn it from torch."""
    victim, _, point = os.environ["POINT"].partition(" ")
    mesh = init_device_mesh("cpu", (world_size,))
    state = {"model": {"w": spread(torch.arange(30_000.0).view(300, 100), mesh, (Shard(0),))}}
    writer = Dying(root, branch="killed")
    dcp.save(state, checkpoint_id="before", storage_writer=writer)
    if rank == int(victim):
        writer.at = point
    try:
        dcp.save({"model": {"w": state["model"]["w"] * 3}}, checkpoint_id="after", storage_writer=writer)
    except BaseException as error:
        print(f"learned: {type(error).__name__}", flush=True)
        os._exit(3)
    os._exit(4)


def main() -> None:
    faulthandler.dump_traceback_later(240, exit=True)  # before whoever launched this gives up, who could not say why
    directory, rank, world_size, *what = sys.argv[1:]
    store = dist.FileStore(f"{directory}/meeting {' '.join(what)} {world_size}", int(world_size))
    os.environ |= {"MASTER_ADDR": "127.0.0.1", "RANK": rank, "WORLD_SIZE": world_size}
    dist.init_process_group("gloo", store=store, rank=int(rank), world_size=int(world_size))
    for each in what:
        globals()[each](Path(directory) / "store", int(rank), int(world_size))
        dist.barrier()
    dist.destroy_process_group()
    print("done", flush=True)
    if "in_background" not in what:  # which leaves processes to torch that it ends with this one
        os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends


if __name__ == "__main__":
    main()
