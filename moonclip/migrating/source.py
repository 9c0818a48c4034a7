"""What can be migrated: a place that another library saved checkpoints in."""

import re
from collections.abc import Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final, Protocol

_STEP: Final = re.compile(r"step[=_-]?(\d+)")
_NUMBER: Final = re.compile(r"\d+")
_STEPS: Final = 1 << 63
"""A number that is larger is a date or an id."""


@dataclass(frozen=True, slots=True)
class Found:
    """A checkpoint, not read yet.

    Attributes:
        name: what it is called in its source; no two are called the same.
        step: training step, ``None`` if nothing tells.
        time_ns: when it was saved, nanoseconds since the epoch, as its source tells.
    """

    name: str
    step: int | None
    time_ns: int


@dataclass(frozen=True, slots=True)
class Loaded:
    """What a checkpoint holds.

    Attributes:
        items: by name.
        metadata: values to keep with the commit.
        files: what is kept as it is, byte for byte, by path in the commit.
    """

    items: dict[str, Any]
    metadata: dict[str, Any] = field(default_factory=dict)
    files: dict[str, Path] = field(default_factory=dict)


class Source(Protocol):
    """A place with checkpoints of one kind."""

    @property
    def kind(self) -> str:
        """What people call such places."""
        ...

    @property
    def passed_over(self) -> Sequence[str]:
        """Names of what looks like a checkpoint there and is not migrated, since nothing tells its step."""
        ...

    def found(self) -> list[Found]:
        """The checkpoints, in the order in which they are to be committed."""
        ...

    def load(self, found: Found) -> Loaded:
        """Read one of them.

        Raises:
            Unsafe: reading it would run code.
            Incompatible: it is of a form that cannot be migrated; the message says what to do.
            Corrupt: it cannot be read.
            OSError: likewise.
        """
        ...

    def close(self) -> None:
        """End what it started."""
        ...


def step_in(name: str) -> int | None:
    """The step that a name tells: the number behind the word, else the last one; ``None`` if there is none."""
    named = _STEP.findall(name) or _NUMBER.findall(name)
    return step_of(int(named[-1])) if named else None


def step_of(value: Any) -> int | None:
    """A value that was saved as a step; ``None`` if it cannot be one."""
    return value if type(value) is int and 0 <= value < _STEPS else None


def in_order(checkpoints: Sequence[Found]) -> list[Found]:
    """By step, and by name where several have the same."""
    return sorted(checkpoints, key=lambda each: (-1 if each.step is None else each.step, each.name))


def numbers_in(items: dict[str, Any]) -> dict[str, Any]:
    """Of a checkpoint's items those that are numbers: listings of commits show them, if they are metadata as well."""
    return {name: value for name, value in items.items() if type(value) in {int, float}}
