"""``save_dtype``: what a person sees of tensors that are stored in a narrower dtype, on every way back."""

from pathlib import Path
from typing import Any

import pytest
import torch
from click.testing import CliRunner
from safetensors.torch import load_file

from moonclip import CheckpointManager
from moonclip.cli.app import commands
from store.errors import Incompatible
from store.fsck import fsck
from store.repository import Repository

ROWS, COLUMNS = 700, 900


class Run:
    """A small training run."""

    def __init__(self, seed: int = 0) -> None:
        torch.manual_seed(seed)
        self.model = torch.nn.Sequential(torch.nn.Linear(COLUMNS, ROWS), torch.nn.Linear(ROWS, 3))
        self.optimizer = torch.optim.AdamW(self.model.parameters(), lr=1e-3)

    def step(self) -> None:
        self.model(torch.randn(4, COLUMNS)).square().mean().backward()
        self.optimizer.step()
        self.optimizer.zero_grad()

    @property
    def items(self) -> dict[str, Any]:
        return {"model": self.model, "optimizer": self.optimizer}

    def moment(self, name: str) -> torch.Tensor:
        return self.optimizer.state[self.model[0].weight][name].clone()

    @property
    def weight(self) -> torch.Tensor:
        return self.model[0].weight.detach().clone()


def stepped(steps: int = 1, seed: int = 0) -> Run:
    run = Run(seed)
    for _ in range(steps):
        run.step()
    return run


ROUNDED = {"bf16": torch.bfloat16, "fp16": torch.float16}


@pytest.mark.parametrize("asked", sorted(ROUNDED))
def test_a_run_comes_back_rounded_with_its_own_dtypes_and_exact_counters(tmp_path: Path, asked: str) -> None:
    run = stepped(3)
    with CheckpointManager(tmp_path / "store", save_dtype=asked) as manager:
        manager.save(step=70001, **run.items, extra={"count": torch.tensor([70001.0]), "n": 70001}).result()
        fresh = Run(1)
        address = fresh.model[0].weight.data_ptr()
        assert manager.resume(model=fresh.model, optimizer=fresh.optimizer) == 70002
        extra = manager.load("main", items=["extra"])["extra"]
    dtype = ROUNDED[asked]
    assert fresh.model[0].weight.data_ptr() == address
    assert torch.equal(fresh.weight, run.weight.to(dtype).float())
    for name in ("exp_avg", "exp_avg_sq"):
        assert fresh.moment(name).dtype == torch.float32
        assert torch.equal(fresh.moment(name), run.moment(name).to(dtype).float())
    assert fresh.optimizer.state[fresh.model[0].weight]["step"].item() == 3
    assert extra == {"count": torch.tensor([70001.0]), "n": 70001}


def test_only_what_the_patterns_name_is_lossy_and_a_description_says_so(tmp_path: Path) -> None:
    run = stepped()
    rules = {"model/*": "none", "*/exp_avg": "fp8_e4m3", "optimizer::*exp_avg_sq": "bf16"}
    with CheckpointManager(tmp_path / "store", save_dtype=rules) as manager:
        manager.save(step=1, **run.items).result()
        fresh = Run(1)
        manager.resume(model=fresh.model, optimizer=fresh.optimizer)
        tensors = manager.describe("main").tensors
    assert torch.equal(fresh.weight, run.weight)
    assert torch.equal(fresh.moment("exp_avg_sq"), run.moment("exp_avg_sq").bfloat16().float())
    before, after = run.moment("exp_avg"), fresh.moment("exp_avg")
    assert ((before - after).abs() <= torch.maximum(before.abs() / 16, before.abs().max() * 2**-17)).all()
    assert tensors["model::0.weight"].stored_dtype is None
    assert tensors["optimizer::state/0/exp_avg"].stored_dtype == "float8_e4m3fn"
    assert tensors["optimizer::state/0/exp_avg"].dtype == "float32"
    assert tensors["optimizer::state/0/exp_avg"].stored_bytes <= 0.26 * tensors["optimizer::state/0/exp_avg"].raw_bytes
    assert tensors["optimizer::state/0/exp_avg_sq"].stored_dtype == "bfloat16"


