"""``moonclip fetch``: getting history from a remote."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from store.ids import CommitId, short
from store.naming.refnames import REMOTES, describe, short_name
from store.repository import Repository

from .location import open_store
from .output import echo_json, json_option
from .refs import complete_revision
from .text import counted, inline, printable, size
from .transfers import change_json, change_lines, complete_remote, open_remote_called, span, transferring, warn

if TYPE_CHECKING:
    from store.remotes.fetching.fetch import Fetched
    from store.remotes.refchanges import RefChange

_NOTES: Final = {
    "new": "new",
    "fast-forward": "",
    "forced": "forced",
    "rejected": "not moved",
}


@click.command()
@click.argument("remote_name", metavar="[REMOTE]", required=False, shell_complete=complete_remote)
@click.argument("branches", nargs=-1, metavar="[BRANCH]...")
@click.option("--item", "items", multiple=True, metavar="NAME", help="Fetch only this item of each commit.")
@click.option("--depth", type=click.IntRange(min=1), metavar="COUNT", help="Content of so many newest commits only.")
@click.option(
    "--commit",
    "revisions",
    multiple=True,
    metavar="REVISION",
    help="Content of this commit, also if it was pruned here.",
    shell_complete=complete_revision,
)
@click.option("--prune", is_flag=True, help="Forget branches that the remote has no longer.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be fetched, and fetch nothing.")
@json_option
@click.pass_context
def fetch(
    ctx: click.Context,
    remote_name: str | None,
    branches: tuple[str, ...],
    *,
    items: tuple[str, ...],
    depth: int | None,
    revisions: tuple[str, ...],
    prune: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Get branches and tags from a remote.

    REMOTE is origin, or the only one there is. Its branch main is then called origin/main; branches of your own stay
    where they are, which `moonclip pull` moves too. History always comes whole; what --item and --depth leave out, and
    what was pruned here, stays absent. What is here is not fetched again: an interrupted fetch goes on where it was.
    Exits with 1 if something is damaged there; what is not is fetched nevertheless.
    """
    with transferring(ctx, "`moonclip fetch`") as progress:
        from store.remotes.fetching.fetch import fetch as get

        repo = open_store(ctx, writable=True)
        commits = [repo.resolve(revision) for revision in revisions]
        remote = open_remote_called(ctx, repo, remote_name)
        done = get(
            repo,
            remote,
            branches,
            commits=commits,
            items=items or None,
            depth=depth,
            prune=prune,
            dry_run=dry_run,
            progress=progress,
        )
    if as_json:
        echo_json(fetched_json(done, dry_run=dry_run))
    else:
        lines = [*fetched_lines(done, dry_run=dry_run), *_commit_lines(repo, commits, dry_run=dry_run)]
        for line in lines or ["nothing new"]:
            click.echo(line)
    _tell_problems(done)
    if done.damaged:
        ctx.exit(1)


# --- for people -----------------------------------------------------------------------------------------------------


def fetched_lines(done: "Fetched", *, dry_run: bool = False) -> Iterator[str]:
    """What a fetch did, if anything: each ref that moved, and what came."""
    changes = [change for change in done.changes if change.why != "current"]
    total = _total(done, dry_run=dry_run)
    if changes:
        yield from change_lines([_row(change) for change in changes], total)
    elif total:
        yield total


def _commit_lines(repo: Repository, commits: Sequence[CommitId], *, dry_run: bool) -> Iterator[str]:
    """What is here of commits that were asked for by name: it may have been here all the time, marked as pruned."""
    for commit in () if dry_run else commits:
        records = repo.absences.records(commit)
        yield f"commit {short(commit)} {'is not whole: see `moonclip log`' if records else 'is whole'}"


def _tell_problems(done: "Fetched") -> None:
    remote = printable(done.remote)
    for change in done.changes:
        if change.why == "rejected":
            warn(f"{describe(change.name)}: {change.reason}")
    for branch in done.diverged:
        warn(f"stores that push to {remote} went different ways on {branch!r}; `moonclip branch -r` has them")
    for name, why in done.damaged.items():
        click.echo(f"error: {printable(f'{describe(name)} of {remote} was not fetched: {why}')}", err=True)


def _row(change: "RefChange") -> Sequence[str]:
    here = short_name(change.name)
    if change.why == "deleted":
        was = "" if change.old is None else f" (was {short(change.old)})"
        return f"{inline(here)} deleted{was}", ""
    there = here.partition("/")[2] if change.name.startswith(f"{REMOTES}/") else here
    note = _NOTES[change.why]
    moved = span(change.old, change.new, is_forced=change.why in {"forced", "rejected"})
    return f"{inline(there)} -> {inline(here)}", f"{moved} {f'({note})' if note else ''}".strip()


def _total(done: "Fetched", *, dry_run: bool) -> str:
    if dry_run:  # how much of it these need shows only in what would be fetched
        most = f"at most {size(done.most_bytes)}"
        return f"would fetch {counted(done.commit_count, 'commit')}, {most}" if done.commit_count else ""
    return f"{counted(done.object_count, 'object')}, {size(done.received_bytes)}" if done.object_count else ""


# --- for programs ---------------------------------------------------------------------------------------------------


def fetched_json(done: "Fetched", *, dry_run: bool = False) -> dict[str, Any]:
    """The same for programs."""
    return {
        "remote": done.remote,
        "dry_run": dry_run,
        "changes": [change_json(change) for change in done.changes],
        "commits": done.commit_count,
        "objects": done.object_count,
        "received_bytes": done.received_bytes,
        "most_bytes": done.most_bytes,
        "diverged": done.diverged,
        "damaged": done.damaged,
    }
