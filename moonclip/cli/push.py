"""``moonclip push``: sending history to a remote."""

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING, Any, Final

import click

from store.errors import NotFound
from store.ids import short
from store.naming.refnames import TAGS, describe, short_name
from store.repository import Repository

from .location import open_store
from .output import echo_json, json_option
from .refs import complete_branch, complete_tag
from .text import counted, inline, printable, size
from .transfers import change_json, change_lines, complete_remote, open_remote_called, span, transferring

if TYPE_CHECKING:
    from store.remotes.pushing.push import Pushed
    from store.remotes.refchanges import RefChange

_NOTES: Final = {"new": "new", "fast-forward": "", "forced": "forced", "current": "up to date", "rejected": "rejected"}


@click.command()
@click.argument("remote_name", metavar="[REMOTE]", required=False, shell_complete=complete_remote)
@click.argument("branches", nargs=-1, metavar="[BRANCH]...", shell_complete=complete_branch)
@click.option("--all", "every", is_flag=True, help="Push every branch.")
@click.option("--tags", "every_tag", is_flag=True, help="Push every tag.")
@click.option("--tag", "tags", multiple=True, metavar="NAME", help="Push this tag.", shell_complete=complete_tag)
@click.option("-d", "--delete", multiple=True, metavar="BRANCH", help="Delete this branch on the remote.")
@click.option(
    "--force-with-lease", is_flag=True, help="Move a branch back or aside, if nobody else has pushed to it since."
)
@click.option("--verify", is_flag=True, help="Look also whether what was pushed before is there, and send what is not.")
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be sent, and send nothing.")
@json_option
@click.pass_context
def push(
    ctx: click.Context,
    remote_name: str | None,
    branches: tuple[str, ...],
    *,
    every: bool,
    every_tag: bool,
    tags: tuple[str, ...],
    delete: tuple[str, ...],
    force_with_lease: bool,
    verify: bool,
    dry_run: bool,
    as_json: bool,
) -> None:
    """Send branches and tags to a remote.

    REMOTE is origin, or the only one there is. Without a BRANCH, --all, --tags, --tag or --delete, pushes the current
    branch. All that is pushed leads to goes along, unless the remote has it: an interrupted push goes on where it was.
    A branch moves forward only, unless it is forced; exits with 1 if one was rejected.
    """
    if every and branches:
        raise click.UsageError("--all goes without names of branches")
    with transferring(ctx, "`moonclip push`") as progress:
        from store.remotes.checking.check import lost_objects
        from store.remotes.pushing.push import push as send

        repo = open_store(ctx, writable=True)
        remote = open_remote_called(ctx, repo, remote_name)
        done = send(
            repo,
            remote,
            branches,
            every=every,
            tags=_tags(repo) if every_tag else tags,
            delete=delete,
            force_with_lease=force_with_lease,
            dry_run=dry_run,
            lost=lost_objects(repo, remote) if verify else (),
            progress=progress,
        )
    if as_json:
        echo_json(_as_json(done, dry_run=dry_run))
    else:
        for line in _lines(done, dry_run=dry_run):
            click.echo(line)
    rejected = [change for change in done.changes if change.why == "rejected"]
    for change in rejected:
        click.echo(f"error: {describe(change.name)}: {printable(change.reason)}", err=True)
    if rejected:
        ctx.exit(1)


def _tags(repo: Repository) -> tuple[str, ...]:
    tags = tuple(short_name(name) for name in repo.refs.names(f"{TAGS}/"))
    if not tags:
        raise NotFound("there are no tags here; `moonclip tag` makes some")
    return tags


# --- for people -----------------------------------------------------------------------------------------------------


def _lines(done: "Pushed", *, dry_run: bool) -> Iterator[str]:
    if not done.changes:
        yield "nothing to push"
        return
    rows = [_row(done.remote, change) for change in done.changes]
    yield from change_lines(rows, _total(done, dry_run=dry_run))
    if done.hollow_count:
        yield f"{counted(done.hollow_count, 'commit')} without all of its content, which is absent here too"


def _row(remote: str, change: "RefChange") -> Sequence[str]:
    kind, _, name = change.name.partition("/")
    there = inline(name if kind == TAGS else f"{remote}/{name}")
    if change.why == "deleted":
        was = "" if change.old is None else f" (was {short(change.old)})"
        return f"{there} deleted{was}", ""
    note = _NOTES[change.why]
    moved = span(change.old, change.new, is_forced=change.why in {"forced", "rejected"})
    return f"{inline(name)} -> {there}", f"{moved} {f'({note})' if note else ''}".strip()


def _total(done: "Pushed", *, dry_run: bool) -> str:
    if not done.object_count:
        return ""
    objects = counted(done.object_count, "object")
    if dry_run:  # what was sent by a push that was interrupted is not known yet, nor what the tables of packs take
        return f"would send {objects}, about {size(done.sent_bytes)}"
    return f"{objects}, {size(done.sent_bytes)}"


# --- for programs ---------------------------------------------------------------------------------------------------


def _as_json(done: "Pushed", *, dry_run: bool) -> dict[str, Any]:
    return {
        "remote": done.remote,
        "dry_run": dry_run,
        "changes": [change_json(change) for change in done.changes],
        "commits": done.commit_count,
        "commits_without_content": done.hollow_count,
        "objects": done.object_count,
        "stored_bytes": done.stored_bytes,
        "sent_bytes": done.sent_bytes,
        "packs": done.pack_count,
        "skipped_packs": done.skipped_packs,
    }
