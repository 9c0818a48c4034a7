"""Whether what people wait for stays as fast in a store of 10,000 commits and a million objects as in a new one."""

import gc
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from itertools import islice
from pathlib import Path
from resource import RUSAGE_CHILDREN, RUSAGE_SELF, getrusage
from statistics import median
from typing import Final, TypeVar

from moonclip.loading.descriptions import describe
from moonclip.state.policy import SAFE
from store.naming.refnames import HEAD, branch_name
from store.repository import DEFAULT_BRANCH, Repository
from store.saving.bases import LastSave
from store.saving.saver import SaveRequest

from .histories import OBJECT_COUNT, copy, history, state
from .report import Bar, Bench
from .workloads import CACHE

T = TypeVar("T")

FEW, MANY = 10, 10_000
"""Commits of the stores that are compared; each commit brings a hundred objects."""

ROUND_COUNT: Final = 60
PROCESS_ROUND_COUNT: Final = 15
"""Rounds, in each of which both stores take a turn. Medians count."""

CHANGED_COUNT: Final = 5
"""Tensors that change from save to save."""

LISTED_COUNT: Final = 20

BAR: Final = 1.2
MS: Final = 1000

_NOTE: Final = (
    "Medians of turns taken in alternation. Bars are held to processor time: from turn to turn, the time that a disk"
    " takes to sync differs by more than anything here does between the stores."
)


@dataclass(frozen=True, slots=True)
class Cost:
    """Seconds of one act: by the clock, and of processor time of this process and of those that it waited for."""

    wall: float
    cpu: float


@dataclass(frozen=True, slots=True)
class Beside:
    """What the same costs in the small store and in the large one."""

    few: Cost
    many: Cost

    def row(self, name: str) -> list[str]:
        """Cells of the table."""
        cells = [name]
        for few, many in ((self.few.wall, self.many.wall), (self.few.cpu, self.many.cpu)):
            cells += [f"{few * MS:.2f} ms", f"{many * MS:.2f} ms", f"{many / few:.2f}"]
        return cells

    def bar(self, name: str) -> Bar:
        """That the large store costs hardly more."""
        return Bar(f"{name}, at {MANY:,} commits beside {FEW}", self.many.cpu / self.few.cpu, BAR)


def measure() -> Bench:
    """Do everything in both stores, in turn."""
    with _copy_of(FEW) as few, _copy_of(MANY) as many:
        found = {
            "opening": _in_turn(_opening, (few, many), ROUND_COUNT),
            **_while_open(few, many),
            f"`moonclip log -n {LISTED_COUNT}`": _in_turn(_log_command, (few, many), PROCESS_ROUND_COUNT),
        }
    return Bench(
        name="scale",
        title=f"Milliseconds at {FEW} commits and at {MANY:,}, which have {MANY * OBJECT_COUNT:,} objects",
        columns=("", f"at {FEW}", f"at {MANY:,}", "ratio", f"CPU at {FEW}", f"CPU at {MANY:,}", "ratio"),
        rows=[beside.row(name) for name, beside in found.items()],
        bars=[beside.bar(name) for name, beside in found.items()],
        figures={name: {"few": _seconds(beside.few), "many": _seconds(beside.many)} for name, beside in found.items()},
        notes=[_NOTE],
    )


def _seconds(cost: Cost) -> dict[str, float]:
    """For the JSON file."""
    return {"wall_seconds": cost.wall, "cpu_seconds": cost.cpu}


@contextmanager
def _copy_of(commit_count: int) -> Iterator[Path]:
    """A copy of a history that may be written to."""
    made = history(commit_count)
    with tempfile.TemporaryDirectory(dir=CACHE) as folder:
        copy(made, Path(folder) / "store")
        yield Path(folder) / "store"


# --- what is measured: each gets ready, and gives what is to be timed -------------------------------------------------

Work = Callable[[], None]


def _opening(root: Path) -> Work:
    return lambda: Repository.open(root, thread_count=1).close()


def _log_command(root: Path) -> Work:
    command = [sys.executable, "-m", "moonclip", "-C", str(root), "log", "-n", str(LISTED_COUNT)]
    return lambda: _run(command)


def _run(command: list[str]) -> None:
    subprocess.run(command, check=True, stdout=subprocess.DEVNULL)


class _Run:
    """A training run that has a store open."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._last: LastSave | None = None
        self._step = 0

    def saving(self) -> Work:
        """Save a state of which few tensors differ from the last one."""
        self._step += 1
        parent = self._repo.refs.read(branch_name(DEFAULT_BRANCH))
        item = state(MANY + self._step, CHANGED_COUNT)
        request = SaveRequest([item], DEFAULT_BRANCH, parent, step=self._step, last=self._last)
        return lambda: self._save(request)

    def listing(self) -> Work:
        """The last commits, each read."""
        return self._list

    def describing(self) -> Work:
        """The last commit, with the sizes of its tensors."""
        return self._describe

    def _save(self, request: SaveRequest) -> None:
        self._last = self._repo.save(request).last

    def _list(self) -> None:
        for row in islice(self._repo.log([self._repo.resolve(HEAD)]), LISTED_COUNT):
            self._repo.commit(row.id)

    def _describe(self) -> None:
        describe(self._repo, self._repo.commit(self._repo.resolve(HEAD)), SAFE)


def _while_open(few: Path, many: Path) -> dict[str, Beside]:
    with ExitStack() as stack:
        first, second = (_Run(stack.enter_context(Repository.open(root, thread_count=1))) for root in (few, many))
        return {
            "a save": _in_turn(_Run.saving, (first, second), ROUND_COUNT),
            f"log, {LISTED_COUNT} commits": _in_turn(_Run.listing, (first, second), ROUND_COUNT),
            "describe": _in_turn(_Run.describing, (first, second), ROUND_COUNT),
        }


# --- how --------------------------------------------------------------------------------------------------------------


def _in_turn(prepare: Callable[[T], Work], subjects: tuple[T, T], round_count: int) -> Beside:
    taken: tuple[list[Cost], list[Cost]] = ([], [])
    for subject in subjects:
        prepare(subject)()  # whatever only the first time costs
    for _ in range(round_count):
        for subject, costs in zip(subjects, taken, strict=True):
            costs.append(_timed(prepare(subject)))
    return Beside(*map(_median, taken))


def _median(costs: list[Cost]) -> Cost:
    return Cost(median(cost.wall for cost in costs), median(cost.cpu for cost in costs))


def _timed(work: Work) -> Cost:
    gc.collect()
    gc.disable()
    before, started = _cpu_seconds(), time.perf_counter()
    try:
        work()
    finally:
        gc.enable()
    return Cost(time.perf_counter() - started, _cpu_seconds() - before)


def _cpu_seconds() -> float:
    """Of this process and of those that it started and that have ended."""
    used = [getrusage(who) for who in (RUSAGE_SELF, RUSAGE_CHILDREN)]
    return sum(each.ru_utime + each.ru_stime for each in used)
