"""torch's distributed checkpointing on a store: what others do meanwhile, what is read, and odd modules."""

import gc
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
import torch
import torch.distributed.checkpoint as dcp
from click.testing import CliRunner
from torch import nn
from torch.distributed.checkpoint import CheckpointException, DefaultLoadPlanner, DefaultSavePlanner
from torch.distributed.checkpoint.planner import SavePlan
from torch.distributed.checkpoint.state_dict import get_state_dict, set_state_dict
from torch.distributed.tensor import Replicate, Shard
from torch.distributed.tensor.placement_types import _StridedShard

from moonclip import CheckpointManager
from moonclip.cli.app import commands
from moonclip.dcp import StorageReader, StorageWriter
from moonclip.dcp.kept import _kept, forget
from moonclip.dcp.layout import Layout, together
from moonclip.dcp.reader import _read
from moonclip.loading.reading import planned
from moonclip.state.tensors import writable_bytes
from store.errors import Conflict, PartsOutdated, Pruned
from store.fsck import fsck
from store.gc import collect
from store.reading.retrieve import gather
from store.repository import Repository
from store.upkeep.retention import Keep
from tests.arrays import damage
from tests.collecting import forget_branch
from tests.ranks import rank_of, spread

pytestmark = pytest.mark.filterwarnings("ignore:torch.distributed is", "ignore:TypedStorage is deprecated")

ROWS, WIDTH = 1536, 1024  # 6 MB in chunks of 0.75


@pytest.fixture
def root(tmp_path: Path) -> Iterator[Path]:
    yield tmp_path / "store"
    for _, root, branch in list(_kept):
        forget(root, branch)


def load(state: dict[str, Any], root: Path, rev: str | None = None) -> None:
    dcp.load(state, storage_reader=StorageReader(root, rev), no_dist=True)


def wide_store(root: Path) -> torch.Tensor:
    torch.manual_seed(1)
    full = torch.randn(ROWS, WIDTH)
    dcp.save({"model": {"w": full}}, storage_writer=StorageWriter(root))
    return full


def planned_for(state: dict[str, Any], **options: Any) -> SavePlan:
    planner = DefaultSavePlanner(**options)
    planner.set_up_planner(state, is_coordinator=True)
    return planner.create_local_plan()


def test_what_one_rank_has_decides_what_all_of_them_call_it() -> None:
    bare = planned_for({"fc.weight": torch.ones(2), "optim": {"state": {"0": {"m": torch.ones(2)}}}})
    named = planned_for({"model": {"w": torch.ones(2)}, "optim": {"param_groups": [{"params": [0]}]}})
    assert Layout(bare.planner_data).kind == "bare"
    again = SavePlan([], usable=False)  # torch's word for one that it uses again
    layouts = [Layout(plan.planner_data) for plan in together([bare, again, named])]
    for layout in (layouts[0], layouts[2]):
        assert (layout.kind, layout.numbered) == (None, {"optim"})
        assert layout.name("fc.weight") == ("fc.weight", "")
    assert together([bare, named])[0].items == bare.items
    flat = planned_for({"model": {"w": torch.ones(2)}}, flatten_state_dict=False)
    assert together([bare, flat]) == [bare, flat]


# --- others, meanwhile --------------------------------------------------------------------------------------------


class Meddling(DefaultSavePlanner):
    """Somebody else commits to the branch between the plan and the end of a save."""

    root: Path

    def finish_plan(self, new_plan: SavePlan) -> SavePlan:
        with CheckpointManager(self.root) as mgr:
            mgr.save(None, {"step": 99}).result(60)
        return super().finish_plan(new_plan)


def test_a_branch_that_moved_meanwhile_keeps_both_and_the_next_save_goes_on(root: Path) -> None:
    writer = StorageWriter(root)
    dcp.save({"step": 1}, storage_writer=writer)
    planner = Meddling()
    planner.root = root
    with pytest.raises(CheckpointException) as caught:
        dcp.save({"step": 2}, checkpoint_id="second", storage_writer=writer, planner=planner)
    error = caught.value.failures[0][0]
    assert isinstance(error, Conflict)
    kept = error.details["kept"]
    dcp.save({"step": 3}, storage_writer=writer)
    steps = []
    for rev in ("main", "main~1", "main~2", kept):
        state = {"step": 0}
        load(state, root, rev)
        steps.append(state["step"])
    assert steps == [3, 99, 1, 2]
    with Repository.open(root) as repo:
        assert not repo.refs.names("tags/")
        assert fsck(repo, full=True).clean


def test_what_was_removed_since_the_last_save_is_told_and_then_stored_again(root: Path) -> None:
    state = {"model": {"w": torch.randn(1000, 300)}}
    writer = StorageWriter(root, branch="exp")
    dcp.save(state, storage_writer=writer)
    with Repository.open(root) as repo:
        forget_branch(repo, "exp")
        collect(repo)
    with pytest.raises(CheckpointException) as caught:
        dcp.save(state, storage_writer=writer)
    error = caught.value.failures[0][0]
    assert isinstance(error, PartsOutdated)
    assert "Save again" in str(error)
    del caught, error
    dcp.save(state, storage_writer=writer)
    target = {"model": {"w": torch.zeros(1000, 300)}}
    load(target, root, "exp")
    assert torch.equal(target["model"]["w"], state["model"]["w"])
    with Repository.open(root) as repo:
        assert fsck(repo, full=True).clean


