"""What a commit lacks, and which commit near it has that."""

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest
import torch

from moonclip import CheckpointManager, Incompatible, NotFound

ONES = torch.ones(100)


@pytest.fixture
def mgr(tmp_path: Path) -> Iterator[CheckpointManager]:
    """Steps 0 to 3 on ``main``: all have a model, 0 and 1 an optimizer, 0 and 1 a head; ``other`` has ``ema``, too."""
    with CheckpointManager(tmp_path / "store") as mgr:
        for step in range(4):
            model = {"w": ONES * step, **({"head.w": ONES} if step < 2 else {})}
            mgr.save(step=step, model=model, optimizer={"m": ONES} if step < 2 else None)
        with CheckpointManager(tmp_path / "store", branch="other") as other:
            other.save(step=7, ema={"w": ONES})
        yield mgr


def at(mgr: CheckpointManager, rev: str) -> str:
    return mgr.describe(rev).snapshot.id[:8]


ASKED: dict[str, Callable[[CheckpointManager, Path], Any]] = {
    "load of an item": lambda mgr, _: mgr.load(items="optimizer"),
    "load of a target": lambda mgr, _: mgr.load(optimizer={"m": ONES.clone()}),
    "resume": lambda mgr, _: mgr.resume(optimizer={"m": ONES.clone()}),
    "a lazy load": lambda mgr, _: mgr.load(items="optimizer", lazy=True),
    "load of a name": lambda mgr, _: mgr.load(names="model::head.w"),
    "load of a name in any item": lambda mgr, _: mgr.load(names="head.w"),
    "load of a tensor": lambda mgr, _: mgr.load_tensors("model::head.w"),
    "export": lambda mgr, path: mgr.export(None, path / "out.pt", items="optimizer"),
}


@pytest.mark.parametrize("asked", ASKED)
def test_the_nearest_commit_that_has_it_is_told(mgr: CheckpointManager, tmp_path: Path, asked: str) -> None:
    nearest = f"the nearest commit that has it is {at(mgr, 'main~2')} \\(main, step 1\\)"
    with pytest.raises((NotFound, Incompatible), match=nearest) as caught:
        ASKED[asked](mgr, tmp_path)
    assert caught.value.details.get("item", "optimizer") == "optimizer"


def test_else_the_branch_that_has_it_is(mgr: CheckpointManager) -> None:
    with pytest.raises(NotFound, match=rf"is {at(mgr, 'other')} \(other, step 7\)"):
        mgr.load(items="ema")


def test_none_is_told_that_has_it_no_more_or_never_had(mgr: CheckpointManager) -> None:
    with pytest.raises(NotFound) as caught:
        mgr.load(items="optimiser")
    assert str(caught.value).endswith("it has model")
    assert len(mgr.prune(items="optimizer", older_than=1)) == 2
    with pytest.raises(NotFound) as caught:
        mgr.load(items="optimizer")
    assert str(caught.value).endswith("it has model")
