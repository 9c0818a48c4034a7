"""Runs one training process and collects what it tells."""

import subprocess
import sys
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Protocol

from .job import Dying, Ended, Event, Job, Resumed, Saving, Stepped, heard


@dataclass(slots=True)
class Outcome:
    """What became of a job.

    Attributes:
        exit_code: of the process; negative, the signal that killed it.
        start_step: where it began.
        losses: by step.
        saves: in order.
        dying: its last words, if it killed itself.
        digests: SHA-256 of each final tensor by name; empty if it did not get there.
    """

    exit_code: int = 0
    start_step: int = 0
    losses: dict[int, float] = field(default_factory=dict)
    saves: list[Saving] = field(default_factory=list)
    dying: Dying | None = None
    digests: Mapping[str, str] = field(default_factory=dict)

    def note(self, event: Event) -> None:
        """Take one event in."""
        match event:
            case Resumed(step):
                self.start_step = step
            case Stepped(step, loss):
                self.losses[step] = loss
            case Saving():
                self.saves.append(event)
            case Dying():
                self.dying = event
            case Ended(digests):
                self.digests = digests


class Watcher(Protocol):
    """Looks on while a job runs."""

    def watch(self, job: Job, outcome: Outcome, events: Iterable[Event]) -> None:
        """Consume all events; ``outcome`` has taken in each one when it comes."""


def play(watcher: Watcher, job: Job) -> Outcome:
    """Run a job to its end, whatever that is."""
    outcome = Outcome()
    command = [sys.executable, "-m", "tools.demo.trainee", job.encode()]
    with subprocess.Popen(command, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdout is not None
        watcher.watch(job, outcome, _noted(outcome, process.stdout))
    outcome.exit_code = process.returncode
    return outcome


def _noted(outcome: Outcome, lines: Iterable[str]) -> Iterable[Event]:
    for line in lines:
        event = heard(line)
        outcome.note(event)
        yield event
