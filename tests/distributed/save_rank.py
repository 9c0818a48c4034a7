"""One rank of a real group that saves with the others. Run by ``test_rank_saves.py``.

``save_rank.py DIRECTORY RANK WORLD_SIZE WHAT``: a function of this module by name. Each leaves the group when it ends.
"""

import os
import random
import resource
import signal
import sys
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor.parallel import ColwiseParallel, RowwiseParallel, parallelize_module
from torch.nn.parallel import DistributedDataParallel

from moonclip import CheckpointManager
from moonclip.ranks.group import Group
from moonclip.ranks.saving import RankPart, Verdict, follow, lead
from moonclip.ranks.talk import Talk
from store.disk.files import Files
from store.errors import Incompatible, MoonclipError, RankLost, SaveFailed
from store.ids import CommitId
from store.parallel import Threads
from store.reading.packs import pack_path
from store.repository import Repository
from store.saving.inputs import ContainerInput, TensorInput
from store.saving.partfiles import read_parts
from store.saving.saver import SaveRequest
from store.saving.shards import RankItem
from store.saving.snapshots import Snapshot
from tests.distributed.load_rank import network, optimizer_of, train

LARGE = (1024, 1100)
"""4.5 MB, cut on the grid: ranks' chunks are those of one process."""


class Loader:
    """Something that each rank has a state of."""

    def __init__(self, at: int) -> None:
        self.at = at

    def state_dict(self) -> dict[str, int]:
        return {"at": self.at}

    def load_state_dict(self, state: dict[str, int]) -> None:
        self.at = state["at"]


def large() -> nn.Module:
    torch.manual_seed(9)
    return nn.Linear(LARGE[1], LARGE[0], bias=False)


def models(world_size: int) -> dict[str, Any]:
    found: dict[str, Any] = {"fsdp": fully_shard(network()), "ddp": DistributedDataParallel(network())}
    if world_size == 4:
        plan = {"0": ColwiseParallel(), "1": RowwiseParallel()}
        mesh = init_device_mesh("cpu", (2, 2), mesh_dim_names=("outer", "inner"))
        found["hsdp"] = fully_shard(network(), mesh=mesh)
        found["tp"] = parallelize_module(network(), init_device_mesh("cpu", (4,)), plan)
    return found


def layouts(directory: Path, rank: int, world_size: int) -> None:
    """Models of every kind, each on a branch of its own, trained and saved twice; and a large one."""
    for name, model in models(world_size).items():
        optimizer = optimizer_of(model)
        with CheckpointManager(
            directory / "store", branch=f"{name}{world_size}", world_size="auto", per_rank=("loader",)
        ) as mgr:
            assert mgr.resume(model=model, optimizer=optimizer) == 0
            for step in range(3):
                if name != "tp":  # torch itself cannot multiply such uneven shards
                    train(model, optimizer, step, step + 1)
                random.seed(100 + rank)
                mgr.save(step=step, model=model, optimizer=optimizer, loader=Loader(rank + 10), rng=True)
            mgr.flush()
            expected = random.random()
            loader = Loader(0)
            random.seed(0)
            assert mgr.resume(loader=loader, rng=True) == 3
            assert loader.at == rank + 10
            assert random.random() == expected
            assert mgr.load(into={"model": model})["model"] is model
    with CheckpointManager(directory / "store", branch=f"large{world_size}", world_size="auto") as mgr:
        future = mgr.save(model=fully_shard(large()))
        assert future.result(60) == mgr.head


def resumed(directory: Path, rank: int, world_size: int) -> None:
    """What one, two and four ranks saved, into other numbers of them: the losses are those of one process."""
    alone = network()
    optimizer = optimizer_of(alone)
    train(alone, optimizer, 0, 3)
    expected = train(alone, optimizer, 3, 6)
    for branch in ("fsdp1", "ddp1", "fsdp2", "ddp2", "fsdp4", "ddp4", "hsdp4"):
        model = fully_shard(network())
        for parameter in model.parameters():
            nn.init.zeros_(parameter)
        optimizer = optimizer_of(model)
        with CheckpointManager(directory / "store", branch=branch, world_size="auto", per_rank=("loader",)) as mgr:
            assert mgr.resume(model=model, optimizer=optimizer, rng=True) == 3
            if int(branch[-1]) not in {1, world_size}:
                with pytest.raises(Incompatible, match="saved one each"):
                    mgr.load(into={"loader": Loader(0)})
                loader = Loader(0)
                mgr.load(into={"loader": loader}, strict=False)
                assert loader.at == 10
        torch.testing.assert_close(train(model, optimizer, 3, 6), expected, rtol=1e-5, atol=0)


