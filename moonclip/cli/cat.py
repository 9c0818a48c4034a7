"""``moonclip cat``: a file of a commit, byte for byte."""

import re
from typing import Final

import click

from .location import open_store
from .refs import complete_revision

_FILE: Final = re.compile(r"(?!(?:[^:]*@)?step:\d+\Z)(?P<revision>(?:[^:]*@)?step:\d+|[^:]+):(?P<path>.+)", re.DOTALL)
"""A revision has no colon but that of a step, and a step alone names no file."""


@click.command()
@click.argument("file", metavar="REVISION:PATH", shell_complete=complete_revision)
@click.pass_context
def cat(ctx: click.Context, file: str) -> None:
    """Write out a file that was stored with a commit.

    It goes to standard output, byte for byte. As in main:run.json, or step:300:logs/train.txt.
    `moonclip ls REVISION 'files::*'` lists the files there are.
    """
    from store.beside.files import file_at

    revision, path = _parted(ctx, file)
    repo = open_store(ctx)
    stored = file_at(repo, repo.commit(repo.resolve(revision)), path)
    for window in stored.windows():
        click.echo(bytes(window), nl=False)


def _parted(ctx: click.Context, file: str) -> tuple[str, str]:
    match = _FILE.fullmatch(file)
    if match is None:
        example = "main:run.json or step:300:logs/train.txt"
        raise click.UsageError(f"{file!r} names no file of a commit; it takes REVISION:PATH, as in {example}", ctx)
    return match["revision"], match["path"]
