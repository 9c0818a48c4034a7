"""Every crash point of everything that changes a store: ``python -m tools.crash [OPERATION]...`` (``make crash``).

For each call to the disk that an operation makes: it fails once, the disk is full from then on, or the process dies
there; with the index as it is, lost, stale or garbled. And after each of them the power fails, and of what was not
synced everything, nothing, or some is lost. Then the store is opened again, every acknowledged commit is read and
compared, the store is checked in full, and the operation is done once more.
"""

import logging
import os
import sys
import tempfile
import time
import traceback
from collections import Counter
from collections.abc import Callable, Iterator
from concurrent.futures import ProcessPoolExecutor
from dataclasses import dataclass, field
from pathlib import Path

import click
from rich.console import Console
from rich.table import Table

from .cuts import Recorded
from .operations import OPERATIONS
from .scratch import scratch
from .trials import FAULTS, Trials

_LOSS_SEEDS = 4
POWER = "power cut"


@dataclass
class Outcome:
    """What became of the crash points of one operation.

    Attributes:
        operation: its name.
        counts: crash points, by kind of crash.
        losses: those after which something was lost or wrong, and what was.
        seconds: how long it took.
    """

    operation: str
    counts: Counter[str] = field(default_factory=Counter)
    losses: list[str] = field(default_factory=list)
    seconds: float = 0.0


def crash(name: str) -> Outcome:
    """Crash an operation everywhere."""
    logging.getLogger("store").setLevel(logging.ERROR)  # that an index is rebuilt is what is wanted here
    outcome, began = Outcome(name), time.monotonic()
    for kind, attempt in _crashes(name):
        outcome.counts[kind] += 1
        try:
            attempt()
        except Exception:  # noqa: BLE001 - whatever it is, it is what this looks for; the others are tried as well
            outcome.losses.append(f"{kind}, crash point {outcome.counts[kind]}:\n{traceback.format_exc(limit=-3)}")
    outcome.seconds = time.monotonic() - began
    return outcome


def _crashes(name: str) -> Iterator[tuple[str, Callable[[], object]]]:
    operation = OPERATIONS[name]
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        trials = Trials(Path(directory), operation)
        count = trials.operation_count()
        for fault_name, fault in FAULTS.items():
            for change in trials.index_changes:
                for number in range(count):
                    yield fault_name, lambda f=fault, n=number, c=change: trials.require_recovery(f, n, c)  # type: ignore[misc]
    if name == "reindex":
        return  # changes nothing but the index, which LMDB makes durable by itself
    with tempfile.TemporaryDirectory(dir=scratch()) as directory:
        recorded = Recorded(Path(directory), operation)
        variant = 0
        for cut in recorded.cuts(_LOSS_SEEDS):
            put, variant = cut.indexes[variant % len(cut.indexes)], variant + 1
            yield POWER, lambda c=cut, p=put: recorded.require_recovery(c, p)  # type: ignore[misc]


@click.command()
@click.argument("operations", nargs=-1, type=click.Choice(sorted(OPERATIONS)), metavar="[OPERATION]...")
def main(operations: tuple[str, ...]) -> None:
    """Crash OPERATIONS, or all there are, at every point, and look what is left."""
    names = operations or tuple(OPERATIONS)
    table = Table(*("operation", *FAULTS, POWER, "lost", "seconds"))
    lost: list[str] = []
    total = 0
    with ProcessPoolExecutor(max_workers=len(os.sched_getaffinity(0))) as pool:
        for outcome in pool.map(crash, names):
            counts = [outcome.counts[kind] for kind in (*FAULTS, POWER)]
            total += sum(counts)
            lost += [f"{outcome.operation}: {loss}" for loss in outcome.losses]
            table.add_row(outcome.operation, *map(str, counts), str(len(outcome.losses)), f"{outcome.seconds:.0f}")
            click.echo(f"{outcome.operation}: {sum(counts)} crash points, {len(outcome.losses)} lost", err=True)
    Console().print(table)
    click.echo(f"{total:,} crash points, {len(lost)} losses")
    for loss in lost[:20]:
        click.echo(f"\n{loss}", err=True)
    sys.exit(1 if lost else 0)


if __name__ == "__main__":
    main()