def test_what_is_narrow_already_is_exact(tmp_path: Path) -> None:
    patterns = torch.arange(256, dtype=torch.uint8).repeat(4)
    state = {
        "e4m3": patterns.view(torch.float8_e4m3fn),
        "e5m2": patterns.view(torch.float8_e5m2),
        "half": torch.randn(999).half(),
        "brain": torch.randn(999).bfloat16(),
        "complex": torch.randn(999, dtype=torch.complex64),
        "integer": torch.arange(999),
    }
    for asked in ("none", "bf16", "fp16"):
        with CheckpointManager(tmp_path / asked, save_dtype=asked) as manager:
            manager.save(step=1, state=state).result()
            loaded = manager.load("main")["state"]
        for name, tensor in state.items():
            assert loaded[name].dtype == tensor.dtype
            assert torch.equal(loaded[name].view(torch.uint8), tensor.view(torch.uint8))


def test_nan_and_infinity_survive_whatever_is_asked_for(tmp_path: Path) -> None:
    state = {"w": torch.tensor([float("nan"), float("inf"), -float("inf"), 0.0, 1.0] * 300)}
    for asked in ("bf16", "fp16", "fp8_e4m3", "fp8_e5m2", "fp8_e4m3_rows"):
        with CheckpointManager(tmp_path / asked, save_dtype=asked) as manager:
            manager.save(step=1, state=state).result()
            loaded = manager.load("main")["state"]["w"]
        assert torch.equal(loaded.nan_to_num(7), state["w"].nan_to_num(7))
        assert torch.equal(loaded.isnan(), state["w"].isnan())


def test_equal_content_under_another_rule_keeps_its_precision(tmp_path: Path) -> None:
    values = torch.randn(ROWS, COLUMNS)
    rules = {"coarse/*": "bf16", "byte/*": "fp8_e5m2"}
    with CheckpointManager(tmp_path / "store", save_dtype=rules) as manager:
        for step in range(2):
            state = {"w": values.clone()}
            manager.save(step=step, coarse=state, byte={"w": values.clone()}, exact={"w": values.clone()}).result()
        loaded = manager.load("main")
    assert torch.equal(loaded["exact"]["w"], values)
    assert torch.equal(loaded["coarse"]["w"], values.bfloat16().float())
    assert not torch.equal(loaded["byte"]["w"], loaded["coarse"]["w"])


def test_another_manager_with_another_rule_stores_what_it_says(tmp_path: Path) -> None:
    run, weights = stepped(), []
    for asked in ("bf16", "none", "bf16", "fp16"):
        with CheckpointManager(tmp_path / "store", save_dtype=asked) as manager:
            manager.save(model=run.model).result()
            weights.append(manager.load("main")["model"]["0.weight"])
    assert torch.equal(weights[1], run.weight)
    assert torch.equal(weights[0], weights[2])
    assert torch.equal(weights[3], run.weight.half().float())
    with Repository.open(tmp_path / "store") as repo:
        assert fsck(repo, full=True).clean


