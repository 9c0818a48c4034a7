"""``moonclip log``: history."""

from collections.abc import Iterator
from itertools import islice

import click

from store.history import graph
from store.ids import CommitId
from store.refnames import HEAD
from store.repository import Repository

from .commits import describe
from .lanes import beside, draw
from .location import open_store
from .output import echo_json_list, json_option
from .refs import RefNames, complete_revision, read_names


@click.command()
@click.argument("revisions", nargs=-1, metavar="[REVISION]...", shell_complete=complete_revision)
@click.option("--all", "every_ref", is_flag=True, help="Begin at every branch and tag.")
@click.option("-n", "limit", type=click.IntRange(min=0), metavar="COUNT", help="Show no more than so many.")
@click.option("--oneline", is_flag=True, help="One line for each commit.")
@click.option("--graph", "as_graph", is_flag=True, help="Draw the lines of history.")
@json_option
@click.pass_context
def log(
    ctx: click.Context,
    revisions: tuple[str, ...],
    *,
    every_ref: bool,
    limit: int | None,
    oneline: bool,
    as_graph: bool,
    as_json: bool,
) -> None:
    """Show commits, newest first.

    Begins at HEAD, or at the revisions: branches, tags, main~3, HEAD@{2}, step:5000, the beginning of an id.
    """
    if as_json and (as_graph or oneline):
        raise click.UsageError("--json goes neither with --graph nor with --oneline")
    repo = open_store(ctx)
    names = read_names(repo.refs)
    tips = _tips(repo, revisions, names, every_ref=every_ref)
    if as_json:
        rows = islice(repo.log(tips), limit)
        echo_json_list(describe(repo, row.id, names).as_json() for row in rows)
        return
    for line in _lines(repo, tips, names, limit, oneline=oneline, as_graph=as_graph):
        click.echo(line)


def _tips(repo: Repository, revisions: tuple[str, ...], names: RefNames, *, every_ref: bool) -> list[CommitId]:
    tips = [repo.resolve(revision) for revision in revisions]
    if every_ref:
        return tips + names.tips()
    return tips or [repo.resolve(HEAD)]


def _lines(
    repo: Repository, tips: list[CommitId], names: RefNames, limit: int | None, *, oneline: bool, as_graph: bool
) -> Iterator[str]:
    rows = islice(repo.log(tips), limit)
    if as_graph:
        for row, drawn in draw(graph(rows)):
            yield from beside(drawn, _text(repo, row.id, names, oneline=oneline))
        return
    for row in rows:
        yield from _text(repo, row.id, names, oneline=oneline)


def _text(repo: Repository, commit_id: CommitId, names: RefNames, *, oneline: bool) -> Iterator[str]:
    described = describe(repo, commit_id, names)
    if oneline:
        yield described.line()
        return
    yield from described.paragraph()
    yield ""
