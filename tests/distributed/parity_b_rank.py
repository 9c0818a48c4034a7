"""One rank of a real group, for the lines of parity that are about several. Run by ``test_parity_b.py``.

``parity_b_rank.py DIRECTORY RANK WORLD_SIZE``: every case of this module, one after another.
"""

import os
import sys
from collections.abc import Callable
from datetime import timedelta
from pathlib import Path

import pytest
import torch
import torch.distributed as dist
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import Placement

from moonclip import Box, CheckpointManager, Event, Incompatible, ItemSpec, Part, SaveFailed, Sharding, Snapshot
from moonclip.specs import Resharder
from tests.ranks import spread
from tests.workers import require_no_save

ROWS, COLUMNS = 11, 6
WHOLE = torch.arange(1000.0 * ROWS * COLUMNS).view(ROWS, 1000 * COLUMNS)
"""Of a size that no number of ranks divides."""


def dealt(rank: int, world_size: int) -> Resharder:
    """Rows are dealt out like cards, and each rank has a row of padding behind them."""
    boxes = [Box((row, 0), (1, WHOLE.shape[1])) for row in range(rank, ROWS, world_size)]
    parts = tuple(Part(box, (place, 0)) for place, box in enumerate(boxes))
    return lambda name, tensor: Sharding(tuple(WHOLE.shape), parts) if name == "w" else None


