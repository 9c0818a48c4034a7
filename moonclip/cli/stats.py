"""``moonclip stats``: what is stored, and what sharing, deltas and compression saved."""

from dataclasses import asdict

import click

from store.history.stats import collect
from store.repository import Repository

from ..families.listing import family as listed_family
from ..managing.statistics import family_lines, lines, stored_bytes
from .location import open_store
from .output import echo_json, json_option
from .refs import complete_revision
from .text import printable


@click.command()
@click.argument("revisions", nargs=-1, metavar="[REV]...", shell_complete=complete_revision)
@click.option("--family", is_flag=True, help="Show what each model takes beside those that came before it.")
@json_option
@click.pass_context
def stats(ctx: click.Context, revisions: tuple[str, ...], *, family: bool, as_json: bool) -> None:
    """Show what is stored, and what was saved.

    Counts all commits that branches, tags and reflogs reach. Every byte that was saved is counted once: it was stored
    already (dedup), was saved by storing a chunk as a delta, was saved by compression, or is stored.

    With --family, each REV is a model, or the tip of each branch: in the order in which they came into the store, how
    much of each is identical with one before it, new and stored as deltas, or new and stored by itself; what it added
    to the store, as that is now; and the base that it was imported with.
    """
    if revisions and not family:
        raise click.UsageError("revisions are for --family: without it, all commits are counted", ctx)
    repo = open_store(ctx)
    if family:
        _show_family(repo, revisions, as_json=as_json)
        return
    summed = collect(repo)
    if as_json:
        echo_json(asdict(summed) | {"stored_bytes": stored_bytes(summed)})
        return
    for line in lines(summed):
        click.echo(line)


def _show_family(repo: Repository, revisions: tuple[str, ...], *, as_json: bool) -> None:
    listed = listed_family(repo, revisions)
    if not as_json:
        for line in family_lines(listed):
            click.echo(printable(line))
        return
    models = [one.as_json() for one in listed]
    raw_bytes, added_bytes = (sum(model[key] for model in models) for key in ("raw_bytes", "added_bytes"))
    echo_json({"models": models, "raw_bytes": raw_bytes, "stored_bytes": added_bytes})
