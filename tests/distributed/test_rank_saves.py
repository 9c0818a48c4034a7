"""Real ranks that save together: one commit of what all of them hold, or none."""

import signal
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager
from store.repository import Repository
from tests.distributed import save_rank
from tests.distributed.load_rank import network, optimizer_of, train
from tests.launching import launch, require_done, require_whole

pytestmark = pytest.mark.slow

SCRIPT = "save_rank.py"


def test_bar_2_what_ranks_save_is_one_commit_that_any_other_number_of_them_takes_up(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 1, "layouts")
    require_done(SCRIPT, tmp_path, 2, "layouts")
    require_done(SCRIPT, tmp_path, 4, "layouts", "resumed")
    require_done(SCRIPT, tmp_path, 2, "resumed")
    alone: Any = network()
    optimizer = optimizer_of(alone)
    train(alone, optimizer, 0, 3)
    expected = train(alone, optimizer, 3, 6)
    with CheckpointManager(tmp_path / "store") as mgr:
        for branch in ("fsdp2", "ddp2", "fsdp4", "ddp4", "hsdp4"):
            model: Any = network()
            optimizer = optimizer_of(model)
            assert mgr.resume(branch=branch, model=model, optimizer=optimizer, rng=True) == 3
            torch.testing.assert_close(train(model, optimizer, 3, 6), expected, rtol=1e-5, atol=0)
            assert "param_names" in mgr.load(branch, items=["optimizer"])["optimizer"]["param_groups"][0]
        assert mgr.load("tp4", into={"model": network()})
    with CheckpointManager(tmp_path / "store", branch="large1") as mgr:
        mgr.save(model=save_rank.large()).result(60)
    with Repository.open(tmp_path / "store") as repo:
        trees = {repo.commit(repo.resolve(f"large{count}", "main")).items["model"] for count in (1, 2, 4)}
        assert len(trees) == 1
    require_whole(tmp_path / "store")


def test_b20_a_rank_that_fails_fails_the_save_of_all_and_the_next_one_works(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "failing", "out_of_memory", "outdated")
    for name in ("failing", "outdated"):
        require_whole(tmp_path / name)


def test_b4_saves_back_to_back_get_in_nobodys_way_and_the_last_one_outlives_the_group(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "destroyed")
    with CheckpointManager(tmp_path / "last") as mgr:
        assert mgr.step == 8
        assert len(mgr.list_snapshots()) == 9
        assert set(mgr.load()["model"]) == {"own0", "own1"}
    require_whole(tmp_path / "last")


def test_damage_that_one_rank_meets_sends_all_to_the_commit_before(tmp_path: Path) -> None:
    require_done(SCRIPT, tmp_path, 2, "damaged")
    with CheckpointManager(tmp_path / "damaged") as mgr:
        assert [snapshot.step for snapshot in mgr.list_snapshots()] == [1, 2]
        assert set(mgr.load()) == {"own0", "own1"}


@pytest.mark.parametrize("point", ["before", "during", "leader"])
def test_a_rank_that_is_killed_keeps_nobody_waiting_and_costs_no_commit(tmp_path: Path, point: str) -> None:
    codes, told = launch(SCRIPT, tmp_path, 3, "killed", POINT=point)
    assert sorted(codes) == [-signal.SIGKILL, 0, 0], "\n".join(told)
    living = [text for code, text in zip(codes, told, strict=True) if code == 0]
    assert all("learned:" in text or "published" in text for text in living)
    with CheckpointManager(tmp_path / "killed", branch=point) as mgr:
        step = mgr.resume() - 1
        assert step in ({1} if point == "before" else {1, 2})
        state = mgr.load()["model"]
        assert set(state) == {"w", "own0", "own1", "own2"}
        mgr.save(step=3, model={"w": torch.ones(3)})
    require_whole(tmp_path / "killed")
