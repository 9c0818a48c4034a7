"""``moonclip repack``: storing what is there in another way."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from store.repack import Goal, Repacked
from store.repack import repack as store_anew

from .location import open_store
from .output import echo_json, json_option
from .progress import progress_bar
from .text import counted, printable, share, size


@click.command()
@click.option(
    "--for",
    "goal",
    type=click.Choice(["restore", "size"]),
    help="restore: tips of branches and tags load as fast as can be. size: everything takes as little as can be.",
)
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be done, and do nothing.")
@json_option
@click.pass_context
def repack(ctx: click.Context, *, goal: Goal | None, dry_run: bool, as_json: bool) -> None:
    """Put small packs together, or store chunks in another way. Ids never change.

    Saves and loads go on meanwhile. It can be stopped at any time, and goes on when it is called again. It takes 256
    MiB of space, or as much as the largest pack. Exits with 1 if something is damaged, and stayed where it was.
    """
    repo = open_store(ctx, writable=not dry_run)
    with progress_bar() as progress:
        done = store_anew(repo, goal or "consolidate", progress=progress, dry_run=dry_run)
    if as_json:
        echo_json({"dry_run": dry_run, **asdict(done)})
    else:
        for line in _lines(done, dry_run=dry_run):
            click.echo(line)
    if done.damaged:
        ctx.exit(1)


def _lines(done: Repacked, *, dry_run: bool) -> Iterator[str]:
    if not done.replaced_count and not done.left:
        yield "nothing to repack"
        return
    would = "would be " if dry_run else ""
    made = "" if dry_run else f" by {done.made_count:,}"
    yield f"{counted(done.replaced_count, 'pack')} {would}replaced{made}"
    if done.encoded_count:
        yield f"{counted(done.encoded_count, 'chunk')} {would}encoded anew"
    sizes = f"{size(done.before_bytes)} → {'about ' if dry_run else ''}{size(done.after_bytes)}"
    yield f"{sizes} ({share(done.after_bytes, done.before_bytes)})"
    if done.released_bytes:
        needed = "would be needed" if dry_run else "are needed"
        yield f"bases of about {size(done.released_bytes)} {needed} no more; `moonclip gc` then removes them"
    for pack, why in done.left.items():
        yield f"pack {pack} stays: {printable(why)}"
    for why in done.damaged.values():
        yield f"damaged: {printable(why)}"
