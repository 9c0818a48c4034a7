"""The worker process. Signals that are meant for the run do not end it; the end of the run does."""

import faulthandler
import gc
import os
import signal
import sys
from typing import Final

_NICE: Final = 19
"""The lowest priority: training goes first. (SCHED_IDLE would be starved for seconds by a busy trainer.)"""

_IGNORED: Final = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGQUIT, signal.SIGUSR1, signal.SIGUSR2)
"""What terminals, service supervisors and batch systems send to all processes of a run, for the script to handle."""

_COLLECTOR_THRESHOLDS: Final = (100_000, 50, 100)
"""Garbage collections are rare: a save of 20,000 tensors makes many objects, hardly any in cycles, and took twice as
long to plan with Python's own thresholds."""


def run(*arguments: str) -> None:
    """Be a worker, and end the process.

    Args:
        arguments: see :func:`store.worker.loop.main`.
    """
    for number in _IGNORED:
        signal.signal(number, signal.SIG_IGN)
    os.nice(_NICE)
    faulthandler.enable()

    from .loop import main  # only now: it takes a fifth of a second to load

    quieten_collector()
    main(*arguments)
    os._exit(0)  # the store is closed; taking the interpreter down as well would keep the trainer waiting


def quieten_collector() -> None:
    """Have the garbage collector look at little, and seldom: modules live on."""
    gc.collect()
    gc.freeze()
    gc.set_threshold(*_COLLECTOR_THRESHOLDS)


if __name__ == "__main__":
    run(*sys.argv[1:])