class Broken:
    """A state that can be kept on all ranks but one."""

    def __init__(self, *, is_broken: bool) -> None:
        self._is_broken = is_broken

    def state_dict(self) -> dict[str, Any]:
        return {"it": torch.empty(2, device="meta") if self._is_broken else torch.zeros(2)}


def failing(directory: Path, rank: int, world_size: int) -> None:
    """B20: whatever ends a save on one rank ends it on all, with that rank's error; the next one works."""
    del world_size
    with CheckpointManager(directory / "failing", world_size="auto") as mgr:
        state = {"w": torch.full((300,), 1.0), f"own{rank}": torch.rand(900_000)}
        mgr.save(step=0, model=state)  # after two, there is all the memory that the later ones need
        first = mgr.save(step=1, model=state).result(60)
        with pytest.raises(Incompatible, match="meta device"):
            mgr.save(step=2, model=Broken(is_broken=rank == 1))
        with pytest.raises(Incompatible, match=r"rank 0 has float32 of shape \[300\], rank 1 has"):
            mgr.save(step=3, model={"w": torch.zeros(300 + rank)})
        assert mgr.head == first
        limit = resource.getrlimit(resource.RLIMIT_FSIZE)
        if rank == 1:
            resource.setrlimit(resource.RLIMIT_FSIZE, (5000, limit[1]))
        state = {"w": torch.full((300,), 2.0), f"own{rank}": torch.rand(900_000)}
        future = mgr.save(step=4, model=state)
        with pytest.raises(SaveFailed, match="File too large" if rank == 1 else "rank 1: .*File too large"):
            future.result(60)
        with pytest.raises(SaveFailed, match="step 4"):
            mgr.flush()
        resource.setrlimit(resource.RLIMIT_FSIZE, limit)
        assert mgr.head == first
        dist.barrier()
        assert mgr.save(step=4, model=state).result(60) == mgr.head
        assert mgr.load()["model"][f"own{rank}"].equal(state[f"own{rank}"])
    with CheckpointManager(directory / "failing", world_size="auto", async_save=False) as mgr:
        assert mgr.resume() == 5
        assert mgr.save("named", {"w": torch.ones(3)}).done()
        assert mgr.tags()["named"] == mgr.head
        if rank == 1:
            with pytest.raises(Incompatible, match="on rank 0"):
                mgr.branch("other")
            with pytest.raises(Incompatible, match="on rank 0"):
                mgr.tag("other")


def out_of_memory(directory: Path, rank: int, world_size: int) -> None:
    """A rank that has no room learns so itself, all others from it."""
    del world_size
    most = 10 if rank == 1 else None
    with CheckpointManager(directory / "room", world_size="auto", max_host_memory=most) as mgr:
        state = {f"own{rank}": torch.rand(300_000)}
        if rank == 1:
            with pytest.raises(MoonclipError, match="max_host_memory"):
                mgr.save(step=1, model=state)
            mgr.flush()
        else:
            with pytest.raises(SaveFailed, match="rank 1: "):
                mgr.save(step=1, model=state).result(60)
            with pytest.raises(SaveFailed, match="rank 1: "):
                mgr.flush()
        assert mgr.head is None


def damaged(directory: Path, rank: int, world_size: int) -> None:
    """Where the tip has damage that one rank alone would meet, all take the commit before, and save on from there."""
    del world_size
    packs = directory / "damaged" / "packs"
    own = f"own{rank}"
    with CheckpointManager(directory / "damaged", world_size="auto") as mgr:
        states = [torch.rand(70_000) for _ in range(2)]
        first = mgr.save(step=1, **{own: states[0]}).result(60)
        dist.barrier()
        before = set(packs.iterdir())
        dist.barrier()
        mgr.save(step=2, **{own: states[1]}).result(60)
        assert mgr.load()[own].equal(states[1])
        dist.barrier()
        if rank == 0:
            large = [path for path in packs.iterdir() if path not in before and path.stat().st_size > 100_000]
            assert len(large) == 2
            data = bytearray(large[0].read_bytes())
            data[50_000:50_100] = bytes(100)
            large[0].write_bytes(data)
    dist.barrier()
    with CheckpointManager(directory / "damaged", world_size="auto") as mgr:
        target = torch.zeros(70_000)
        assert mgr.resume(**{own: target}) == 2
        assert target.equal(states[0])
        assert mgr.resumed is not None
        assert mgr.resumed.commit == first
        assert len(mgr.resumed.skipped) == 1
        assert mgr.save(step=2, **{own: target}).result(60) == mgr.head


