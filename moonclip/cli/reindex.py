"""``moonclip reindex``: the index, made anew."""

import click

from store.disk.files import Files
from store.layout import Layout, check_format, not_a_store
from store.opening.indexes import rebuild_index
from store.reading.packs import PackStore

from .location import Location
from .output import echo_json, json_option
from .text import counted


@click.command()
@json_option
@click.pass_context
def reindex(ctx: click.Context, *, as_json: bool) -> None:
    """Rebuild the index from the packs.

    It holds nothing that they do not. Needed only when fsck asks for it: an index that is missing or broken is rebuilt
    by whoever next opens the store to write. Exits with 1 if something could not be read and had to be left out; deltas
    whose base is gone, as gc leaves them behind, are left out as well.
    """
    location: Location = ctx.obj
    # The store is not opened: that would begin with the index that may be the trouble.
    layout, files = Layout(location.existing()), Files()
    try:
        features = files.read_bytes(layout.format)
    except FileNotFoundError:
        raise not_a_store(layout.root) from None
    check_format(layout.root, features, "write")
    packs = PackStore(files, layout.packs)
    digest = rebuild_index(layout, files, packs)
    packs.close()
    object_count = sum(map(len, digest.tables.values()))
    if as_json:
        counts = {"packs": len(digest.tables), "objects": object_count, "commits": len(digest.rows)}
        echo_json(counts | {"orphans": digest.orphan_count, "problems": digest.problems})
    else:
        read = f"{counted(len(digest.tables), 'pack')}, {counted(object_count, 'object')}"
        click.echo(f"indexed {read}, {counted(len(digest.rows), 'commit')}")
    if digest.orphan_count:
        click.echo(
            f"left out {counted(digest.orphan_count, 'delta')} whose base is in no pack, as gc leaves them behind;"
            " `moonclip fsck` tells whether anything needs them",
            err=True,
        )
    if digest.problems:
        click.echo("left out what could not be read; `moonclip fsck` tells what that affects", err=True)
        ctx.exit(1)