def test_items_that_were_pruned_are_in_nobodys_way(root: Path) -> None:
    writer = StorageWriter(root)
    for number in range(2):
        dcp.save(
            {"model": {"w": torch.ones(300)}, "optim": {"m": torch.randn(300)}, "n": number}, storage_writer=writer
        )
    with CheckpointManager(root) as mgr:
        assert mgr.prune(items=["optim"], older_than=0)
    state = {"model": {"w": torch.zeros(300)}, "n": 9}
    load(state, root, "main~1")
    assert state["model"]["w"].all()
    assert state["n"] == 0
    with CheckpointManager(root) as mgr:
        assert mgr.prune(Keep(last=1))
    with pytest.raises(Pruned):
        StorageReader(root, "main~1").read_metadata()


def test_what_a_lazy_clone_lacks_is_fetched(root: Path, tmp_path: Path) -> None:
    state = {"model": {"w": torch.randn(600, 300)}, "n": bytes(9000)}
    dcp.save(state, storage_writer=StorageWriter(root))
    (tmp_path / "remote").mkdir()
    with CheckpointManager(root, remote=tmp_path / "remote") as mgr:
        mgr.push()
    arguments = ["clone", "--lazy", str(tmp_path / "remote"), str(tmp_path / "lazy")]
    assert CliRunner().invoke(commands, arguments).exit_code == 0
    loaded = {"model": {"w": torch.zeros(600, 300)}, "n": b""}
    load(loaded, tmp_path / "lazy")
    assert torch.equal(loaded["model"]["w"], state["model"]["w"])
    assert loaded["n"] == state["n"]


class Failing(DefaultSavePlanner):
    """Fails once everything is stored, and before it is published."""

    def create_global_plan(self, all_plans: list[SavePlan]) -> Any:
        made = super().create_global_plan(all_plans)
        self.metadata.state_dict_metadata["nobody has it"] = self.metadata.state_dict_metadata["model.w"]
        return made


def test_gc_takes_what_a_save_left_that_failed_at_its_end(root: Path) -> None:
    dcp.save({"model": {"w": torch.ones(300)}}, storage_writer=StorageWriter(root))
    with pytest.raises(CheckpointException):
        dcp.save({"model": {"w": torch.randn(900, 900)}}, storage_writer=StorageWriter(root), planner=Failing())
    gc.collect()
    with Repository.open(root) as repo:
        collect(repo)
        assert sum(path.stat().st_size for path in repo.layout.packs.iterdir()) < 20_000
        assert list(repo.layout.parts.iterdir()) == []
        assert fsck(repo, full=True).findings == []


# --- how much is read ---------------------------------------------------------------------------------------------


def test_g10_a_rank_reads_its_shard_and_no_chunk_of_others(root: Path) -> None:
    full = wide_store(root)
    with Repository.open(root) as repo:
        entry: Any = repo.tree(repo.commit(repo.resolve("main")), "model")["w"]
        for copy in range(len(repo.index.places(entry.chunks[-1]))):
            damage(repo, entry.chunks[-1], copy)
    for rank in range(4):
        with rank_of(rank, 4) as mesh:
            target = spread(torch.zeros_like(full), mesh, (Shard(0),))
            if rank == 3:
                with pytest.raises(CheckpointException, match="Corrupt"):
                    load({"model": {"w": target}}, root)
            else:
                load({"model": {"w": target}}, root)
                assert torch.equal(target.to_local(), full.chunk(4)[rank])


@pytest.mark.parametrize(("ranks", "dim"), [(2, 0), (4, 0), (3, 0), (4, 1)])
def test_g10_bytes_that_a_rank_reads(root: Path, ranks: int, dim: int) -> None:
    full = wide_store(root)
    for rank in range(ranks):
        with rank_of(rank, ranks) as mesh:
            target = spread(torch.zeros_like(full), mesh, (Shard(dim),))
            reader, planner = StorageReader(root), DefaultLoadPlanner()
            planner.set_up_planner({"model": {"w": target}}, reader.read_metadata(), is_coordinator=True)
            plan = reader.prepare_local_plan(planner.create_local_plan())
            (item,) = plan.items
            read = _read(reader._begun, planner, item, planner.resolve_tensor(item))
            memory = writable_bytes(read.tensor)
            assert memory is not None
            copies = planned(read.entry, tuple(read.tensor.shape), read.parts, memory)
            chunk_bytes = sum(each.chunk_bytes for each in gather(copies))
            # Columns are spread over all chunks of the tensor's one piece.
            most = target.to_local().nbytes * 1.1 + 2 * max(read.entry.cuts) if dim == 0 else full.nbytes
            assert target.to_local().nbytes <= chunk_bytes <= most
            reader.read_data(plan, planner)
            assert torch.equal(target.to_local(), spread(full, mesh, (Shard(dim),)).to_local())