def outdated(directory: Path, rank: int, world_size: int) -> None:
    """What one rank stored is gone when it is to be published: that rank stores it again, and the save succeeds."""
    talk = Talk(Group(world_size, rank))
    root = directory / "outdated"
    opened: list[tuple[Repository, Snapshot]] = []

    def begin() -> str:
        repo = Repository.init(root)
        opened.append((repo, repo.create_snapshot(SaveRequest((), branch="main"), world_size)))
        return opened[0][1].id

    snapshot_id = talk.decide(begin)
    given = TensorInput(rank, "uint8", (5000,), memoryview(os.urandom(5000)))
    item = RankItem("model", {"": ContainerInput(0, "dict"), f"own{rank}": given})
    verdicts: list[Verdict] = []
    with closing(Threads(1)) as threads:
        part = RankPart(root, snapshot_id, rank, lambda _: [item], None, threads, Files())
        if rank:
            follow(talk.group, 0, part, verdicts.append, Verdict("main", None))
        else:
            [(repo, snapshot)] = opened
            commits: list[CommitId] = []
            lost: list[Path] = []

            def publish() -> None:
                if not lost:
                    stored = read_parts(root, repo.files, snapshot_id, world_size)[1]
                    lost.extend(pack_path(repo.layout.packs, pack) for pack in stored.packs)
                    for path in lost:
                        path.unlink()
                commits.append(snapshot.finalize())

            with repo, snapshot:
                lead(
                    talk.group,
                    0,
                    part,
                    publish,
                    lambda error: Verdict("main", None, None if error else commits[0], error),
                    verdicts.append,
                    Verdict("main", None),
                )
            assert lost
    assert verdicts[0].error is None
    assert verdicts[0].commit is not None


def killed(directory: Path, rank: int, world_size: int) -> None:
    """The last rank is killed at one of several points; the others fail, soon, and what was committed stays."""
    point = os.environ["POINT"]
    is_victim = rank == world_size - 1 if point != "leader" else rank == 0
    mgr = CheckpointManager(directory / "killed", world_size="auto", branch=point)
    state = {"w": torch.full((2_000_000,), 1.0), f"own{rank}": torch.rand(100_000)}
    assert mgr.save(step=1, model=state).result(60) == mgr.head
    dist.barrier()
    if is_victim and point == "before":
        os.kill(os.getpid(), signal.SIGKILL)
    try:
        future = mgr.save(step=2, model={**state, "w": torch.rand(2_000_000)})
        if is_victim:
            os.kill(os.getpid(), signal.SIGKILL)
        future.result(60)
    except (RankLost, SaveFailed) as error:
        print(f"learned: {error}", flush=True)
        os._exit(0)
    print("published", flush=True)
    os._exit(0)


def destroyed(directory: Path, rank: int, world_size: int) -> None:
    """The last save survives the group's end, and many saves without waiting do not get in each other's way."""
    del world_size
    mgr = CheckpointManager(directory / "last", world_size="auto")
    futures = [mgr.save(step=step, model={f"own{rank}": torch.rand(2000), "w": torch.ones(500)}) for step in range(8)]
    dist.destroy_process_group()
    assert len({future.result(60) for future in futures}) == 8
    mgr.save(step=8, model={f"own{rank}": torch.rand(2000)})


if __name__ == "__main__":
    rank, world_size = int(sys.argv[2]), int(sys.argv[3])
    rendezvous = f"file://{sys.argv[1]}/rendezvous-{'-'.join(sys.argv[3:])}-{os.environ.get('POINT', '')}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    for what in sys.argv[4:]:
        globals()[what](Path(sys.argv[1]), rank, world_size)
    if dist.is_initialized():
        dist.destroy_process_group()
    print("done", flush=True)
