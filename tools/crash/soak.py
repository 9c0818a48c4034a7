"""Everybody at once: ``python -m tools.crash.soak --minutes 5`` (``make soak``).

Four processes save and four load, while others prune, collect garbage, repack and check, on one store, for some time.
Nobody may see an error that a user would take for one. In the end a full check finds nothing, and every commit that
was acknowledged, and was not to be dropped, is there bit for bit.

What reflogs alone name is kept for a second here instead of 90 days: else nothing would become garbage in time.
"""

import logging
import sys
import tempfile
import time
from collections import Counter
from collections.abc import Mapping, Sequence
from concurrent.futures import FIRST_COMPLETED, Future, ProcessPoolExecutor, wait
from multiprocessing import get_context
from multiprocessing.synchronize import Event
from pathlib import Path
from traceback import format_exception
from typing import NamedTuple

import click

import store.fsck.roots
import store.upkeep.roots
from store.gc import collect
from store.history.walks import first_parents
from store.ids import short
from store.naming.refnames import branch_name
from store.repository import Repository

from . import roles
from .roles import KEEP_LAST, Role, Tally, Wrong, require, require_clean

_EXPIRY_NS = 1_000_000_000

_HELPERS: Sequence[tuple[Role, int]] = (
    (roles.load, 4),
    (roles.prune, 1),
    (roles.collect_garbage, 1),
    (roles.repack_for_all_goals, 1),
    (roles.check, 1),
)
_WRITERS = 4


class _Job(NamedTuple):
    """What a process is to do: for so many turns, if that is said, and else until it is told to stop."""

    role: Role
    root: Path
    number: int
    turns: int | None = None


class _Stop:
    """Shared by all processes, as only they that are forked can share it."""

    event: Event


def soak(root: Path, seconds: float, saves: int | None) -> tuple[Counter[str], list[str]]:
    """Have everybody at work on a new store.

    Args:
        root: where it is made.
        seconds: how long, at most.
        saves: how many each writer makes, after which all stop; any number if ``None``.

    Returns:
        What was done how often, and all that went wrong.
    """
    for module in (store.upkeep.roots, store.fsck.roots):
        module.REFLOG_EXPIRY_NS = _EXPIRY_NS  # type: ignore[attr-defined]
    roles.begin(root)
    writing = [_Job(roles.write, root, number, saves) for number in range(_WRITERS)]
    helping = [_Job(role, root, number) for role, count in _HELPERS for number in range(count)]
    context = get_context("fork")  # what all of them import is imported once
    _Stop.event = context.Event()
    with ProcessPoolExecutor(len(writing) + len(helping), mp_context=context) as pool:
        writers = {pool.submit(_work, job): job for job in writing}
        helpers = {pool.submit(_work, job): job for job in helping}
        _wait(writers, helpers, time.monotonic() + seconds)
        click.echo("time is up: what is under way is finished, and everything looked at", err=True)
        _Stop.event.set()
    jobs = writers | helpers
    faults = [_told(job, error) for future, job in jobs.items() if (error := future.exception()) is not None]
    done = {job: future.result() for future, job in jobs.items() if future.exception() is None}
    try:
        _require_all(root, done)
    except Exception as error:  # noqa: BLE001 - whatever it is, it is what this looks for
        faults.append("afterwards: " + "".join(format_exception(error)))
    return sum((tally.counts for tally in done.values()), Counter()), faults


def _work(job: _Job) -> Tally:
    logging.getLogger("store").setLevel(logging.ERROR)
    tally = Tally()
    for turn, pause_seconds in enumerate(job.role(job.root, job.number, tally), 1):
        if turn == job.turns or _Stop.event.wait(pause_seconds):
            break
    return tally


def _wait(writers: Mapping[Future[Tally], _Job], helpers: Mapping[Future[Tally], _Job], deadline: float) -> None:
    """Until all writers are done, or something went wrong, or time is up."""
    waiting = {*writers, *helpers}
    while waiting & writers.keys() and (left := deadline - time.monotonic()) > 0:
        done, waiting = wait(waiting, left, FIRST_COMPLETED)
        if any(future.exception() for future in done):
            return


def _told(job: _Job, error: BaseException) -> str:
    return f"{job.role.__name__} {job.number}: " + "".join(format_exception(error))


def _require_all(root: Path, done: Mapping[_Job, Tally]) -> None:
    with Repository.open(root, thread_count=1) as repo:
        require_clean(repo, full=True)
        for job, tally in done.items():
            if job.role is roles.write:
                _require_branch(repo, f"run{job.number}", tally)
        for row in repo.log(repo.refs.list().values()):
            require(repo, row.id)
        collect(repo)
        require_clean(repo, full=True)


def _require_branch(repo: Repository, branch: str, tally: Tally) -> None:
    """A branch is what was acknowledged, and has not lost what a policy keeps."""
    tip = repo.refs.read(branch_name(branch))
    line = [row.id for row in first_parents(repo.lookup, tip)] if tip is not None else []
    if line[::-1] != tally.made:
        raise Wrong(f"branch {branch!r} has {len(line)} commits, and {len(tally.made)} were acknowledged")
    for commit in line[:KEEP_LAST]:
        repo.absences.require(commit)
        require(repo, commit)
    for commit in line:
        step = repo.commit(commit).step
        if step is not None and step % roles.KEEP_EVERY == 0 and repo.absences.reason(commit) is not None:
            raise Wrong(f"commit {short(commit)}, step {step}, was to be kept")


@click.command()
@click.option("--minutes", type=float, default=5.0, show_default=True, help="How long, at most.")
@click.option("--saves", type=click.IntRange(1), help="How many each writer makes, after which all stop.")
@click.option("--directory", type=click.Path(path_type=Path, exists=True), help="Where the store is made.")
def main(minutes: float, saves: int | None, directory: Path | None) -> None:
    """Have many processes at work on one store at once, and look whether anything goes wrong."""
    with tempfile.TemporaryDirectory(dir=directory) as scratch:
        counts, faults = soak(Path(scratch) / "store", 60 * minutes, saves)
    click.echo(", ".join(f"{count:,} {what}" for what, count in sorted(counts.items())))
    for fault in faults:
        click.echo(f"\n{fault}", err=True)
    click.echo(f"{len(faults)} faults")
    sys.exit(1 if faults else 0)


if __name__ == "__main__":
    main()
