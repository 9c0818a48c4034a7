"""One rank of a real group whose manager has options. Run by ``test_rank_options.py``, as ``save_rank.py`` is."""

import os
import sys
import threading
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed as dist
from torch import nn
from torch.distributed.device_mesh import init_device_mesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor

from moonclip import CheckpointManager, Incompatible, Keep, MoonclipError, SaveFailed
from moonclip.ranks.choosing import Publisher
from moonclip.ranks.group import Group
from moonclip.ranks.saving import RankPart, Verdict, follow, lead
from moonclip.ranks.talk import Talk
from moonclip.saving.reports import Event
from store.disk.files import Files
from store.parallel import Threads
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.saving.shards import RankItem
from store.saving.snapshots import Snapshot
from tests.distributed.load_rank import network, optimizer_of, train
from tests.gating import GatedThreads

CASTS: dict[str, Any] = {
    "bf16": "bf16",
    "fp8": "fp8_e4m3",
    "rows": "fp8_e5m2_rows",
    "mixed": {"model/*.bias": "none", "model/*": "fp8_e4m3", "*/exp_avg": "bf16", "*/exp_avg_sq": "fp8_e5m2"},
}


def wide() -> nn.Module:
    """Rows of 1,100, which get scales of their own; one of them dwarfs all others."""
    torch.manual_seed(3)
    module = nn.Linear(1100, 700)
    with torch.no_grad():
        module.weight[699] *= 1000
    return module


def trained(model: nn.Module) -> torch.optim.Optimizer:
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    for number in range(2):
        for parameter in model.parameters():
            torch.manual_seed(number)
            full = torch.randn(parameter.shape)
            grad = full
            if isinstance(parameter, DTensor):
                start = parameter.shape[0] // dist.get_world_size() * dist.get_rank()
                local = full[start : start + parameter.to_local().shape[0]]
                grad = DTensor.from_local(local, parameter.device_mesh, parameter.placements)
            parameter.grad = grad
        optimizer.step()
    return optimizer


def casts(directory: Path, rank: int, world_size: int) -> None:
    """Two saves, the second one compared with the first, of a model that is sharded and of one that is replicated."""
    del rank, world_size
    for name, asked in CASTS.items():
        for kind in ("fsdp", "copies"):
            model = fully_shard(wide()) if kind == "fsdp" else wide()
            with CheckpointManager(
                directory / "casts", branch=f"{name}-{kind}", world_size="auto", save_dtype=asked
            ) as mgr:
                optimizer = trained(model)
                for step in range(2):
                    mgr.save(step=step, model=model, optimizer=optimizer, plain={"n": torch.tensor([70001])})
                mgr.flush()
    model = fully_shard(wide())
    with CheckpointManager(directory / "casts", branch="mixed-fsdp", world_size="auto") as mgr:
        assert mgr.resume(model=model, optimizer=trained(model)) == 2


def infinite(directory: Path, rank: int, world_size: int) -> None:
    """A number on one rank that no float of one byte can stand for keeps all ranks from casting that tensor."""
    del world_size
    full = torch.arange(2000.0).reshape(2, 1000)
    if rank == 1:
        full[1, 3] = float("inf")
    with CheckpointManager(directory / "infinite", world_size="auto", save_dtype="fp8_e4m3") as mgr:
        mgr.save(model=fully_shard(nn.Linear(4, 4)), **{f"own{rank}": full}).result(60)
        module = nn.Module()
        module.weight = nn.Parameter(torch.full((2, 1000), 3.0))
        sharded: Any = fully_shard(module)
        with torch.no_grad():
            sharded.weight.to_local().copy_(full[rank : rank + 1])
        mgr.save(model=sharded).result(60)
        loaded = mgr.load()["model"]["weight"]
        assert loaded[0].equal(torch.arange(1000.0))
        assert loaded[1, 3].isinf()


def kept(directory: Path, rank: int, world_size: int) -> None:
    """A policy that rank 0 applies after each save."""
    del rank, world_size
    with CheckpointManager(directory / "kept", world_size="auto", keep=Keep(last=2)) as mgr:
        for step in range(6):
            mgr.save(step=step, model={"w": torch.full((300,), float(step))})
        mgr.flush()


