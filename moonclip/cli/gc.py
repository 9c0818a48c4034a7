"""``moonclip gc``: removing what nothing leads to, and giving its space back."""

from collections.abc import Iterator
from dataclasses import asdict

import click

from store.gc import Collected, collect

from .location import open_store
from .output import echo_json, json_option
from .progress import progress_bar
from .text import counted, printable, size


@click.command()
@click.option("-n", "--dry-run", is_flag=True, help="Show what would be removed, and remove nothing.")
@json_option
@click.pass_context
def gc(ctx: click.Context, *, dry_run: bool, as_json: bool) -> None:
    """Remove what nothing leads to any more.

    Kept is all that branches, tags, pins and the last 90 days of reflogs lead to, but for what was pruned; history is
    always kept. Saves and loads go on meanwhile. It works on a full disk, can be stopped at any time, and goes on when
    it is called again.
    """
    repo = open_store(ctx, writable=not dry_run)
    with progress_bar() as progress:
        done = collect(repo, dry_run=dry_run, progress=progress)
    if as_json:
        echo_json({("dry_run" if name == "is_dry_run" else name): value for name, value in asdict(done).items()})
        return
    for line in _lines(done):
        click.echo(line)


def _lines(done: Collected) -> Iterator[str]:
    remove, free, lose = (
        ("would remove", "would free", "would lose") if done.is_dry_run else ("removed", "freed", "lost")
    )
    if not (done.object_count or done.removed_count or done.compacted_count):
        yield "nothing to remove"
    else:
        yield f"{remove} {counted(done.object_count, 'object')} of {size(done.object_bytes)}"
        yield f"{free} {size(done.freed_bytes)} ({_packs(done)})"
        if done.freed_bytes < done.object_bytes and not done.left:
            yield "the rest lies in packs most of which is needed; `moonclip repack` takes it out of them"
    if done.commit_count:
        yield f"{counted(done.commit_count, 'commit')} that nothing leads to {lose} what they held"
    for pack, why in done.left.items():
        yield f"pack {pack} stays: {printable(why)}"


def _packs(done: Collected) -> str:
    removed = f"{counted(done.removed_count, 'pack')} removed"
    if not done.compacted_count:
        return removed
    return f"{removed}, {counted(done.compacted_count, 'pack')} replaced by {done.made_count:,}"
