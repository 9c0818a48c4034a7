"""``moonclip diff``: what differs between two commits."""

from typing import Final

import click

from store import comparing as diffing
from store.comparing import CommitDiff
from store.ids import short
from store.naming.refnames import HEAD

from ..loading.selecting import Selection
from .changes import by_bytes, by_change, by_name, header_lines, item_json, item_lines, stat_lines, value_json
from .location import open_store
from .ls import is_name
from .output import echo_json, json_option
from .refs import complete_revision
from .text import printable

_ORDERS: Final = {"change": by_change, "name": by_name, "bytes": by_bytes}


@click.command()
@click.argument("before", metavar="A", shell_complete=complete_revision)
@click.argument("after", metavar="[B]", default=HEAD, shell_complete=complete_revision)
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@click.option("--stat", is_flag=True, help="Count what differs in each item; reads no tensor to measure it.")
@click.option(
    "--sort",
    "order",
    type=click.Choice(list(_ORDERS)),
    default="change",
    show_default=True,
    help="Order of an item's tensors.",
)
@json_option
@click.pass_context
def diff(
    ctx: click.Context, before: str, after: str, patterns: tuple[str, ...], *, stat: bool, order: str, as_json: bool
) -> None:
    """Show what differs between two commits.

    B is HEAD if it is not given. NAME is item::name, a name in any item, or an item; all may be globs, and the name of
    a container asks for what is in it. A second argument that no revision can look like (with :: or * in it) is a NAME.

    Of each changed tensor: the L2 norm of the change relative to that of A's tensor, the largest absolute change, the
    cosine between both, the share of elements that changed, and what its chunks take in packs that A does not have.
    Elements that are NaN or infinite on either side are left out of these numbers, and counted beside them. Tensors
    that only one commit has are marked + and -.
    """
    if is_name(after):
        after, patterns = HEAD, (after, *patterns)
    repo = open_store(ctx)
    selection = Selection(patterns)
    found = diffing.diff(repo, repo.resolve(before), repo.resolve(after), is_wanted=selection, measured=not stat)
    selection.require_met()
    if as_json:
        items = [item_json(item, _ORDERS[order], in_full=not stat) for item in found.items]
        echo_json(
            {
                "before": found.before.hex(),
                "after": found.after.hex(),
                "header": [value_json(change, change.name) for change in found.header],
                "items": items,
                "stored_bytes": found.stored_bytes,
            }
        )
        return
    _echo(found, before, after, order, only_stat=stat)


def _echo(found: CommitDiff, before: str, after: str, order: str, *, only_stat: bool) -> None:
    ends = (f"{short(commit)} ({printable(text)})" for commit, text in ((found.before, before), (found.after, after)))
    click.echo(click.style(f"diff {' -> '.join(ends)}", bold=True))
    if only_stat:
        for line in stat_lines(found):
            click.echo(line)
        return
    for line in header_lines(found):
        click.echo(line)
    for item in found.items:
        click.echo()
        for line in item_lines(item, _ORDERS[order]):
            click.echo(line)
