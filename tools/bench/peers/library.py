"""What a library has to do to be measured. Adapters use each one as its own documentation would have it."""

import os
from collections.abc import Callable
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any, ClassVar, Protocol

from ..workloads.run import Items

Settle = Callable[[], object]
"""Waits until a save is durable; may be called in another thread while training goes on."""


class Library(Protocol):
    """One checkpoint library, opened on a directory."""

    is_exact: ClassVar[bool]
    """Whether it keeps every bit."""
    keeps_deltas: ClassVar[bool]
    """Whether a save may need an earlier one to be read."""

    def __init__(self, root: Path) -> None: ...

    def begin(self, items: Items) -> None:
        """What a training script calls before its first step; there is nothing to resume from yet."""

    def save(self, step: int, items: Items) -> Settle:
        """Save; returns when the training loop may go on."""

    def guard(self) -> AbstractContextManager[object]:
        """What its documentation wants around the optimizer's step."""

    def load(self, step: int, items: Items) -> None:
        """Load into live objects."""

    def steps(self) -> list[int]:
        """Steps it lists, in the order they were saved."""

    def load_state(self, step: int) -> dict[str, Any]:
        """State dicts by item, built anew."""

    def close(self) -> None:
        """Let go of everything."""


def sync_file(path: Path) -> None:
    """Make a file durable that a library has only written, and its name."""
    _sync(path)
    _sync(path.parent)


def sync_folder(folder: Path) -> None:
    """Make a directory durable, and all that lies below."""
    for place, _, names in os.walk(folder):
        for name in names:
            _sync(Path(place) / name)
        _sync(Path(place))
    _sync(folder.parent)


def _sync(path: Path) -> None:
    fd = os.open(path, os.O_RDONLY)
    try:
        os.fsync(fd)
    finally:
        os.close(fd)


def durable_already() -> None:
    """How a save that was durable when it returned settles."""