def pushed(directory: Path, rank: int, world_size: int) -> None:
    """Rank 0 pushes what all have saved; of what a remote has, an empty store is filled for all."""
    del world_size
    remote = directory / "remote"
    with CheckpointManager(directory / "pushed", world_size="auto", remote=remote, push_every=2) as mgr:
        model: Any = fully_shard(network())
        optimizer = optimizer_of(model)
        for step in range(3):
            train(model, optimizer, step, step + 1)
            mgr.save(step=step, model=model, optimizer=optimizer, **{f"own{rank}": torch.full((300,), float(rank))})
    dist.barrier()
    with CheckpointManager(directory / "brought", world_size="auto", remote=remote) as mgr:
        again: Any = fully_shard(network())
        own = torch.zeros(300)
        assert mgr.resume(model=again, optimizer=optimizer_of(again), **{f"own{rank}": own}) == 3
        assert own.eq(rank).all()
        assert None not in mgr._staging._arenas  # ready for the first save
        assert all(
            one.to_local().equal(other.to_local())
            for one, other in zip(again.parameters(), model.parameters(), strict=True)
        )
        mgr.save(step=3, model=again).result(60)
        if rank == 0:
            assert mgr.push().changes
        else:
            with pytest.raises(Incompatible, match="on rank 0"):
                mgr.push()


def gated(mgr: CheckpointManager) -> GatedThreads:
    """What copies for a manager; it stands at a gate until that is opened."""
    threads = GatedThreads(1)
    mgr._staging._threads = threads
    return threads


def overlapped(directory: Path, rank: int, world_size: int) -> None:
    """Copied while training goes on: the next step waits, and what is altered otherwise fails the save of all."""
    del world_size
    sharded: Any = fully_shard(wide())
    copies = wide()
    optimizers = [torch.optim.AdamW(model.parameters(), lr=0.1) for model in (sharded, copies)]
    items = {"sharded": sharded, "copies": copies, "first": optimizers[0], "second": optimizers[1]}

    def backward() -> None:
        for model in (sharded, copies):
            torch.manual_seed(1)
            model(torch.randn(4, 1100)).square().mean().backward()

    def step() -> None:
        for optimizer in optimizers:
            optimizer.step()
            optimizer.zero_grad()

    with (
        CheckpointManager(directory / "overlapped", world_size="auto", capture="overlap") as mgr,
        closing(gated(mgr)) as threads,
    ):
        backward()
        step()
        for number in range(3):
            weights = sharded.weight.full_tensor(), copies.weight.detach().clone()
            threads.gate.clear()
            future = mgr.save(step=number, **items)
            backward()
            assert not future.done()
            threads.gate.set()
            step()
            future.result(60)
            loaded = mgr.load()
            assert loaded["sharded"]["weight"].equal(weights[0])
            assert loaded["copies"]["weight"].equal(weights[1])
            assert not sharded.weight.full_tensor().equal(weights[0])
        for model in (sharded, copies):
            threads.gate.clear()
            future = mgr.save(step=9, **items)
            if rank == 1 or model is copies:  # of which one rank alone writes each part
                with torch.no_grad():
                    (model.weight.to_local() if model is sharded else model.weight).mul_(2)
            dist.barrier()
            threads.gate.set()
            name = "sharded::weight" if model is sharded else "copies::weight"
            with pytest.raises(SaveFailed, match=rf"{name} \(part \d\) was altered before it had been copied"):
                future.result(60)
            with pytest.raises(SaveFailed, match="step 9"):
                mgr.flush()
        assert [row.step for row in mgr.log()] == [2, 1, 0]
        with mgr.lock(), torch.no_grad():
            sharded.weight.mul_(2)
        mgr.save(step=3, **items).result(60)
        assert mgr.load()["sharded"]["weight"].equal(sharded.weight.full_tensor())


