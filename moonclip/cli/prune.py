"""``moonclip prune``: dropping the content of old commits."""

import time
from collections.abc import Iterator, Sequence
from datetime import timedelta
from typing import Any, Final, Literal, cast

import click

from store.errors import Corrupt, Incompatible, NotFound
from store.gc import Collected, collect
from store.history.conditions import moment_ns, number_of
from store.ids import CommitId, short
from store.naming.refnames import BRANCHES, branch_name
from store.repository import Repository
from store.upkeep.prune import Drop, Pruner
from store.upkeep.prunesizes import measured
from store.upkeep.retention import Keep

from .location import open_store
from .output import echo_json, json_option
from .progress import progress_bar
from .refs import complete_branch
from .text import columns, counted, inline, size

_COUNT_DIGITS: Final = 18
"""Longest number of commits that is read as one: Python refuses to parse some thousand digits."""

_Best = tuple[str, Literal["min", "max"], int]


class BestType(click.ParamType[_Best]):
    """``loss:min:3``: a key of the metadata, which of its values are best, and how many."""

    name = "KEY:min|max:COUNT"

    def convert(self, value: Any, param: click.Parameter | None, ctx: click.Context | None) -> _Best:
        """Parse it; a key may hold colons."""
        try:
            key, mode, count = str(value).rsplit(":", 2)
            best = cast("_Best", (key, mode, int(count)))
            Keep(best=best)  # it says so if it is none
        except (ValueError, Incompatible):
            self.fail(f"{value!r} is not like 'loss:min:3'", param, ctx)
        return best


@click.command()
@click.option("--keep-last", type=click.IntRange(min=1), metavar="COUNT", help="Keep so many newest of each branch.")
@click.option("--keep-every", type=click.IntRange(min=1), metavar="STEPS", help="Keep the first of each so many steps.")
@click.option("--keep-best", type=BestType(), help="Keep the best of each branch, by their metadata: 'loss:min:3'.")
@click.option("--keep-within", metavar="TIME", help="Keep what is no older: '7d', '36h', '2026-11-29'.")
@click.option(
    "--items", multiple=True, metavar="NAME", help="Drop this item instead of whole commits; may be repeated."
)
@click.option("--older-than", metavar="TIME|COUNT", help="Whose items: '30d', or all but so many newest commits.")
@click.option(
    "--branch", "branches", multiple=True, metavar="NAME", help="Only on this branch.", shell_complete=complete_branch
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be dropped, and drop nothing.")
@click.option("--gc", "with_gc", is_flag=True, help="Then run gc, which gives the space back.")
@json_option
@click.pass_context
def prune(
    ctx: click.Context,
    *,
    keep_last: int | None,
    keep_every: int | None,
    keep_best: _Best | None,
    keep_within: str | None,
    items: tuple[str, ...],
    older_than: str | None,
    branches: tuple[str, ...],
    dry_run: bool,
    with_gc: bool,
    as_json: bool,
) -> None:
    """Drop the content of old commits, or items of them.

    Of each branch, what any --keep option keeps stays, and the other commits are dropped. Tips of branches, tags, pins
    and what only a reflog still names are never dropped. History stays: `moonclip log` shows commits that were pruned.
    """
    is_about_items = bool(items) or older_than is not None
    if is_about_items == any(part is not None for part in (keep_last, keep_every, keep_best, keep_within)):
        raise click.UsageError("give either --keep options, or --items and --older-than")
    if is_about_items and (not items or older_than is None):
        raise click.UsageError("--items and --older-than go together")
    repo = open_store(ctx, writable=not dry_run)
    pruner = Pruner(repo)
    if older_than is not None:
        drops = pruner.items(items, _age(older_than), branches)
    else:
        drops = pruner.by_policy(_keep(keep_last, keep_every, keep_best, keep_within), branches)
    if keep_best is not None:
        _require_number(repo, keep_best[0], branches)
    drops = measured(repo, drops)
    if not dry_run:
        drops = pruner.apply(drops)
    collected = _collected(repo, dry_run=dry_run) if with_gc else None
    if as_json:
        echo_json(_as_json(drops, collected, dry_run=dry_run))
        return
    for line in _lines(drops, dry_run=dry_run):
        click.echo(line)
    if collected is not None:
        click.echo(_given_back(collected))
    elif drops and not dry_run:
        click.echo("`moonclip gc` gives the space back")


def _require_number(repo: Repository, key: str, branches: Sequence[str]) -> None:
    """A key that is misspelt drops nothing, which should not look as if all were well."""
    tips = [repo.resolve(branch_name(name)) for name in branches] or repo.refs.list(f"{BRANCHES}/").values()
    if not any(_has_number(repo, row.id, key) for row in repo.log(tips)):
        raise NotFound(f"no commit has a number {key!r} in its metadata; `moonclip log` shows what they have", key=key)


def _has_number(repo: Repository, commit: CommitId, key: str) -> bool:
    try:
        return number_of(repo.commit(commit).metadata.get(key)) is not None
    except Corrupt:  # it never is best
        return False


def _collected(repo: Repository, *, dry_run: bool) -> Collected:
    with progress_bar() as progress:
        return collect(repo, dry_run=dry_run, progress=progress)


def _given_back(collected: Collected) -> str:
    freed = size(max(0, collected.freed_bytes))
    if collected.is_dry_run:  # the commits are still there, so it counts nothing of theirs
        return f"gc would give {freed} back besides, that nothing leads to already"
    return f"gc gave {freed} back"


def _keep(keep_last: int | None, keep_every: int | None, keep_best: _Best | None, keep_within: str | None) -> Keep:
    return Keep(keep_last, keep_every, keep_best, None if keep_within is None else _span(keep_within))


def _age(text: str) -> int | timedelta:
    is_count = text.isdecimal() and len(text) <= _COUNT_DIGITS
    return int(text) if is_count else _span(text)


def _span(text: str) -> timedelta:
    now_ns = time.time_ns()
    ago_us = (now_ns - moment_ns(text, now_ns)) // 1_000
    if ago_us < 0:
        raise Incompatible(f"{text!r} lies in the future; write how long ago, '36h' or '2d', or a date that is past")
    return timedelta(microseconds=min(ago_us, timedelta.max // timedelta(microseconds=1)))


def _lines(drops: Sequence[Drop], *, dry_run: bool) -> Iterator[str]:
    if not drops:
        yield "nothing to drop"
        return
    yield from columns([_row(drop) for drop in drops], right=(1, 2))
    freed = f"{counted(len(drops), 'commit')}, {size(_freed_bytes(drops))}"
    yield ""
    yield f"would drop {freed}" if dry_run else f"dropped {freed}"


def _row(drop: Drop) -> list[str]:
    row = drop.row
    step = "" if row.step is None else f"step {row.step}"
    items = "" if drop.items is None else ", ".join(map(inline, drop.items))
    return [short(row.id), step, size(drop.freed_bytes or 0), inline(row.branch), items]


def _as_json(drops: Sequence[Drop], collected: Collected | None, *, dry_run: bool) -> dict[str, Any]:
    return {
        "dry_run": dry_run,
        "freed_bytes": _freed_bytes(drops),
        "gc_freed_bytes": None if collected is None else collected.freed_bytes,
        "dropped": [
            {
                "commit": drop.row.id.hex(),
                "step": drop.row.step,
                "branch": drop.row.branch,
                "items": None if drop.items is None else list(drop.items),
                "freed_bytes": drop.freed_bytes,
            }
            for drop in drops
        ],
    }


def _freed_bytes(drops: Sequence[Drop]) -> int:
    return sum(drop.freed_bytes or 0 for drop in drops)
