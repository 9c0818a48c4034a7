"""Wherever names are given, one by itself will do: nothing reads it letter by letter."""

from collections.abc import Callable, Iterator
from datetime import timedelta
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from moonclip import CheckpointManager, Keep
from moonclip.dcp import StorageReader, StorageWriter
from store.repository import Repository
from store.upkeep.absences import expected_items

MODEL, OPTIMIZER = torch.arange(6.0), torch.ones(3)


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    (tmp_path / "remote").mkdir()
    with CheckpointManager(tmp_path / "store", remote=tmp_path / "remote") as mgr:
        for step in range(3):
            mgr.save(step=step, model={"w": MODEL + step}, optimizer={"m": OPTIMIZER}, metadata={"loss": step})
        mgr.tag("model", "main")
        mgr.branch("other", at="main~1")
        mgr.push(all=True)
        yield mgr


def fetched(mgr: CheckpointManager, path: Path, get: Callable[[CheckpointManager], Any]) -> list[Any]:
    """What an empty store has after it got something from the same remote: by ref, the items of its commit."""
    with CheckpointManager(path, remote=mgr.remotes()["origin"]) as new:
        get(new)
        repo = new._repo
        tips = repo.refs.list()
        return [(ref, sorted(expected_items(repo.commit(tip), repo.absences, tip))) for ref, tip in tips.items()]


DOORS: dict[str, Callable[[CheckpointManager, Path, Any, Any], Any]] = {
    "load of items": lambda mgr, _, model, __: sorted(mgr.load(items=model)),
    "load of names": lambda mgr, _, model, __: sorted(mgr.load(names=model)),
    "load_latest": lambda mgr, _, model, __: sorted(mgr.load_latest(items=model)),
    "a lazy load": lambda mgr, _, model, __: sorted(mgr.load(items=model, lazy=True)),
    "load_tensors": lambda mgr, _, model, __: sorted(mgr.load_tensors(model)),
    "export": lambda mgr, path, model, _: mgr.export("main", path.with_suffix(".pt"), items=model).items,
    "diff": lambda mgr, _, model, __: [item.name for item in mgr.diff("main~1", "main", names=model).items],
    "merge": lambda mgr, _, model, other: sorted(mgr.load(mgr.merge("main", "other", items=model))),
    "prune of items": lambda mgr, _, model, __: [
        drop.step for drop in mgr.prune(items=model, older_than=1, dry_run=True)
    ],
    "prune on branches": lambda mgr, _, __, other: mgr.prune(Keep(within=timedelta(0)), branches=other, dry_run=True),
    "push of branches": lambda mgr, _, __, other: len(mgr.push("origin", other).changes),
    "push of tags": lambda mgr, _, tag, __: len(mgr.push("origin", (), tags=tag).changes),
    "fetch of branches": lambda mgr, path, _, other: fetched(mgr, path, lambda new: new.fetch("origin", other)),
    "fetch of items": lambda mgr, path, model, _: fetched(mgr, path, lambda new: new.fetch("origin", items=model)),
    "pull of items": lambda mgr, path, model, _: fetched(mgr, path, lambda new: new.pull("origin", items=model)),
}


@pytest.mark.parametrize("door", DOORS)
def test_one_name_is_as_good_as_a_list_of_one(mgr: CheckpointManager, tmp_path: Path, door: str) -> None:
    go = DOORS[door]
    alone = go(mgr, tmp_path / "alone", "model", "other")
    assert alone == go(mgr, tmp_path / "listed", ["model"], ["other"])


def test_one_class_that_is_allowed_and_one_item_that_each_rank_saves(tmp_path: Path) -> None:
    with CheckpointManager(tmp_path, per_rank="loader", allow="package.Class") as mgr:
        assert "loader" in mgr._per_rank
        assert mgr._policy.classes == ("package.Class",)
    for made in (StorageReader(tmp_path, allow="package.Class"), StorageWriter(tmp_path, allow="package.Class")):
        assert made._policy.classes == ("package.Class",)


def test_one_name_for_the_engine(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        commit = repo.at(repo.save_arrays({"model": {"w": np.arange(3), "seed": 7}}).hex())
        assert list(commit.read("model::w")) == ["model::w"]
        assert commit.values("model::seed") == {"model::seed": 7}
