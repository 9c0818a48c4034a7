"""The saves that this process has under way, and its end: no save is lost in silence.

An exit handler waits for the saves under way; a save that is lost all the same is told on stderr and in the exit code.
"""

import atexit
import os
import sys
from pathlib import Path
from typing import Protocol


class Drained(Protocol):
    """Whatever has saves under way."""

    def settle(self, root: Path) -> None:
        """Wait for those that go to the store in a directory; not where they would wait for the caller."""
        ...

    def drain(self) -> list[str]:
        """Wait for them; one line for each save that is lost and that nobody was told of."""
        ...


_living: set[Drained] = set()


def drain_at_exit(saves: Drained) -> None:
    """Have ``saves`` drained at exit.

    Registered anew each time: exit handlers run last in, first out, and this one needs whatever the modules that
    were imported since would tear down.
    """
    _living.add(saves)
    atexit.unregister(_drain_all)
    atexit.register(_drain_all)


def await_saves(root: Path) -> None:
    """Wait for all saves of this process that go to the store in a directory.

    A manager that was dropped, or is about to be, may have one that has not begun: whoever opens another one there
    would go on from the commit before it, and be refused.
    """
    for saves in list(_living):
        saves.settle(root)


def spare(saves: Drained) -> None:
    """There is nothing to drain any more."""
    _living.discard(saves)


def give_up(lost: list[str]) -> None:
    """End the process at once, saying which saves are lost."""
    try:
        for line in lost:
            print(f"moonclip: {line}", file=sys.stderr)
        for stream in filter(None, (sys.stdout, sys.stderr)):  # a program without a terminal may have none
            stream.flush()
    finally:
        os._exit(1)  # an exception in an exit handler would leave the exit code 0


def _drain_all() -> None:
    lost: list[str] = []
    drained: set[Drained] = set()
    while waiting := _living - drained:  # a callback of a Future may open others meanwhile
        for saves in waiting:
            lost += saves.drain()
        drained |= waiting
    if lost:
        give_up(lost)
