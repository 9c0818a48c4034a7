"""``moonclip stats``: what is stored, and what sharing, deltas and compression saved."""

from dataclasses import asdict

import click

from store.history.stats import collect

from ..managing.statistics import lines, stored_bytes
from .location import open_store
from .output import echo_json, json_option


@click.command()
@json_option
@click.pass_context
def stats(ctx: click.Context, *, as_json: bool) -> None:
    """Show what is stored, and what was saved.

    Counts all commits that branches, tags and reflogs reach. Every byte that was saved is counted once: it was stored
    already (dedup), was saved by storing a chunk as a delta, was saved by compression, or is stored.
    """
    summed = collect(open_store(ctx))
    if as_json:
        echo_json(asdict(summed) | {"stored_bytes": stored_bytes(summed)})
        return
    for line in lines(summed):
        click.echo(line)
