"""What the benches save: states of real training, seeded, warmed up once and kept under ``.cache/bench``.

Everything here runs in the peers' environments too, where this repository is not installed: torch and the standard
library only. (``recorded`` is for the benches' own process.)
"""

import hashlib
import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

import torch

from . import tables, transformers
from .run import SEED, Run, states

CACHE: Final = Path(".cache/bench")

_REVISION: Final = 1
"""Raised when a run changes in a way that its key does not see."""


@dataclass(frozen=True, slots=True)
class Workload:
    """A kind of run.

    Attributes:
        make: the run, given the number of threads to compute with.
        facts: whatever shapes it, for the cache's key.
        warm_step_count: steps before anything is measured: moments have to forget that they began at zero.
        base: name of the workload whose model it begins with.
    """

    make: Callable[[int], Run]
    facts: object
    warm_step_count: int
    base: str | None = None


WORKLOADS: Final[dict[str, Workload]] = {
    "dense": Workload(lambda threads: transformers.dense(transformers.DENSE, threads), transformers.DENSE, 150),
    "bf16": Workload(lambda threads: transformers.bf16(transformers.DENSE, threads), transformers.DENSE, 20, "dense"),
    "frozen": Workload(
        lambda threads: transformers.frozen(transformers.DENSE, threads), transformers.DENSE, 30, "dense"
    ),
    "lora": Workload(lambda threads: transformers.lora(transformers.DENSE, threads), transformers.DENSE, 30, "dense"),
    "tiny": Workload(lambda threads: tables.tiny(tables.LAYER_COUNT, threads), tables.LAYER_COUNT, 30),
    "embedding": Workload(lambda threads: tables.embedding(tables.ROW_COUNT, threads), tables.ROW_COUNT, 20),
    "middle": Workload(lambda threads: transformers.dense(transformers.MIDDLE, threads), transformers.MIDDLE, 30),
    "small": Workload(lambda threads: transformers.dense(transformers.SMALL, threads), transformers.SMALL, 5),
}


def warmed_up(name: str) -> Run:
    """A run after its warm-up, which is done only once on a machine.

    Its chance is seeded anew: whoever takes the run up trains on in the same way.
    """
    warm_up(name)
    run = _made(name)
    kept: dict[str, Any] = torch.load(_file(name), weights_only=True)
    for item, state in kept.items():
        (run.items | run.aside)[item].load_state_dict(state)
    torch.manual_seed(SEED)
    return run


def warm_up(workload: str) -> None:
    """Train a run's first steps and keep its state, unless that was done."""
    file, kind = _file(workload), WORKLOADS[workload]
    if file.exists():
        return
    run = _made(workload)
    if kind.base is not None:
        _take_base(run, states(warmed_up(kind.base).items)["model"])
    run.step(kind.warm_step_count)
    file.parent.mkdir(parents=True, exist_ok=True)
    making = file.with_suffix(f".{os.getpid()}")
    torch.save(states(run.items | run.aside), making)
    making.rename(file)


def _made(name: str) -> Run:
    return WORKLOADS[name].make(os.cpu_count() or 1)


def _take_base(run: Run, base: dict[str, torch.Tensor]) -> None:
    """Copy a trained model's weights to where they are in ``run``: under the same name, or inside an adapter."""
    with torch.no_grad():
        for name, tensor in run.items["model"].state_dict().items():
            plain = name.replace(".base.", ".")
            if plain in base:
                tensor.copy_(base[plain])
    if "masters" in run.items:
        run.items["masters"].load_state_dict(dict(base))


def _file(name: str) -> Path:
    workload = WORKLOADS[name]
    key = repr((_REVISION, workload.facts, workload.warm_step_count, torch.__version__.split("+")[0]))
    return CACHE / "warm" / f"{name}-{hashlib.sha256(key.encode()).hexdigest()[:12]}.pt"
