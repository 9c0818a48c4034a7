"""Saves very many times, with memory looked at now and then."""

from pathlib import Path

from ..peers.libraries import adapter
from ..workloads import warmed_up
from ..workloads.run import state_bytes
from .telling import ask, tell


def last(library: str, root: str, workload: str, count: int, every: int) -> None:
    """Save ``count`` times, a step apart; be looked at, all saves being durable, after ``every`` so many."""
    run = warmed_up(workload)
    run.step(3)
    tell("state", bytes=state_bytes(run.items))
    opened = adapter(library)(Path(root))
    for number in range(1, count + 1):
        settle = opened.save(number, run.items)
        run.step()
        if number % every == 0:
            settle()
            ask("watch", label=str(number))
            ask("watched")
    opened.close()
