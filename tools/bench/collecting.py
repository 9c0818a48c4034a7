"""How fast gc finds what has to stay among a million objects of 10,000 commits, and how long others wait for it.

Half of the commits are pruned before it removes something.
"""

import gc
import tempfile
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from resource import RUSAGE_SELF, getrusage
from typing import Any, Final

from store.gc import collect
from store.gc.marking import Marks
from store.gc.survey import Survey
from store.gc.watching import Watch
from store.repository import Repository
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep

from .histories import OBJECT_COUNT, copy, history
from .report import Bar, Bench
from .workloads import CACHE

MANY = 10_000
"""Commits; each brings a hundred objects."""

ROUND_COUNT: Final = 5
"""Rounds of marking; the fastest counts: what else runs on the machine only slows it down."""

MARKS_BAR: Final = 200_000
WAIT_BAR_MS: Final = 50
MS: Final = 1000


@dataclass(frozen=True, slots=True)
class Sums:
    """What was measured.

    Attributes:
        marks: objects marked a second of processor time, on one core.
        wait_ms: longest processor time between begin and end of what was done in one transaction.
        gc_seconds: processor time of gc.
        removed_count: objects that it removed.
        peak_mib: most memory that the process took.
    """

    marks: float
    wait_ms: float
    gc_seconds: float
    removed_count: int
    peak_mib: int


class _Timed:
    """An index that remembers the longest of its transactions."""

    def __init__(self, index: Any) -> None:
        self.longest_seconds = 0.0
        self._index = index

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, body: Callable[[Any], Any]) -> Any:
        """Change the index in one transaction."""

        def timed(writer: Any) -> Any:
            began = time.thread_time()
            try:
                return body(writer)
            finally:
                self.longest_seconds = max(self.longest_seconds, time.thread_time() - began)

        return self._index.write(timed)


def measure() -> Bench:
    """Mark some times, then prune and collect."""
    made = history(MANY)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        root = Path(folder) / "store"
        copy(made, root)
        with Repository.open(root, thread_count=1) as repo:
            sums = _measured(repo)
    return Bench(
        name="gc",
        title=f"gc of {MANY:,} commits, which have {MANY * OBJECT_COUNT:,} objects, on one core",
        columns=("", ""),
        rows=[
            ["objects marked", f"{sums.marks:,.0f} /s"],
            ["longest transaction", f"{sums.wait_ms:.1f} ms"],
            ["gc after half of the commits were pruned", f"{sums.gc_seconds:.1f} s"],
            ["objects that it removed", f"{sums.removed_count:,}"],
            ["most memory", f"{sums.peak_mib:,} MiB"],
        ],
        bars=[
            Bar("objects marked a second", sums.marks, MARKS_BAR, at_most=False),
            Bar("ms in one transaction, at most", sums.wait_ms, WAIT_BAR_MS),
        ],
        figures={
            "marks_per_second": sums.marks,
            "wait_ms": sums.wait_ms,
            "gc_seconds": sums.gc_seconds,
            "removed_count": sums.removed_count,
            "peak_mib": sums.peak_mib,
        },
        notes=["Seconds of processor time. A transaction ends with a sync of the disk, which comes on top."],
    )


def _measured(repo: Repository) -> Sums:
    marks = max(_marks_per_second(repo) for _ in range(ROUND_COUNT))
    pruner = Pruner(repo)
    pruner.apply(pruner.by_policy(Keep(last=MANY // 2)))
    timed = _Timed(repo.index)
    repo.index = timed
    began = time.process_time()
    done = collect(repo)
    seconds = time.process_time() - began
    peak_mib = getrusage(RUSAGE_SELF).ru_maxrss // 1024
    return Sums(marks, timed.longest_seconds * MS, seconds, done.object_count, peak_mib)


def _marks_per_second(repo: Repository) -> float:
    gc.collect()
    began = time.process_time()
    watch = Watch(repo)
    marks = Marks(repo, watch.parents)
    marks.add(watch.begin())
    Survey(marks).take(repo, lambda: None)
    return len(marks.objects) / (time.process_time() - began)
