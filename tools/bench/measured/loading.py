"""Loads saves into a live run, in a process that did not make them."""

import time
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from ..peers.libraries import adapter
from ..peers.library import Library
from ..workloads import warmed_up
from ..workloads.run import Run
from .caching import read_all
from .clocks import tree_cpu_s
from .digests import digest, spoil
from .telling import tell


@dataclass(frozen=True, slots=True)
class Loaded:
    """One load.

    Attributes:
        seconds: it took.
        cpu_s: processor seconds of this process and those it started.
        digest: of the state after it.
    """

    seconds: float
    cpu_s: float
    digest: str


def load(library: str, root: str, workload: str, step: int, again: int) -> None:
    """Open a store, load a save, then load it ``again`` times; the first includes opening and importing."""
    run = warmed_up(workload)
    run.step()
    read_all(Path(root))
    spoil(run.items)
    started_cpu_s, started_s = tree_cpu_s(), time.perf_counter()
    opened = adapter(library)(Path(root))
    opened.load(step, run.items)
    tell("loaded", first=True, **_outcome(run, started_cpu_s, started_s))
    for _ in range(again):
        tell("loaded", first=False, **_load(opened, step, run))
    opened.close()


def _load(library: Library, step: int, run: Run) -> dict[str, Any]:
    spoil(run.items)
    started_cpu_s, started_s = tree_cpu_s(), time.perf_counter()
    library.load(step, run.items)
    return _outcome(run, started_cpu_s, started_s)


def _outcome(run: Run, started_cpu_s: float, started_s: float) -> dict[str, Any]:
    seconds, cpu_s = time.perf_counter() - started_s, tree_cpu_s() - started_cpu_s
    return asdict(Loaded(seconds, cpu_s, digest(run.items)))