@pytest.mark.parametrize("asked", ["bf16", "fp8_e4m3", "fp8_e5m2_rows"])
@pytest.mark.parametrize("in_background", [True, False])
def test_what_has_not_changed_is_stored_once_and_what_did_a_little_as_a_delta(
    tmp_path: Path, asked: str, in_background: bool
) -> None:
    run = stepped(2)
    with CheckpointManager(tmp_path / "store", save_dtype=asked, async_save=in_background) as manager:
        first = manager.save(step=1, **run.items).result()
        again = manager.save(step=2, **run.items).result()
        with torch.no_grad():
            run.model[0].weight[:9] *= 1.01
        third = manager.save(step=3, **run.items).result()
        nothing, little = manager.diff(first, again), manager.diff(again, third)
        taken = {rev: manager.describe(rev).stored_bytes for rev in (first, third)}
        loaded = manager.load(third)["model"]["0.weight"]
    assert nothing.stored_bytes == 0
    assert [item.status for item in nothing.items] == ["identical"] * 2
    (changed,) = [one for item in little.items for one in item.tensors]
    assert changed.name == "0.weight"
    assert 0 < little.stored_bytes < taken[first] / 20
    assert torch.allclose(loaded, run.weight, rtol=2**-3, atol=2**-15)


def test_frozen_parameters_that_are_skipped_keep_their_cast(tmp_path: Path) -> None:
    run = Run()
    run.model[0].requires_grad_(False)
    weight = run.weight
    with CheckpointManager(tmp_path / "store", save_dtype="bf16", skip_unmodified=True) as manager:
        for step in range(3):
            manager.save(step=step, model=run.model).result()
        assert torch.equal(manager.load("main")["model"]["0.weight"], weight.bfloat16().float())
        ids = {manager.describe(f"main~{back}").tensors["model::0.weight"].stored_dtype for back in range(3)}
    assert ids == {"bfloat16"}


def test_rows_and_lazy_tensors_are_restored(tmp_path: Path) -> None:
    run = stepped()
    for asked in ("bf16", "fp8_e4m3_rows"):
        with CheckpointManager(tmp_path / asked, save_dtype=asked) as manager:
            manager.save(step=1, model=run.model).result()
            whole = manager.load("main")["model"]["0.weight"]
            lazy = manager.load("main", lazy=True)["model"]["0.weight"]
            assert lazy.dtype == torch.float32
            assert torch.equal(lazy[100:103], whole[100:103])
            assert torch.equal(lazy.load(), whole)


def test_targets_are_compared_with_the_dtype_that_was_saved(tmp_path: Path) -> None:
    run = stepped()
    with CheckpointManager(tmp_path / "store", save_dtype="bf16") as manager:
        manager.save(step=1, model=run.model).result()
        narrow = Run(1).model.bfloat16()
        with pytest.raises(Incompatible, match="dtype float32 in the commit, bfloat16 in the target"):
            manager.resume(model=narrow)
        manager.resume(model=narrow, strict=False)
    assert torch.equal(narrow[0].weight, run.weight.bfloat16())


def test_an_unknown_dtype_is_told_before_a_store_is_made(tmp_path: Path) -> None:
    with pytest.raises(Incompatible, match="no dtype 'bf61'"):
        CheckpointManager(tmp_path / "store", save_dtype="bf61")
    assert not (tmp_path / "store").exists()


# --- what else is done with commits -----------------------------------------------------------------------------------


def test_exports_have_the_dtype_that_was_saved(tmp_path: Path) -> None:
    run, store = stepped(), tmp_path / "store"
    with CheckpointManager(store, save_dtype="bf16") as manager:
        manager.save(step=1, model=run.model).result()
    for name in ("out.pt", "out.safetensors"):
        done = CliRunner().invoke(
            commands, ["-C", str(store), "export", "main", "--item", "model", "-o", str(tmp_path / name)]
        )
        assert done.exit_code == 0, done.output
    for state in (torch.load(tmp_path / "out.pt", weights_only=True), load_file(tmp_path / "out.safetensors")):
        assert torch.equal(state["0.weight"], run.weight.bfloat16().float())


def test_the_command_line_says_what_is_lossy(tmp_path: Path) -> None:
    store = str(tmp_path / "store")
    with CheckpointManager(store, save_dtype={"model/*weight": "bf16"}) as manager:
        manager.save(step=1, model=Run().model).result()

    def said(*arguments: str) -> str:
        done = CliRunner().invoke(commands, ["-C", store, *arguments])
        assert done.exit_code == 0, done.output
        return done.stdout

    assert "4 tensors (2 stored with loss)" in said("show")
    assert "float32 as bfloat16" in said("ls", "model::0.weight")
    assert "float32 as bfloat16" not in said("ls", "model::0.bias")
    assert "float32 as bfloat16 [700, 900]" in said("show", "main", "model::0.weight")