def frozen(directory: Path, rank: int, world_size: int) -> None:
    """What is frozen and seems to be as it was is not copied again; with a scale to find, it is."""
    del world_size
    for capture, cast in (("copy", "none"), ("overlap", "bf16"), ("copy", "fp8_e4m3")):
        base: Any = fully_shard(wide())
        base.requires_grad_(False)
        copies = wide().requires_grad_(False)
        head = nn.Linear(30, 10)
        items = {"base": base, "copies": copies, "head": head}
        root = directory / f"frozen-{cast}"
        options: dict[str, Any] = {"capture": capture, "save_dtype": cast, "skip_unmodified": True}
        with CheckpointManager(root, world_size="auto", **options) as mgr:
            mgr.prewarm(**items)
            spare = mgr._staging._arenas[0]
            assert spare is not None and mgr._staging._pages.made_bytes(spare) > 0
            first = mgr.save(step=0, **items)
            first.result(60)
            with torch.no_grad():
                head.weight.add_(1)
            second = mgr.save(step=1, **items)
            second.result(60)
            third = mgr.save(step=2, **items)
            third.result(60)
            with torch.no_grad():
                base.weight.add_(1)
            fourth = mgr.save(step=3, **items)
            fourth.result(60)
            looked_at = [future.counts.raw_bytes for future in (first, second, third, fourth)]
            if cast == "fp8_e4m3":
                assert len(set(looked_at)) == 1
            else:
                assert looked_at[1] == looked_at[2] < looked_at[0] / 100
                assert looked_at[2] < looked_at[3] <= looked_at[0]
            trees = [
                mgr._repo.commit(mgr._repo.resolve(f"step:{number}", mgr.bound_branch)).items for number in range(4)
            ]
            assert trees[0]["base"] == trees[1]["base"] == trees[2]["base"] != trees[3]["base"]
            assert trees[0]["copies"] == trees[3]["copies"]
            if cast == "none":
                assert mgr.load()["base"]["weight"].equal(base.weight.full_tensor())


