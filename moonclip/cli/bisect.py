"""``moonclip bisect``: find the commit since which something is wrong."""

import os
import subprocess
from collections.abc import Sequence
from itertools import takewhile

import click

from store.errors import MoonclipError, NotFound
from store.history.bisection import Bisection
from store.history.walks import first_parents
from store.ids import CommitId, short
from store.index import CommitRow
from store.naming.refnames import HEAD
from store.repository import Repository

from .commits import describe
from .location import open_store
from .output import echo_json, json_option
from .refs import complete_revision, read_names

_UNTESTABLE = 125
_FIRST_FATAL = 128
_PLACEHOLDER = "{}"
_STDERR = 2


@click.group()
def bisect() -> None:
    """Find the commit since which something is wrong."""


@bisect.command(context_settings={"ignore_unknown_options": True, "allow_interspersed_args": False})
@click.option(
    "--good", required=True, metavar="REVISION", help="A commit that is good.", shell_complete=complete_revision
)
@click.option(
    "--bad",
    default=HEAD,
    show_default=True,
    metavar="REVISION",
    help="One that is not.",
    shell_complete=complete_revision,
)
@json_option
@click.argument("command", nargs=-1, required=True, type=click.UNPROCESSED)
@click.pass_context
def run(ctx: click.Context, command: tuple[str, ...], *, good: str, bad: str, as_json: bool) -> None:
    """Run COMMAND on commits between a good and a bad one until the first bad one is found.

    It gets a commit's id in place of {} and as MOONCLIP_COMMIT, its step as MOONCLIP_STEP. It exits with 0 if the
    commit is good, with 125 if it cannot be tried, with any other code below 128 if it is bad. Only first parents are
    followed, and what was pruned is not tried. The store is left as it is. With --json, what COMMAND prints goes to
    stderr.
    """
    repo = open_store(ctx)
    search = Bisection(_between(repo, repo.resolve(good), repo.resolve(bad)))
    while (row := search.next()) is not None:
        if repo.absences.reason(row.id) is not None:  # what cannot be loaded would be taken for bad
            search.skip()
            continue
        click.echo(f"trying {_title(repo, row)} (about {search.tries_left} to go)", err=True)
        _note(search, _exit_code(repo, row, command, stdout=_STDERR if as_json else None), command[0])
    if as_json:
        echo_json({"suspects": [row.id.hex() for row in search.suspects], "found": len(search.suspects) == 1})
        return
    _tell(repo, search.suspects)


def _between(repo: Repository, good: CommitId, bad: CommitId) -> Sequence[CommitRow]:
    """The line from after the good commit to the bad one, oldest first."""
    line = list(takewhile(lambda row: row.id != good, first_parents(repo.lookup, bad)))
    if not line:
        raise NotFound("the good commit and the bad one are the same")
    if good not in line[-1].parents[:1]:
        raise NotFound(
            f"{short(bad)} does not descend from {short(good)} by first parents; `moonclip log --graph` shows how"
        )
    return line[::-1]


def _exit_code(repo: Repository, row: CommitRow, command: Sequence[str], *, stdout: int | None) -> int:
    arguments = [each.replace(_PLACEHOLDER, row.id.hex()) for each in command]
    said = {"MOONCLIP_STORE": str(repo.layout.root), "MOONCLIP_COMMIT": row.id.hex()}
    said["MOONCLIP_STEP"] = "" if row.step is None else str(row.step)
    return subprocess.run(arguments, env={**os.environ, **said}, stdout=stdout, check=False).returncode


def _note(search: Bisection[CommitRow], exit_code: int, program: str) -> None:
    if exit_code == 0:
        search.good()
    elif exit_code == _UNTESTABLE:
        search.skip()
    elif 0 < exit_code < _FIRST_FATAL:
        search.bad()
    else:
        raise MoonclipError(
            f"{program} ended with {exit_code}, which says neither good nor bad; have it exit with {_UNTESTABLE} where"
            " a commit cannot be tried"
        )


def _tell(repo: Repository, suspects: Sequence[CommitRow]) -> None:
    if len(suspects) == 1:
        click.echo(f"{_title(repo, suspects[0])} is the first bad commit")
        return
    click.echo("the first bad commit is one of these, which could not all be tried:")
    for row in suspects:
        click.echo(f"  {_title(repo, row)}")


def _title(repo: Repository, row: CommitRow) -> str:
    return describe(repo, row.id, read_names(repo.refs)).line()
