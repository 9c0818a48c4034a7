"""What the demo asks of a training process, and what that process tells back: lines of JSON."""

import json
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from typing import Self


@dataclass(frozen=True, slots=True)
class Job:
    """One training process.

    Attributes:
        store: directory of the store; ``None`` trains without saving.
        stop_step: steps are counted from 0; this one is not taken any more.
        save_every: a save at each step that this divides.
        branch: branch to go on with; the store's current one if ``None``.
        rev: where that branch begins, if it is new.
        learning_rate: peak of the schedule from here on; the run's own if ``None``.
        kill_step: SIGKILL itself while the save of this step is being written.
    """

    store: str | None
    stop_step: int
    save_every: int = 5
    branch: str | None = None
    rev: str | None = None
    learning_rate: float | None = None
    kill_step: int | None = None

    def encode(self) -> str:
        """As a command-line argument."""
        return json.dumps(asdict(self))

    @classmethod
    def decode(cls, argument: str) -> Self:
        """From a command-line argument."""
        return cls(**json.loads(argument))


@dataclass(frozen=True, slots=True)
class Stepped:
    """A step was taken; ``loss`` in nats per byte."""

    step: int
    loss: float


@dataclass(frozen=True, slots=True)
class Saving:
    """A save was handed over.

    Attributes:
        step: its step.
        blocked_ns: how long training stood still for the copy, and
        waited_ns: for the save before it.
    """

    step: int
    blocked_ns: int
    waited_ns: int


@dataclass(frozen=True, slots=True)
class Resumed:
    """The run begins at ``step``: 0, or where a stored state left off."""

    step: int


@dataclass(frozen=True, slots=True)
class Dying:
    """The next thing is SIGKILL; the pack of ``step`` has ``written_bytes`` on disk, and no commit."""

    step: int
    written_bytes: int


@dataclass(frozen=True, slots=True)
class Ended:
    """All steps are taken; ``digests`` has the SHA-256 of each tensor of model and optimizer, by name."""

    digests: Mapping[str, str]


Event = Stepped | Saving | Resumed | Dying | Ended

_EVENTS = {kind.__name__: kind for kind in (Stepped, Saving, Resumed, Dying, Ended)}


def tell(event: Event) -> None:
    """Print an event for :func:`heard` to read."""
    print(json.dumps([type(event).__name__, asdict(event)]), flush=True)


def heard(line: str) -> Event:
    """An event from a line that :func:`tell` printed."""
    name, fields = json.loads(line)
    event: Event = _EVENTS[name](**fields)
    return event
