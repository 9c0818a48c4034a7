"""``moonclip pin`` and ``moonclip unpin``: commits that are kept whatever policies say."""

import time

import click

from store.errors import MoonclipError
from store.ids import CommitId, short
from store.repository import Repository
from store.upkeep.pins import Pin

from .commits import summary
from .location import open_store
from .output import echo_json_list, json_option
from .refs import complete_revision
from .text import age, columns, iso_date, one_line


@click.command()
@click.argument("revision", required=False, shell_complete=complete_revision)
@click.option("-m", "--message", default="", metavar="TEXT", help="Why.")
@json_option
@click.pass_context
def pin(ctx: click.Context, revision: str | None, message: str, *, as_json: bool) -> None:
    """List or make pins.

    What is pinned is never pruned, and stays although no branch reaches it any more.
    """
    if revision is None and message:
        raise click.UsageError("give the revision to pin")
    if as_json and revision is not None:
        raise click.UsageError("--json is for the list of pins")
    repo = open_store(ctx, writable=revision is not None)
    if revision is None:
        _list(repo, as_json=as_json)
        return
    commit = repo.resolve(revision)
    repo.pin(commit, message)
    click.echo(f"pinned {short(commit)}")


@click.command()
@click.argument("revision", shell_complete=complete_revision)
@click.pass_context
def unpin(ctx: click.Context, revision: str) -> None:
    """Let a commit be pruned again."""
    repo = open_store(ctx, writable=True)
    commit = repo.resolve(revision)
    repo.unpin(commit)
    click.echo(f"unpinned {short(commit)}")


def _list(repo: Repository, *, as_json: bool) -> None:
    pins = repo.pins.all().values()
    if as_json:
        echo_json_list(
            {"commit": one.commit.hex(), "time": iso_date(one.time_ns), "time_ns": one.time_ns, "message": one.message}
            for one in pins
        )
        return
    now_ns = time.time_ns()
    for line in columns([_row(repo, one, now_ns) for one in pins]):
        click.echo(line)


def _row(repo: Repository, one: Pin, now_ns: int) -> list[str]:
    return [short(one.commit), age(one.time_ns, now_ns), _said(repo, one.commit), one_line(one.message)]


def _said(repo: Repository, commit: CommitId) -> str:
    try:
        return summary(repo.commit(commit))
    except MoonclipError:  # a list of pins is where one finds out which commit it is
        return "(damaged)"
