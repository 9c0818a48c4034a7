"""Training runs in children that are killed, and what they told of their losses. For programs that import first.

A program imports a library once and forks a child for each run: what takes seconds happens once.
"""

import os
import signal
from collections.abc import Callable
from pathlib import Path

from tests.killing import forked
from tests.workers import ends, workers

Curve = dict[int, str]
"""Losses by step, in hexadecimal: to the last bit."""


class Told:
    """A file in which a run notes each loss as soon as it has it; what a killed run noted stays."""

    def __init__(self, path: Path) -> None:
        self._path = path

    def note(self, step: int, loss: float) -> None:
        with self._path.open("a") as file:
            file.write(f"{step} {float(loss).hex()}\n")

    def curve(self) -> Curve:
        lines = self._path.read_text().splitlines() if self._path.exists() else []
        curve: Curve = {}
        for step, loss in map(str.split, lines):
            assert int(step) not in curve, "a step was taken twice"
            curve[int(step)] = loss
        return curve


def curve_of(work: Callable[[Told], None], path: Path, *, is_killed: bool = False) -> Curve:
    """Run something in a child that notes its losses; its worker's end is waited for as well.

    Args:
        work: the run. One that is to be killed does so itself, at a step: see :func:`die`.
        path: of the file with the losses.
        is_killed: whether it is to be.
    """
    told = Told(path)
    _, status = os.waitpid(forked(lambda: work(told)), 0)
    assert os.WIFSIGNALED(status) if is_killed else status == 0, f"{path.name}: {status}"
    return told.curve()


def die(*, with_worker: bool = False) -> None:
    """Kill this process in the middle of whatever it does; the worker too, else that finishes what it was given."""
    left = workers(os.getpid())
    if with_worker:
        for worker in left:
            os.kill(worker, signal.SIGKILL)
        assert all(map(ends, left))
    os.kill(os.getpid(), signal.SIGKILL)
