"""Loading into shards of any layout, each rank of a group in turn, in this process: nothing is communicated.

Such a group has nobody to talk with: what a collective would bring is never set, so a load that used one would show.
"""

from math import prod
from pathlib import Path
from typing import Any

import pytest
import torch
from torch.distributed.device_mesh import DeviceMesh
from torch.distributed.fsdp import fully_shard
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from moonclip import CheckpointManager, Corrupt, Incompatible
from moonclip.loading.reading import planned
from moonclip.sharding.dtensors import shards_of
from moonclip.sharding.layouts import Layout, Split
from moonclip.state.tensors import writable_bytes
from store.format.entries import TensorEntry
from store.reading.retrieve import gather
from store.repository import Repository
from tests.arrays import damage
from tests.ranks import rank_of, spread
from tests.resharding import reshard

DIMS = (1, 5, 6, 7, 10)
COLUMNS = 31
SAVED: dict[str, tuple[tuple[int, ...], tuple[Split | None, ...]]] = {
    "S0 x2": ((2,), (Split(0),)),
    "S0 x4": ((4,), (Split(0),)),
    "S1 x2": ((2,), (Split(1),)),
    "S1 x4": ((4,), (Split(1),)),
    "R x2": ((2,), (None,)),
    "2-D": ((2, 2), (Split(0), Split(1))),
    "strided": ((4,), (Split(0, 2),)),
    "disjoint": ((2,), (Split(1, 3),)),
}
LOADED: dict[str, tuple[tuple[int, ...], tuple[Placement, ...]]] = {
    "S0 x1": ((1,), (Shard(0),)),
    "S0 x2": ((2,), (Shard(0),)),
    "S0 x4": ((4,), (Shard(0),)),
    "S1 x2": ((2,), (Shard(1),)),
    "S1 x4": ((4,), (Shard(1),)),
    "R x4": ((4,), (Replicate(),)),
    "HSDP": ((2, 2), (Replicate(), Shard(0))),
    "2-D": ((2, 2), (Shard(1), Shard(0))),
    "strided": ((2, 2), (_StridedShard(0, split_factor=2), Shard(0))),
    "disjoint": ((4,), (_StridedShard(1, split_factor=3),)),
}


def model_state() -> dict[str, torch.Tensor]:
    """Sizes that no mesh divides; a scalar, an empty and small ones, which sit in the tree."""
    torch.manual_seed(4)
    state = {f"w{rows}": torch.randn(rows, COLUMNS) for rows in DIMS}
    state["big"] = torch.randn(1001, 257)
    state["odd"] = torch.randn(10, 33).to(torch.bfloat16)
    return state


@pytest.fixture(scope="module")
def roots(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Path]:
    """A store for each layout that a state was saved in."""
    found = {}
    for name, (mesh, splits) in {"plain": ((1,), (None,)), **SAVED}.items():
        found[name] = root = tmp_path_factory.mktemp("saved") / "store"
        with CheckpointManager(root, async_save=False, world_size=1) as mgr:
            extra = {"scalar": torch.tensor(3.5), "empty": torch.zeros(0, 4), "step": 7}
            mgr.save(step=7, model={**model_state(), **extra})
        if name != "plain":

            def layout_of(
                _: str, entry: TensorEntry, mesh: tuple[int, ...] = mesh, splits: tuple[Split | None, ...] = splits
            ) -> Layout | None:
                return Layout(entry.shape, mesh, splits) if len(entry.shape) > 1 else None

            reshard(root, layout_of)
    return found


@pytest.mark.parametrize("saved", ["plain", *SAVED])
def test_b21_b22_shards_of_every_layout_are_bit_equal(roots: dict[str, Path], saved: str) -> None:
    expected = model_state()
    with CheckpointManager(roots[saved], world_size=1) as mgr:
        for mesh_shape, placements in LOADED.values():
            for rank in range(prod(mesh_shape)):
                with rank_of(rank, *mesh_shape) as mesh:
                    target: dict[str, Any] = {
                        name: spread(torch.full_like(full, 9), mesh, placements) for name, full in expected.items()
                    }
                    target |= {"scalar": torch.zeros(()), "empty": torch.ones(0, 4), "step": 0}
                    before = dict(target)
                    locals_ = {name: target[name].to_local() for name in expected}
                    mgr.load(into={"model": target})
                    assert (target["step"], float(target["scalar"])) == (7, 3.5)
                    for name, full in expected.items():
                        assert target[name] is before[name]
                        assert target[name].to_local().data_ptr() == locals_[name].data_ptr()
                        assert torch.equal(target[name].to_local(), spread(full, mesh, placements).to_local())


