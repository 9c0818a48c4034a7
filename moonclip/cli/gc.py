"""``moonclip gc``: removing what nothing leads to, and giving its space back."""

import math
import time
from collections.abc import Iterator
from dataclasses import asdict
from typing import TYPE_CHECKING, Any

import click

from store.gc import Collected, collect
from store.history.conditions import moment_ns

from .location import open_store
from .output import echo_json, json_option
from .progress import progress_bar
from .text import counted, printable, size
from .transfers import complete_remote, open_remote_called

if TYPE_CHECKING:
    from store.remotes.checking.gc import RemoteCollected


@click.command()
@click.option("--remote", "remote_name", metavar="NAME", help="Of this remote instead.", shell_complete=complete_remote)
@click.option("--grace", metavar="TIME", help="With --remote: how long packs stay condemned, '36h'; else 24 hours.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
@click.pass_context
def gc(ctx: click.Context, *, remote_name: str | None, grace: str | None, dry_run: bool, as_json: bool) -> None:
    """Remove what nothing leads to any more.

    Kept is all that branches, tags, pins and the last 90 days of reflogs lead to, but for what was pruned; history is
    always kept. Saves and loads go on meanwhile. It works on a full disk, can be stopped at any time, and goes on when
    it is called again.

    On a remote, kept is all that branches and tags there lead to, whichever store pushed them. It takes two runs: the
    first condemns packs, and one that comes after the grace, by the remote's clock, removes them. The grace has to be
    longer than any push takes.
    """
    if grace is not None and remote_name is None:
        raise click.UsageError("--grace goes with --remote")
    if remote_name is not None:
        _collect_remote(ctx, remote_name, grace, dry_run=dry_run, as_json=as_json)
        return
    repo = open_store(ctx, writable=not dry_run)
    with progress_bar() as progress:
        done = collect(repo, dry_run=dry_run, progress=progress)
    if as_json:
        echo_json(_as_json(done))
        return
    for line in _lines(done):
        click.echo(line)


def _as_json(done: "Collected | RemoteCollected") -> dict[str, Any]:
    return {("dry_run" if name == "is_dry_run" else name): value for name, value in asdict(done).items()}


def _lines(done: Collected) -> Iterator[str]:
    remove, free, lose = (
        ("would remove", "would free", "would lose") if done.is_dry_run else ("removed", "freed", "lost")
    )
    if not (done.object_count or done.removed_count or done.compacted_count):
        yield "nothing to remove"
    else:
        yield f"{remove} {counted(done.object_count, 'object')} of {size(done.object_bytes)}"
        yield f"{free} {size(done.freed_bytes)} ({_packs(done)})"
        if done.freed_bytes < done.object_bytes and not (done.left or done.repack_bytes):
            yield "the rest lies in packs nine tenths of which are needed, and stays until they go"
    if done.repack_bytes:
        take = "would then take" if done.is_dry_run else "takes"
        yield f"`moonclip repack` {take} {size(done.repack_bytes)} more out of packs most of which is needed"
    if done.commit_count:
        yield f"{counted(done.commit_count, 'commit')} that nothing leads to {lose} what they held"
    for pack, why in done.left.items():
        yield f"pack {pack} stays: {printable(why)}"


def _packs(done: Collected) -> str:
    removed = f"{counted(done.removed_count, 'pack')} removed"
    if not done.compacted_count:
        return removed
    return f"{removed}, {counted(done.compacted_count, 'pack')} replaced by {done.made_count:,}"


# --- of a remote ----------------------------------------------------------------------------------------------------


def _collect_remote(ctx: click.Context, name: str, grace: str | None, *, dry_run: bool, as_json: bool) -> None:
    repo = open_store(ctx, writable=not dry_run)
    from store.limits import REMOTE_GRACE_SECONDS
    from store.remotes.checking.gc import remote_gc

    now_ns = time.time_ns()
    grace_seconds = REMOTE_GRACE_SECONDS if grace is None else (now_ns - moment_ns(grace, now_ns)) / 1e9
    remote = open_remote_called(ctx, repo, name)
    with progress_bar() as progress:
        done = remote_gc(repo, remote, grace_seconds=grace_seconds, dry_run=dry_run, progress=progress)
    if as_json:
        echo_json(_as_json(done))
        return
    for line in _remote_lines(done):
        click.echo(line)


def _remote_lines(done: "RemoteCollected") -> Iterator[str]:
    would = "would be " if done.is_dry_run else ""
    if done.removed_count:
        yield f"{counted(done.removed_count, 'pack')} of {size(done.freed_bytes)} {would}removed"
    if done.condemned_count:
        yield (
            f"{counted(done.condemned_count, 'pack')} of {size(done.condemned_bytes)} {would}condemned; gc removes them"
            f" when it runs {_wait(done.wait_seconds)}, unless something there needs them again"
        )
    if done.pardoned_count:
        yield f"{counted(done.pardoned_count, 'pack')} that had been condemned {would}kept after all"
    if done.aborted_count:
        yield f"{counted(done.aborted_count, 'unfinished upload')} {would}ended"
    if not (done.removed_count or done.condemned_count or done.pardoned_count or done.aborted_count):
        yield "nothing to remove"


def _wait(wait_seconds: float) -> str:
    minutes = math.ceil(wait_seconds / 60)
    if minutes > 90:
        return f"in {counted(math.ceil(minutes / 60), 'hour')} or later"
    return f"in {counted(minutes, 'minute')} or later" if minutes > 0 else "again"