@pytest.mark.parametrize("asked", ["bf16", "fp8_e4m3_rows"])
def test_gc_repack_and_fsck_work_on_casts(tmp_path: Path, asked: str) -> None:
    run, store = stepped(), tmp_path / "store"
    with CheckpointManager(store, save_dtype=asked) as manager:
        commits = []
        for step in range(4):
            run.step()
            commits.append(manager.save(step=step, **run.items).result())
        before = [manager.load(commit) for commit in commits]
        manager.gc()
        manager.repack("size")
        manager.repack("restore")
        after = [manager.load(commit) for commit in commits]
    for one, other in zip(before, after, strict=True):
        assert torch.equal(one["model"]["0.weight"], other["model"]["0.weight"])
        assert torch.equal(one["optimizer"]["state"][0]["exp_avg"], other["optimizer"]["state"][0]["exp_avg"])
    with Repository.open(store) as repo:
        assert fsck(repo, full=True).clean


def test_differences_are_those_of_what_is_restored(tmp_path: Path) -> None:
    values = torch.full((ROWS, COLUMNS), 1.0)
    nearby = values + 2.0**-12  # the same in bfloat16
    with CheckpointManager(tmp_path / "store", save_dtype="bf16") as manager:
        first = manager.save(step=1, w=values).result()
        second = manager.save(step=2, w=nearby).result()
        third = manager.save(step=3, w=values * 2).result()
        assert manager.diff(first, second).items[0].status == "identical"
        (changed,) = manager.diff(first, third).items[0].tensors
    assert changed.before is not None
    assert changed.before.dtype == "float32"
    assert changed.measures is not None
    assert changed.measures.max_abs == 1.0
    with CheckpointManager(tmp_path / "store") as manager:
        exact = manager.save(step=4, w=values * 2).result()
        assert manager.diff(third, exact).items[0].status == "identical"
        exact = manager.save(step=5, w=nearby).result()
        (changed,) = manager.diff(second, exact).items[0].tensors
        assert changed.measures is not None
        assert changed.measures.max_abs == 2.0**-12


def test_scales_tell_equal_chunks_apart(tmp_path: Path) -> None:
    values = torch.randn(ROWS, COLUMNS)
    with CheckpointManager(tmp_path / "store", save_dtype="fp8_e4m3") as manager:
        first = manager.save(step=1, w=values).result()
        second = manager.save(step=2, w=values * 4).result()
        found = manager.diff(first, second)
        assert torch.equal(manager.load(second)["w"], manager.load(first)["w"] * 4)
    assert found.stored_bytes == 0
    assert found.items[0].status == "changed"


def test_an_average_is_one_of_restored_values(tmp_path: Path) -> None:
    one, other = torch.randn(ROWS, COLUMNS), torch.randn(ROWS, COLUMNS)
    with CheckpointManager(tmp_path / "store", save_dtype="bf16") as manager:
        manager.save(step=1, model={"w": one, "same": one.clone()}).result()
        manager.branch("other", at="main")
        manager.resume(branch="other")
        manager.save(step=2, model={"w": other, "same": one}).result()
        manager.merge("main", "other", branch="soup")
        soup, tensors = manager.load("soup")["model"], manager.describe("soup").tensors
    assert torch.equal(soup["w"], ((one.bfloat16().double() + other.bfloat16().double()) / 2).float())
    assert torch.equal(soup["same"], one.bfloat16().float())
    assert (tensors["model::w"].stored_dtype, tensors["model::same"].stored_dtype) == (None, "bfloat16")