@pytest.mark.parametrize("saved", SAVED)
def test_b33_what_ranks_saved_is_whole_on_one_process(roots: dict[str, Path], saved: str) -> None:
    expected = model_state()
    with CheckpointManager(roots[saved], world_size=1) as mgr:
        whole = mgr.load()["model"]
        blank = {name: torch.zeros_like(full) for name, full in expected.items()}
        mgr.load(into={"model": blank}, strict=False)
        named = mgr.load_tensors(["model::*"])
        lazy = mgr.load(lazy=True)["model"]
        for name, full in expected.items():
            assert torch.equal(whole[name], full)
            assert torch.equal(blank[name], full)
            assert torch.equal(named[f"model::{name}"], full)
            assert torch.equal(lazy[name].load(), full)
        assert torch.equal(lazy["big"][400:777:3, 5:9], expected["big"][400:777:3, 5:9])
        assert torch.equal(torch.stack(list(lazy["w7"])), expected["w7"])


def test_b26_a_shard_is_never_cut_from_another_shape_and_nothing_is_altered(roots: dict[str, Path]) -> None:
    with rank_of(1, 2) as mesh, CheckpointManager(roots["S0 x4"], world_size=1) as mgr:
        target = {
            "w7": spread(torch.zeros(7, COLUMNS), mesh, (Shard(0),)),
            "w6": spread(torch.zeros(8, COLUMNS), mesh, (Shard(0),)),  # this rank's part would fit into what there is
            "w5": spread(torch.zeros(5, 1), mesh, (Shard(0),)),  # and this could be broadcast
            "w10": spread(torch.zeros(10, COLUMNS, dtype=torch.int32), mesh, (Shard(0),)),
            "w1": DTensor.from_local(torch.zeros(1, COLUMNS), mesh, [Partial()], run_check=False),
            "big": DTensor.from_local(
                torch.zeros(3, 257), mesh, [Shard(0)], run_check=False, shape=torch.Size((1001, 257)), stride=(257, 1)
            ),
        }
        with pytest.raises(Incompatible) as refused:
            mgr.load(into={"model": target}, strict=False)
        told = sorted(refused.value.details["problems"])
        assert [problem.split(": ")[0] for problem in told] == [
            f"model::{name}" for name in ("big", "w10", "w1", "w5", "w6")
        ]
        assert "this rank holds [3, 257]" in told[0]
        assert "dtype float32 in the commit, int32 in the target" in told[1]
        assert "Partial(sum) is yet to be summed over ranks" in told[2]
        assert "shape [5, 31] in the commit, [5, 1] in the target" in told[3]
        assert "shape [6, 31] in the commit, [8, 31] in the target" in told[4]
        assert not any(tensor.to_local().any() for tensor in target.values())


def test_b22_a_layout_that_torch_reads_in_two_ways_is_refused(roots: dict[str, Path]) -> None:
    """FSDP over tensor parallelism of seven rows on a mesh of 3 x 2: rows are elsewhere than the placements say."""
    with rank_of(0, 3, 2) as mesh, CheckpointManager(roots["plain"], world_size=1) as mgr:
        target = spread(torch.zeros(7, COLUMNS), mesh, (_StridedShard(0, split_factor=2), Shard(0)))
        with pytest.raises(Incompatible, match=r"model::w7: .* is not where its placements say"):
            mgr.load(into={"model": {"w7": target}}, strict=False)
        assert not target.to_local().any()


def test_b28_parameters_that_require_gradients_and_casts(roots: dict[str, Path]) -> None:
    """Also by way of temporaries: another dtype, and memory that does not lie in C order."""
    expected = model_state()
    with rank_of(1, 2) as mesh, CheckpointManager(roots["S0 x4"], world_size=1) as mgr:
        parameter = torch.nn.Parameter(spread(torch.zeros(7, COLUMNS), mesh, (Shard(0),)))
        half = torch.nn.Parameter(spread(torch.zeros(6, COLUMNS, dtype=torch.float16), mesh, (Shard(0),)))
        turned = DTensor.from_local(
            torch.zeros(COLUMNS, 2).t(),
            mesh,
            [Shard(0)],
            run_check=False,
            shape=torch.Size((5, COLUMNS)),
            stride=(COLUMNS, 1),
        )
        versions = [tensor._version for tensor in (parameter, half, turned)]
        mgr.load(into={"model": {"w7": parameter, "w6": half, "w5": turned}}, strict=False)
        assert torch.equal(parameter.to_local(), expected["w7"][4:])  # type: ignore[attr-defined]
        assert torch.equal(half.to_local(), expected["w6"][3:].half())  # type: ignore[attr-defined]
        assert torch.equal(turned.to_local(), expected["w5"][3:])
        assert parameter.requires_grad
        assert all(now._version > was for now, was in zip((parameter, half, turned), versions, strict=True))


def test_a_rank_outside_the_mesh_reads_nothing(roots: dict[str, Path]) -> None:
    with rank_of(3, 4), CheckpointManager(roots["S0 x4"], world_size=1) as mgr:
        few = DeviceMesh("cpu", [0, 1])
        target = DTensor.from_local(
            torch.zeros(0), few, [Shard(0)], run_check=False, shape=torch.Size((7, COLUMNS)), stride=(COLUMNS, 1)
        )
        mgr.load(into={"model": {"w7": target}}, strict=False)


# --- how much is read ---------------------------------------------------------------------------------------------


