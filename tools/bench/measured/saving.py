"""The session behind a row of the save bench: one library, one run, in one process of its own.

Undisturbed steps; then the library is opened and some steps are trained, as any run does before its first save; then
saves while training goes on; then saves on idle cores; then saves while memory is watched from outside; then one to
be loaded by another process. After each save the process trains at least until it is durable.
"""

import threading
import time
from contextlib import AbstractContextManager, nullcontext
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, Final

from ..peers.libraries import adapter
from ..peers.library import Library, Settle
from ..workloads import warmed_up
from ..workloads.run import Run, state_bytes
from .clocks import descendants_stopped, forget_peak, peak_rss_bytes, tree_cpu_s
from .digests import digest
from .series import directory_bytes
from .stepping import Step, Stepper
from .telling import ask, tell

_SETTLE_STEPS: Final = 3
"""Untimed: first steps get memory and fill caches."""


@dataclass(frozen=True, slots=True)
class Plan:
    """How much of everything a session does.

    Attributes:
        library: adapter's name.
        root: directory for the store.
        workload: name of the run.
        undisturbed: steps before the library is opened, and between saves.
        opening: steps between opening and the first save.
        training: saves while training goes on, after the first two.
        captured: saves that a step is trained after while other processes of the library stand still.
        idle: saves on idle cores.
        watched: saves while memory is watched.
    """

    library: str
    root: str
    workload: str
    undisturbed: int = 4
    opening: int = 3
    training: int = 3
    captured: int = 0
    idle: int = 2
    watched: int = 1


class Session:
    """One library beside one run."""

    def __init__(self, plan: Plan) -> None:
        self._plan = plan
        self._run: Run = warmed_up(plan.workload)
        self._stepper = Stepper(self._run)
        self._save_count = 0
        self._library: Library

    def go(self) -> None:
        """All of it."""
        plan = self._plan
        self._steps(_SETTLE_STEPS, _Nothing())
        tell("state", bytes=state_bytes(self._run.items))
        self._undisturbed(_Nothing())
        ask("watch", label="alone")
        self._steps(2, _Nothing())
        ask("watched")
        forget_peak()
        self._steps(2, _Nothing())
        alone_bytes = peak_rss_bytes()
        self._open()
        for number in range(2 + plan.training):
            self._save_while_training(first=number < 2)
            self._undisturbed(self._library)
        tell("peak", bytes=peak_rss_bytes() - alone_bytes)
        for _ in range(plan.captured):
            self._save_captured()
        for _ in range(plan.idle):
            self._save_idle()
        self._save_watched()
        self._save_last()
        self._library.close()

    def _open(self) -> None:
        started_s = time.perf_counter()
        self._library = adapter(self._plan.library)(Path(self._plan.root))
        self._library.begin(self._run.items)
        tell("opened", seconds=time.perf_counter() - started_s)
        self._steps(self._plan.opening, self._library)

    def _undisturbed(self, beside: "Library | _Nothing") -> None:
        steps = self._steps(self._plan.undisturbed, beside)
        tell("undisturbed", steps=[asdict(step) for step in steps])

    def _save_while_training(self, *, first: bool) -> None:
        """Save, and train until it is durable."""
        before_bytes = directory_bytes(Path(self._plan.root))
        started_s = time.perf_counter()
        settling = _Settling(self._save())
        blocked_s = time.perf_counter() - started_s
        steps = self._steps_until(settling)
        stored_bytes = directory_bytes(Path(self._plan.root)) - before_bytes
        tell(
            "saved",
            first=first,
            blocked_s=blocked_s,
            steps=[asdict(step) for step in steps],
            durable_s=settling.ended_s - started_s,
            stored_bytes=stored_bytes,
        )

    def _save_captured(self) -> None:
        """Save, and train until the optimizer has moved parameters: what letting go of the state takes."""
        self._undisturbed(self._library)
        with descendants_stopped():
            started_s = time.perf_counter()
            settle = self._save()
            blocked_s = time.perf_counter() - started_s
            step = self._stepper.step(self._library)
        settle()
        tell("captured", blocked_s=blocked_s, step=asdict(step))

    def _save_idle(self) -> None:
        """Save and wait."""
        self._steps(2, self._library)
        started_cpu_s, started_s = tree_cpu_s(), time.perf_counter()
        self._save()()
        seconds = time.perf_counter() - started_s
        tell("idle", durable_s=seconds, cpu_s=tree_cpu_s() - started_cpu_s)

    def _save_watched(self) -> None:
        ask("watch", label="saving")
        for _ in range(self._plan.watched):
            self._steps(1, self._library)
            self._steps_until(_Settling(self._save()))
        ask("watched")

    def _save_last(self) -> None:
        """Save, go on training, and tell what a later load has to bring back."""
        expected = digest(self._run.items)
        settling = _Settling(self._save())
        self._steps_until(settling)
        tell("last", step=self._save_count, digest=expected)

    def _save(self) -> Settle:
        self._save_count += 1
        return self._library.save(self._save_count, self._run.items)

    def _steps(self, count: int, beside: "Library | _Nothing") -> list[Step]:
        return [self._stepper.step(beside) for _ in range(count)]

    def _steps_until(self, settling: "_Settling") -> list[Step]:
        steps = [self._stepper.step(self._library)]
        while not settling.is_done:
            steps.append(self._stepper.step(self._library))
        settling.join()
        return steps


class _Nothing:
    """No library yet."""

    def guard(self) -> AbstractContextManager[object]:
        return nullcontext()


class _Settling:
    """Waits in a thread until a save is durable."""

    def __init__(self, settle: Settle) -> None:
        self.ended_s = 0.0
        self._settle = settle
        self._error: BaseException | None = None
        self._thread = threading.Thread(target=self._wait)
        self._thread.start()

    @property
    def is_done(self) -> bool:
        """Whether it is."""
        return not self._thread.is_alive()

    def join(self) -> None:
        """Raise what the save failed with, if it did."""
        self._thread.join()
        if self._error is not None:
            raise self._error

    def _wait(self) -> None:
        try:
            self._settle()
        except BaseException as error:  # noqa: BLE001 - raised in the main thread
            self._error = error
        self.ended_s = time.perf_counter()


def save(**plan: Any) -> None:
    """Run a session; see :class:`Plan`."""
    Session(Plan(**plan)).go()
