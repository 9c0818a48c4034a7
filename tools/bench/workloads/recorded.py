"""Recorded states of a real run, so that every library saves the very same bytes. Made once, kept under .cache/bench.

One run is recorded at the union of the steps that the series need; a series is a choice of those states.
"""

import hashlib
import shutil
import sys
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch
from rich.console import Console
from rich.progress import track

from tools.training import Shape, Training, library_text

from . import CACHE
from .run import tensors

DISTANCES: Final = (1, 10, 50, 100)
SAVE_COUNT: Final = 12
FIRST_STEP: Final = 150
"""Past the warm-up: before it, moments are still forgetting that they began at zero."""

FINE_TUNE_STEPS: Final = 60
FINE_TUNE_LEARNING_RATE: Final = 1e-5

SHAPE: Final = Shape(batch=8)
"""The demo's model. Its own batch, because the noise of small batches is what moments are made of."""

_REVISION: Final = 1
"""Raised when the recording below changes in a way that the key does not see."""


@dataclass(frozen=True, slots=True)
class Series:
    """States to be saved one after the other.

    Attributes:
        name: what it is.
        paths: files that ``torch.load`` reads: item name to state dict.
    """

    name: str
    paths: tuple[Path, ...]


def spaced(distance: int) -> Series:
    """Twelve states of the run, ``distance`` steps apart: model and AdamW, float32."""
    folder = _recorded()
    name = "every step" if distance == 1 else f"every {distance} steps"
    return Series(name, tuple(folder / f"{step}.pt" for step in _steps(distance)))


def fine_tune() -> Series:
    """A bfloat16 model, and what 60 steps on other text at a learning rate of 1e-5 made of it."""
    folder = _recorded()
    return Series("fine-tune", (folder / "base.pt", folder / "tuned.pt"))


def load(path: Path) -> dict[str, Any]:
    """A recorded state: state dicts by item."""
    state: dict[str, Any] = torch.load(path, weights_only=True)
    return state


def raw_bytes(path: Path) -> int:
    """Bytes of all tensors of a recorded state."""
    return sum(tensor.nbytes for tensor in tensors(load(path)))


def _steps(distance: int) -> range:
    return range(FIRST_STEP, FIRST_STEP + distance * SAVE_COUNT, distance)


def _recorded() -> Path:
    """Folder of the recording, made if it is not there."""
    # The text is part of the run, and another Python has other sources.
    key = repr((_REVISION, SHAPE, DISTANCES, SAVE_COUNT, FIRST_STEP, torch.__version__, sys.version_info[:3]))
    folder = CACHE / f"states-{hashlib.sha256(key.encode()).hexdigest()[:12]}"
    if not folder.exists():
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        making.mkdir(parents=True)
        _record(making)
        making.rename(folder)
    return folder


def _record(folder: Path) -> None:
    run = Training(shape=SHAPE)
    wanted = sorted({step for distance in DISTANCES for step in _steps(distance)})
    for step in _progress(range(1, wanted[-1] + 1), "recording a run to measure with (once)"):
        run.step()
        if step in wanted:
            torch.save(
                {"model": run.model.state_dict(), "optimizer": run.optimizer.state_dict()}, folder / f"{step}.pt"
            )
    _record_fine_tune(run, folder)


def _record_fine_tune(run: Training, folder: Path) -> None:
    """Published models are bfloat16 and are fine-tuned from that, in float32."""
    torch.save({"model": _rounded(run.model)}, folder / "base.pt")
    run.model.load_state_dict(_rounded(run.model))
    run.text = library_text(unusual=True)
    run.optimizer = torch.optim.AdamW(run.model.parameters(), lr=FINE_TUNE_LEARNING_RATE)
    run.scheduler = torch.optim.lr_scheduler.LambdaLR(run.optimizer, lambda _: 1.0)
    for _ in _progress(range(FINE_TUNE_STEPS), "recording a fine-tune (once)"):
        run.step()
    torch.save({"model": _rounded(run.model)}, folder / "tuned.pt")


def _rounded(model: torch.nn.Module) -> dict[str, torch.Tensor]:
    """The model in bfloat16, ties kept."""
    by_storage: dict[int, torch.Tensor] = {}
    return {
        name: by_storage.setdefault(tensor.data_ptr(), tensor.bfloat16()) for name, tensor in model.state_dict().items()
    }


def _progress(steps: Iterable[int], what: str) -> Iterable[int]:
    return track(steps, what, console=Console(stderr=True), transient=True)