ROWS, WIDTH = 1536, 1024  # 6 MB in chunks of 0.75
MOST_OVER = 1.1


def wide_store(root: Path, mesh: tuple[int, ...], splits: tuple[Split | None, ...]) -> torch.Tensor:
    torch.manual_seed(1)
    full = torch.randn(ROWS, WIDTH)
    with CheckpointManager(root, async_save=False, world_size=1) as mgr:
        mgr.save(model={"w": full})
    reshard(root, lambda _, entry: Layout(entry.shape, mesh, splits))
    return full


@pytest.mark.parametrize(("before", "after", "dim"), [(1, 4, 0), (2, 4, 0), (4, 2, 0), (4, 3, 0), (4, 2, 1), (4, 4, 1)])
def test_g10_a_rank_reads_its_shard_and_a_chunk_a_piece(tmp_path: Path, before: int, after: int, dim: int) -> None:
    full = wide_store(tmp_path / "store", (before,), (Split(dim),))
    with Repository.open(tmp_path / "store", read_only=True) as repo:
        entry = repo.tree(repo.commit(repo.resolve("main")), "model")["w"]
        assert isinstance(entry, TensorEntry)
        for rank in range(after):
            with rank_of(rank, after) as mesh:
                target = spread(torch.zeros_like(full), mesh, (Shard(dim),))
                shard_bytes = target.to_local().nbytes
                chunk_bytes = sum(read.chunk_bytes for read in gather(copies_into(entry, target)))
                pieces = -(-before // after) + 1
                assert chunk_bytes <= MOST_OVER * shard_bytes + pieces * max(entry.cuts)
                if dim == 0 and before in {1, 2, 4} and after in {2, 4}:
                    assert chunk_bytes == shard_bytes  # on the grid: not a byte more


def copies_into(entry: TensorEntry, target: DTensor) -> list[Any]:
    found = shards_of(target)
    memory = writable_bytes(found.local)
    assert memory is not None
    return planned(entry, tuple(found.local.shape), found.parts, memory)


def test_g10_chunks_of_others_may_be_gone(tmp_path: Path) -> None:
    """What a load touches, seen from outside: a damaged chunk hurts only those whose shards overlap it."""
    full = wide_store(tmp_path / "store", (4,), (Split(0),))
    with Repository.open(tmp_path / "store", read_only=True) as repo:
        last = repo.tree(repo.commit(repo.resolve("main")), "model")["w"].chunks[-1]
        for copy in range(len(repo.index.places(last))):
            damage(repo, last, copy)
    for rank in range(4):
        with rank_of(rank, 4) as mesh, CheckpointManager(tmp_path / "store", world_size=1) as mgr:
            target = spread(torch.zeros_like(full), mesh, (Shard(0),))
            if rank == 3:
                with pytest.raises(Corrupt):
                    mgr.load(into={"model": {"w": target}})
            else:
                mgr.load(into={"model": {"w": target}})
                assert torch.equal(target.to_local(), full.chunk(4)[rank])


# --- models without memory ----------------------------------------------------------------------------------------


def block() -> Any:
    return torch.nn.Sequential(torch.nn.Linear(30, 23), torch.nn.BatchNorm1d(23), torch.nn.Linear(23, 5))


@pytest.mark.parametrize("world_size", [1, 2, 4])
def test_fsdp_on_the_meta_device_gets_its_shards(tmp_path: Path, world_size: int) -> None:
    torch.manual_seed(0)
    model = block()
    with CheckpointManager(tmp_path / "store", async_save=False, world_size=1) as mgr:
        mgr.save(step=1, model=model)
    reshard(tmp_path / "store", lambda _, entry: Layout(entry.shape, (3,), (Split(0),)) if entry.shape else None)
    expected = model.state_dict()
    for rank in range(world_size):
        with rank_of(rank, world_size) as mesh, CheckpointManager(tmp_path / "store", world_size=1) as mgr:
            with torch.device("meta"):
                shell = block()
            fully_shard(shell[0], mesh=mesh)
            fully_shard(shell, mesh=mesh)
            assert mgr.resume(model=shell) == 2
            for name, tensor in shell.state_dict().items():
                if isinstance(tensor, DTensor):
                    wanted = spread(expected[name], mesh, tuple(tensor.placements)).to_local()
                    assert torch.equal(tensor.to_local(), wanted)
                else:
                    assert torch.equal(tensor, expected[name])
            assert all(parameter.requires_grad for parameter in shell.parameters())


def test_a_refused_load_leaves_a_model_on_the_meta_device(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path / "store", async_save=False, world_size=1) as mgr:
        mgr.save(step=1, model=torch.nn.Linear(30, 24))
        with rank_of(0, 2) as mesh:
            with torch.device("meta"):
                shell = torch.nn.Linear(30, 23)
            fully_shard(shell, mesh=mesh)
            with pytest.raises(Incompatible, match=r"shape \[24, 30\] in the commit, \[23, 30\]"):
                mgr.resume(model=shell)
            assert all(parameter.is_meta for parameter in shell.parameters())
