"""Training steps with their times."""

import time
from contextlib import AbstractContextManager
from dataclasses import dataclass
from typing import Any, Protocol

from ..workloads.run import Run


class Guarding(Protocol):
    """What may have something to say before the optimizer steps."""

    def guard(self) -> AbstractContextManager[object]:
        """Around the optimizer's step."""


@dataclass(frozen=True, slots=True)
class Step:
    """Seconds of one step.

    Attributes:
        all_s: from its beginning to its end.
        until_update_s: until the optimizer began to move parameters: past locks, and past all hooks.
        held_s: how long locks and hooks took.
    """

    all_s: float
    until_update_s: float
    held_s: float


class Stepper:
    """Trains step by step."""

    def __init__(self, run: Run) -> None:
        self._run = run
        self._updating_s = 0.0
        # Hooks of the optimizer's own run after those that are set for all optimizers.
        run.optimizer.register_step_pre_hook(self._note_update)

    def step(self, library: Guarding) -> Step:
        """One step, beside a library that may be saving."""
        begun_s = time.perf_counter()
        self._run.learn()
        learned_s = time.perf_counter()
        with library.guard():
            self._run.update()
        ended_s = time.perf_counter()
        return Step(ended_s - begun_s, self._updating_s - begun_s, self._updating_s - learned_s)

    def _note_update(self, *_: Any) -> None:
        self._updating_s = time.perf_counter()