def in_columns(rank: int, world_size: int) -> Resharder:
    """Runs of columns, turned by no one: the commonest way to cut otherwise."""
    width = -(-WHOLE.shape[1] // world_size)
    start = rank * width
    box = Box((0, start), (ROWS, min(width, WHOLE.shape[1] - start)))
    return lambda name, tensor: Sharding(tuple(WHOLE.shape), (Part(box, (0, 0)),)) if name == "w" else None


def resharded(directory: Path, rank: int, world_size: int) -> None:
    """B25: what is no DTensor is saved and loaded as its owner says it lies."""
    own = torch.full((len(range(rank, ROWS, world_size)) + 1, WHOLE.shape[1]), -1.0)
    own[:-1] = WHOLE[rank::world_size]
    items = {"model": ItemSpec(resharder=dealt(rank, world_size), required=True)}
    with CheckpointManager(directory / f"resharded{world_size}", world_size="auto", items=items) as mgr:
        for step in (1, 2):
            mgr.save(step=step, model={"w": own, "b": torch.ones(3)}).result(60)
        again = {"w": torch.full_like(own, -7.0), "b": torch.zeros(3)}
        assert mgr.resume(model=again) == 3
        assert torch.equal(again["w"][:-1], own[:-1])
        assert (again["w"][-1] == -7).all()
        assert torch.equal(again["b"], torch.ones(3))
    items = {"model": ItemSpec(resharder=in_columns(rank, world_size))}
    with CheckpointManager(directory / f"resharded{world_size}", world_size="auto", items=items) as mgr:
        width = -(-WHOLE.shape[1] // world_size)
        columns = WHOLE[:, rank * width : (rank + 1) * width]
        target = {"w": torch.zeros(columns.shape), "b": torch.zeros(3)}
        mgr.load(into={"model": target})
        assert torch.equal(target["w"], columns)
    holes = ItemSpec(resharder=lambda name, tensor: Sharding((99,), (Part(Box((rank,), (1,)), (0,)),)))
    with CheckpointManager(directory / "holes", world_size="auto", items={"model": holes}) as mgr:
        with pytest.raises(Incompatible, match=rf"nobody has \[{world_size}:99\] of shape \[99\]"):
            mgr.save(model={"w": torch.zeros(1)})
        assert mgr.head is None


def dtensors(directory: Path, rank: int, world_size: int) -> None:
    """B19, B33: shards of all kinds become one commit. The test loads it in a process that has no ranks."""
    placements: dict[str, tuple[Placement, ...]] = {
        "rows": (Shard(0),),
        "columns": (Shard(1),),
        "everywhere": (Replicate(),),
    }
    mesh = init_device_mesh("cpu", (world_size,))
    state = {name: spread(WHOLE, mesh, one) for name, one in placements.items()}
    with CheckpointManager(directory / f"dtensors{world_size}", world_size="auto", async_save=False) as mgr:
        commit = mgr.save("named", {"model": state, "step": 7}).result()
        assert mgr.tags() == {"named": commit}  # B8: visible to this rank, whichever it is
        assert mgr.load("named", items=["step"]) == {"step": 7}
        for number in range(2):  # B24: also a later save, of other shapes and keys
            later = {f"only{number}": spread(WHOLE[: 5 + number], mesh, (Shard(0),))}
            mgr.save(f"later{number}", {"model": later}).result()
            shapes = {name: found.shape for name, found in mgr.describe(f"later{number}").tensors.items()}
            assert shapes == {f"model::only{number}": (5 + number, WHOLE.shape[1])}


def called_back(directory: Path, rank: int, world_size: int) -> None:
    """B25, B34: rank 0 is asked and told; each is told of its own part."""
    del world_size
    seen: list[tuple[str, int | None]] = []
    events: list[Event] = []

    def check(snapshot: Snapshot) -> None:
        seen.append(("before", snapshot.step))
        require_no_save(where)
        if snapshot.step == 2:
            raise LookupError("not this one")

    def announce(snapshot: Snapshot) -> None:
        seen.append(("after", snapshot.step))
        if snapshot.step == 3:
            raise LookupError("no answer")

    where = directory / "called back"
    with CheckpointManager(
        where, world_size="auto", pre_finalize=check, finalize=announce, on_event=events.append
    ) as mgr:
        state = {"w": torch.ones(100_000), f"own{rank}": torch.rand(100_000)}
        first = mgr.save(step=1, model=state).result(60)
        with pytest.raises(SaveFailed, match="LookupError: not this one" if rank == 0 else "rank 0: .*not this one"):
            mgr.save(step=2, model=state).result(60)
        with pytest.raises(SaveFailed, match="not this one"):
            mgr.flush()
        assert mgr.head == first
        third = mgr.save(step=3, model=state)
        if rank == 0:
            with pytest.raises(SaveFailed, match="no answer; it is committed all the same"):
                third.result(60)
            with pytest.raises(SaveFailed, match="no answer"):
                mgr.flush()
        else:
            third.result(60)
        assert mgr.head == third.commit
        mgr.load(into={"model": {f"own{rank}": torch.empty(100_000)}}, names=[f"own{rank}"])
    expected = [("before", 1), ("after", 1), ("before", 2), ("before", 3), ("after", 3)]
    assert seen == (expected if rank == 0 else [])
    assert [(event.kind, event.step, event.error is None) for event in events] == [
        ("save", 1, True), ("save", 2, False), ("save", 3, rank != 0), ("load", 3, True),
    ]  # fmt: skip
    assert events[0].given_bytes >= 400_000
    assert all({"wait", "flatten", "capture", "written"} <= event.seconds.keys() for event in events[:3])
    assert (events[2].new_bytes, events[3].given_bytes) == (0, 400_000)


def strict(directory: Path, rank: int, world_size: int) -> None:
    """B18: one rank that lacks a required item, or has one too many, keeps all from saving, and all hear why."""
    del world_size
    items = {"model": ItemSpec(required=True, dtype="bf16")}
    with CheckpointManager(directory / "strict", world_size="auto", items=items, strict_schema=True) as mgr:
        with pytest.raises(Incompatible, match="other: in the save, and not among the manager's items"):
            mgr.save(step=0, model={"w": torch.ones(8)}, **({"other": 1} if rank == 1 else {}))
        assert mgr.head is None
        mgr.save(step=0, model={"w": torch.ones(8)}).result(60)
        assert mgr.describe().tensors["model::w"].stored_dtype == "bfloat16"


def lent(directory: Path, rank: int, world_size: int) -> None:
    """What requires no copy is copied behind the save, a DTensor's shard too."""
    mesh = init_device_mesh("cpu", (world_size,))
    state = {"sharded": spread(WHOLE, mesh, (Shard(0),)), f"own{rank}": torch.full((100_000,), float(rank))}
    items = {"model": ItemSpec(requires_copy=False)}
    with CheckpointManager(directory / "lent", world_size="auto", items=items) as mgr:
        for step in range(3):
            mgr.save(step=step, model=state).result(60)
            state[f"own{rank}"] += world_size
        for step in range(3):
            loaded = mgr.load(f"step:{step}")["model"]
            assert torch.equal(loaded["sharded"], WHOLE)
            assert all(loaded[f"own{other}"][-1] == other + step * world_size for other in range(world_size))


CASES: dict[int, tuple[Callable[[Path, int, int], None], ...]] = {
    2: (resharded, dtensors, called_back, strict, lent),
    4: (resharded, dtensors),
}


def main(directory: Path, rank: int, world_size: int) -> None:
    store = dist.FileStore(str(directory / f"meeting{world_size}"), world_size)
    dist.init_process_group("gloo", store=store, rank=rank, world_size=world_size, timeout=timedelta(seconds=120))
    try:
        for case in CASES[world_size]:
            case(directory, rank, world_size)
            dist.barrier()
    finally:
        dist.destroy_process_group()
    print("done", flush=True)


if __name__ == "__main__":
    main(Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3]))
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
