"""``moonclip ls``: the tensors and values of a commit."""

from typing import Any

import click

from store.format.entries import TensorEntry
from store.naming.refnames import HEAD
from store.sizes import Sizes, size_bytes_of

from ..loading.stored import SEPARATOR
from .listing import Listed, entries_of
from .location import open_store
from .output import echo_json_list, json_option
from .refs import complete_revision
from .text import columns, inline, size


@click.command()
@click.argument("revision", default=HEAD, shell_complete=complete_revision)
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@json_option
@click.pass_context
def ls(ctx: click.Context, revision: str, patterns: tuple[str, ...], *, as_json: bool) -> None:
    """List tensors and values of a commit.

    NAME is item::name, or a name in any item; both may be globs, and the name of a container lists what is in it.
    A first argument that no revision can look like (with :: or * in it) is a NAME, of HEAD.
    Columns: dtype, shape, raw size, stored size, encoding, name.
    """
    if is_name(revision):
        revision, patterns = HEAD, (revision, *patterns)
    repo = open_store(ctx)
    listed = entries_of(repo, repo.commit(repo.resolve(revision)), patterns)
    sizes = Sizes(repo.reader, repo.is_awaited)
    if as_json:
        echo_json_list(entry_json(one, sizes) for one in listed)
        return
    for line in columns([_row(one, sizes) for one in listed], right=(2, 3)):
        click.echo(line)


def is_name(argument: str) -> bool:
    """Whether an argument is the name of an entry, or a pattern for some, which no revision can look like."""
    return SEPARATOR in argument or "*" in argument


def entry_json(one: Listed, sizes: Sizes) -> dict[str, Any]:
    """A tensor or value for programs."""
    entry, stored = one.entry, sizes.of(one.entry)
    is_tensor = isinstance(entry, TensorEntry)
    return {
        "name": one.full_name,
        "item": one.item,
        "kind": "tensor" if is_tensor else "value",
        "dtype": entry.dtype if isinstance(entry, TensorEntry) else None,
        "stored_dtype": entry.stored if isinstance(entry, TensorEntry) else None,
        "shape": list(entry.shape) if isinstance(entry, TensorEntry) else None,
        "raw_bytes": size_bytes_of(entry),
        "stored_bytes": stored.stored_bytes,
        "encodings": stored.encodings,
        "depth": stored.depth,
    }


def kind_of(entry: TensorEntry) -> str:
    """A tensor's dtype, and the one that it was cast to, if it was: then it is not what was saved."""
    return entry.dtype if entry.stored is None else f"{entry.dtype} as {entry.stored}"


def _row(one: Listed, sizes: Sizes) -> list[str]:
    entry, stored = one.entry, sizes.of(one.entry)
    kind, shape = (kind_of(entry), str(list(entry.shape))) if isinstance(entry, TensorEntry) else ("value", "-")
    return [kind, shape, size(size_bytes_of(entry)), size(stored.stored_bytes), stored.text, inline(one.full_name)]