def test_b22_targets_that_torch_takes_for_something_else_are_refused(root: Path) -> None:
    dcp.save({"model": {"w": torch.arange(24.0)}}, storage_writer=StorageWriter(root))
    with rank_of(1, 2) as mesh:
        target = spread(torch.zeros(24), mesh, (_StridedShard(0, split_factor=3),))
        with pytest.raises(CheckpointException, match="knows no such layout"):
            load({"model": {"w": target}}, root)
        assert not target.to_local().any()


def test_b33_two_ranks_shards_become_whole_tensors_on_one(root: Path) -> None:
    full = wide_store(root)
    with rank_of(0, 1) as mesh:
        target = spread(torch.zeros_like(full), mesh, (Replicate(),))
        load({"model": {"w": target}}, root)
        assert torch.equal(target.to_local(), full)


# --- modules and optimizers ---------------------------------------------------------------------------------------


class WithExtras(nn.Module):
    """Has state that is no parameter, and two names for one."""

    def __init__(self, extra: object) -> None:
        super().__init__()
        self.embed = nn.Embedding(40, 30)
        self.head = nn.Linear(30, 40, bias=False)
        self.head.weight = self.embed.weight
        self.norm = nn.BatchNorm1d(30)
        self.extra = extra

    def get_extra_state(self) -> object:
        return self.extra

    def set_extra_state(self, state: object) -> None:
        self.extra = state

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        made: torch.Tensor = self.head(self.norm(self.embed(x)))
        return made


@pytest.mark.parametrize("extra", [{"amax": torch.arange(3.0), "n": 2}, torch.arange(4.0), "text", (1, torch.ones(2))])
def test_extra_state_and_shared_parameters(root: Path, extra: Any) -> None:
    torch.manual_seed(0)
    model, other = WithExtras(extra), WithExtras(extra)
    model(torch.arange(5))
    dcp.save({"model": model.state_dict()}, storage_writer=StorageWriter(root))
    state = {"model": other.state_dict()}
    load(state, root)
    other.load_state_dict(state["model"])
    assert repr(other.extra) == repr(extra)
    assert other.head.weight is other.embed.weight
    for one, same in zip(model.state_dict().values(), other.state_dict().values(), strict=True):
        assert repr(one) == repr(same)


def test_b23_an_optimizer_goes_on_whoever_loads_it(root: Path) -> None:
    torch.manual_seed(0)
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 2))
    optimizer = torch.optim.AdamW(model.parameters(), lr=0.02)
    step(model, optimizer)
    state = dict(zip(("model", "optim"), get_state_dict(model, optimizer), strict=True))
    dcp.save(state, storage_writer=StorageWriter(root))
    step(model, optimizer)
    by_torch = fresh()
    state = dict(zip(("model", "optim"), get_state_dict(*by_torch), strict=True))
    load(state, root)
    set_state_dict(*by_torch, model_state_dict=state["model"], optim_state_dict=state["optim"])
    by_manager = fresh()
    with CheckpointManager(root) as mgr:
        mgr.load(into={"model": by_manager[0], "optim": by_manager[1]})
    for other in (by_torch, by_manager):
        step(*other)
        torch.testing.assert_close(dict(other[0].state_dict()), dict(model.state_dict()), rtol=0, atol=0)


@pytest.mark.parametrize("steps", [0, 1])
def test_an_optimizers_state_by_number_is_that_of_a_manager(root: Path, steps: int) -> None:
    model, optimizer = fresh()
    for _ in range(steps):
        step(model, optimizer)
    made = dcp.save({"optim": optimizer.state_dict()}, storage_writer=StorageWriter(root)).storage_data
    same = {"optim": fresh()[1]}
    with CheckpointManager(root) as mgr:
        mgr.load(into=same)
        assert repr(same["optim"].state_dict()) == repr(optimizer.state_dict())
        mgr.save("by-manager", {"optim": optimizer}).result(60)
    other = fresh()
    step(*other)
    for rev in (made, "by-manager"):
        state = other[1].state_dict()
        planner = DefaultLoadPlanner(allow_partial_load=not steps)
        dcp.load({"optim": state}, storage_reader=StorageReader(root, rev), planner=planner)
        assert state["param_groups"] == optimizer.state_dict()["param_groups"]
        if steps:
            moments = [each["exp_avg"] for each in optimizer.state_dict()["state"].values()]
            assert all(map(torch.equal, moments, (each["exp_avg"] for each in state["state"].values())))


def fresh() -> tuple[nn.Module, torch.optim.Optimizer]:
    torch.manual_seed(9)
    model = nn.Sequential(nn.Linear(30, 40), nn.Linear(40, 2))
    return model, torch.optim.AdamW(model.parameters(), lr=0.5)


def step(model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
    optimizer.zero_grad()
    loss: Any = model(torch.ones(3, 30)).square().sum()
    loss.backward()
    optimizer.step()