def copied(directory: Path, rank: int, world_size: int) -> None:
    """G4: copies that differ between ranks are refused if somebody asks for that, and go unseen if nobody does."""
    mesh = init_device_mesh("cpu", (2, world_size // 2), mesh_dim_names=("outer", "inner"))
    hsdp: Any = fully_shard(wide(), mesh=mesh)
    plain = {"w": torch.ones(2_000_000), "lr": 0.5, "list": [torch.zeros(3), "text"]}
    items = {"hsdp": hsdp, "plain": plain}
    with CheckpointManager(directory / "copied", world_size="auto", check_replicas=True, per_rank=["own"]) as mgr:
        first = mgr.save(step=0, own={"rank": rank}, **items).result(60)
        wrong = {**plain, "lr": 0.5 + rank // 3}
        with pytest.raises(Incompatible, match=r"plain::lr is not the same on ranks 0, 1, 2 and 3\n"):
            mgr.save(step=1, hsdp=hsdp, plain=wrong)
        with torch.no_grad():
            plain["w"][-1] += rank == 1
            before = hsdp.bias.to_local().clone()
            hsdp.bias.to_local().add_(int(rank == 2))
        with pytest.raises(Incompatible) as refused:
            mgr.save(step=1, **items)
        assert "plain::w is not the same on ranks 0, 2, 3 and 1" in str(refused.value)
        assert "hsdp::bias [0:350] is not the same on ranks 0 and 2" in str(refused.value)
        assert mgr.head == first
        with torch.no_grad():
            plain["w"][-1] = 1
            hsdp.bias.to_local().copy_(before)
        assert mgr.save(step=1, **items).result(60) == mgr.head
    with CheckpointManager(directory / "copied", world_size="auto") as mgr:
        mgr.save(step=2, plain={"w": torch.full((3,), float(rank))}).result(60)
        assert mgr.load()["plain"]["w"].eq(0).all()


def visible(directory: Path, rank: int, world_size: int) -> None:
    """B8: without ``async_save`` a commit is to be seen by each rank as soon as its own ``save`` returns."""
    del world_size
    events: list[Event] = []
    with CheckpointManager(directory / "visible", world_size="auto", async_save=False, on_event=events.append) as mgr:
        for step in range(3):
            future = mgr.save(step=step, **{f"own{rank}": torch.full((300,), float(step))})
            assert future.done()
            with Repository.open(directory / "visible", read_only=True) as repo:
                assert repo.resolve("main").hex() == future.result() == mgr.head
                assert set(repo.commit(repo.resolve("main")).items) == {"own0", "own1"}
            assert mgr.load()[f"own{1 - rank}"].eq(step).all()
            dist.barrier()
    assert [event.kind for event in events] == ["save", "load"] * 3  # B34, on each rank
    assert all(event.given_bytes and event.commit and not event.error for event in events)


def untold(directory: Path, rank: int, world_size: int) -> None:
    """B20: what ends one rank's part is told to all while others still store theirs, and nothing is published."""
    talk = Talk(Group(world_size, rank))
    root = directory / "untold"
    opened: list[tuple[Repository, Snapshot]] = []

    def begin() -> str:
        repo = Repository.init(root)
        opened.append((repo, repo.create_snapshot(SaveRequest((), branch="main"), world_size)))
        return opened[0][1].id

    snapshot_id = talk.decide(begin)
    is_told = threading.Event()
    verdicts: list[Verdict] = []

    def tell(verdict: Verdict) -> None:
        verdicts.append(verdict)
        is_told.set()

    def items(_: bool) -> list[RankItem]:
        if rank == 1:
            raise OSError(28, "no room on rank 1")
        assert is_told.wait(60), "told only when all had stored"
        return []

    with closing(Threads(1)) as threads:
        part = RankPart(root, snapshot_id, rank, items, None, threads, Files())
        if rank:
            follow(talk.group, 0, part, tell, Verdict("main", None))
        else:
            [(repo, snapshot)] = opened
            with repo, snapshot:
                lost = Verdict("main", None)
                lead(talk.group, 0, part, snapshot.finalize, lambda error: lost._replace(error=error), tell, lost)
                assert repo.refs.list() == {}
    [verdict] = verdicts
    assert verdict.commit is None
    assert "no room on rank 1" in str(verdict.error)


def misjudged(directory: Path, rank: int, world_size: int) -> None:
    """B20: where rank 0 cannot say what follows, all are told why, and the next save is made."""
    with CheckpointManager(directory / "misjudged", world_size="auto") as mgr:
        for number, is_refused in enumerate((False, True)):
            with pytest.MonkeyPatch.context() as patch:
                patch.setattr(Publisher, "judge", _fail)
                if is_refused:
                    patch.setattr(Publisher, "publish", _refuse)
                error = mgr.save(step=number, model=wide()).exception(60)
            assert "no room to say" in str(error) or is_refused, error
            assert "not this one" in str(error) or not is_refused, error
            with pytest.raises(SaveFailed):
                mgr.flush()
        assert mgr.save(step=2, model=wide()).result(60) == mgr.head


def _fail(_: Publisher, __: BaseException | None) -> Verdict:
    raise OSError(28, "no room to say")


def _refuse(_: Publisher) -> None:
    raise OSError(28, "not this one")


def closed(directory: Path, rank: int, world_size: int) -> None:
    """Managers that were closed, but not dropped, hold neither sockets nor threads."""
    managers, held = [], []
    for number in range(20):
        mgr = CheckpointManager(directory / "closed", world_size="auto")
        mgr.save(step=number, model={"w": torch.ones(3)}).result(60)
        mgr.close()
        managers.append(mgr)
        with pytest.raises(MoonclipError, match="closed"):
            mgr.should_stop  # noqa: B018
        held.append(tuple(len(list(Path(f"/proc/self/{what}").iterdir())) for what in ("fd", "task")))
    assert all(last - first < 10 for first, last in zip(held[3], held[-1], strict=True)), held  # of 16 managers


LAYERS = 4


class Stage(nn.Module):
    """Some layers of a model, called as the whole model calls them."""

    def __init__(self, start: int, stop: int) -> None:
        super().__init__()
        for number in range(start, stop):
            torch.manual_seed(number)
            self.add_module(f"layer{number}", nn.Linear(40, 40))


def stage(rank: int, world_size: int) -> tuple[Stage, torch.optim.Optimizer]:
    """One of several stages, and an optimizer of two groups: weights and biases."""
    model = Stage(LAYERS * rank // world_size, LAYERS * (rank + 1) // world_size)
    weights = [each for name, each in model.named_parameters() if name.endswith("weight")]
    biases = [each for name, each in model.named_parameters() if name.endswith("bias")]
    return model, torch.optim.AdamW([{"params": weights, "lr": 0.1}, {"params": biases}], lr=0.3)


def step_stage(model: nn.Module, optimizer: torch.optim.Optimizer, number: int) -> None:
    """A step whose gradients depend on a parameter's name, and not on who has it."""
    for name, parameter in model.named_parameters():
        torch.manual_seed(number + sum(name.encode()))
        parameter.grad = torch.randn(parameter.shape)
    optimizer.step()


def require_stage(model: nn.Module, optimizer: torch.optim.Optimizer, steps: int) -> None:
    """That a stage is what so many steps make of it."""
    whole, other = stage(0, 1)
    for number in range(steps):
        step_stage(whole, other, number)
    expected = dict(whole.named_parameters())
    for name, parameter in model.named_parameters():
        assert parameter.equal(expected[name]), name
        for key, value in optimizer.state[parameter].items():
            assert value.equal(other.state[expected[name]][key]), (name, key)
    assert [group["lr"] for group in optimizer.param_groups] == [0.1, 0.3]


def stages(directory: Path, rank: int, world_size: int) -> None:
    """Save as stages, twice; then as other stages what other numbers of them have saved."""
    model, optimizer = stage(rank, world_size)
    how: dict[str, Any] = {"branch": f"by{world_size}", "world_size": "auto", "check_replicas": True}
    with CheckpointManager(directory / "stages", **how) as mgr:
        for number in range(2):
            step_stage(model, optimizer, number)
            mgr.save(step=number, model=model, optimizer=optimizer)
        mgr.flush()
        tensors = mgr.load()["optimizer"]["state"]
        assert set(tensors) == {f"layer{number}.{kind}" for number in range(LAYERS) for kind in ("weight", "bias")}
        with pytest.raises(Incompatible, match=r"layer9.weight: missing in the commit"):
            mgr.load(into={"model": {"layer9.weight": torch.zeros(40, 40)}})
        for branch in sorted(mgr.branches()):
            model, optimizer = stage(world_size - 1 - rank, world_size)
            steps = {2: 2, 4: 3}[mgr.resume(branch=branch, model=model, optimizer=optimizer)]
            require_stage(model, optimizer, steps)
            step_stage(model, optimizer, steps)
            require_stage(model, optimizer, steps + 1)
            mgr.load(branch, into={"model": Stage(0, LAYERS)})
        few = Stage(0, 1)
        with pytest.raises(Incompatible, match=r"model::layer1.bias: in the commit, but not in the target"):
            mgr.load(into={"model": few})
        unnamed = torch.optim.SGD([torch.nn.Parameter(torch.zeros(2)) for _ in range(rank + 1)])
        with pytest.raises(Incompatible, match="nothing says what those of rank 0 are called"):
            mgr.save(step=3, optimizer=unnamed)
        assert mgr.save(step=3, model=model, optimizer=optimizer).result(60) == mgr.head


if __name__ == "__main__":
    rank, world_size = int(sys.argv[2]), int(sys.argv[3])
    rendezvous = f"file://{sys.argv[1]}/options-{world_size}-{os.environ.get('POINT', '')}"
    dist.init_process_group("gloo", init_method=rendezvous, rank=rank, world_size=world_size)
    for what in sys.argv[4:]:
        globals()[what](Path(sys.argv[1]), rank, world_size)
    dist.destroy_process_group()
    print("done", flush=True)
    os._exit(0)  # torch's own threads, of many groups, now and then abort an interpreter that ends
