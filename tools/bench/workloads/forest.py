"""Recorded states of a base model, ten fine-tunes of it and three runs that branch off.

Made once, kept under .cache/bench. Fine-tunes are trained on other text, by a new optimizer each; branches go on as the
base would have, with other chance.
"""

import hashlib
import shutil
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from tools.training import Training, library_text

from . import CACHE
from .recorded import SHAPE, load, spaced

TUNE_COUNT: Final = 10
TUNE_STEPS: Final = 60
TUNE_LEARNING_RATES: Final = (1e-5, 3e-5, 1e-4)
"""Of the fine-tunes, in turns."""

BRANCH_COUNT: Final = 3
COMMIT_COUNT: Final = 20
"""Of each branch."""
COMMIT_STEPS: Final = 10
"""From one to the next."""

_REVISION: Final = 1
"""Raised when the recording below changes in a way that the key does not see."""


@dataclass(frozen=True, slots=True)
class Forest:
    """Files that ``torch.load`` reads: the weights of a model, float32.

    Attributes:
        base: what all others come from.
        tunes: one each.
        branches: the states of each run, in order.
    """

    base: Path
    tunes: tuple[Path, ...]
    branches: tuple[tuple[Path, ...], ...]


def forest() -> Forest:
    """The recording, made if it is not there."""
    started = spaced(1).paths[0]
    key = repr(
        (_REVISION, started, TUNE_COUNT, TUNE_STEPS, TUNE_LEARNING_RATES, BRANCH_COUNT, COMMIT_COUNT, COMMIT_STEPS)
    )
    folder = CACHE / f"forest-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not folder.exists():
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        _record(making, load(started))
        making.rename(folder)
    return Forest(
        folder / "base.pt",
        tuple(folder / f"tune-{number}.pt" for number in range(TUNE_COUNT)),
        tuple(
            tuple(folder / f"branch-{number}-{commit}.pt" for commit in range(COMMIT_COUNT))
            for number in range(BRANCH_COUNT)
        ),
    )


def _record(folder: Path, started: dict[str, Any]) -> None:
    torch.save(started["model"], folder / "base.pt")
    for number in range(TUNE_COUNT):
        _record_tune(folder / f"tune-{number}.pt", started, number)
    for number in range(BRANCH_COUNT):
        run = _taken_up(started, seed=100 + number)
        run.optimizer.load_state_dict(started["optimizer"])
        for commit in range(COMMIT_COUNT):
            for _ in range(COMMIT_STEPS):
                run.step()
            torch.save(run.model.state_dict(), folder / f"branch-{number}-{commit}.pt")


def _record_tune(path: Path, started: dict[str, Any], number: int) -> None:
    run = _taken_up(started, seed=number)
    run.text = library_text(unusual=True)
    rate = TUNE_LEARNING_RATES[number % len(TUNE_LEARNING_RATES)]
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=rate)
    run.scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda _: 1.0)
    for _ in range(TUNE_STEPS):
        run.step()
    torch.save(run.model.state_dict(), path)


def _taken_up(started: dict[str, Any], seed: int) -> Training:
    run = Training(shape=SHAPE, seed=seed)
    run.model.load_state_dict(started["model"])
    return run
