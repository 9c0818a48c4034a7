"""``moonclip ls``: the tensors and values of a commit."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import click

from store.beside.files import ITEM, StoredFile, files_in
from store.errors import Incompatible
from store.format.entries import TensorEntry, ValueEntry
from store.format.objects import Commit
from store.limits import MIB
from store.naming.refnames import HEAD
from store.repository import Repository
from store.sizes import Sizes, size_bytes_of

from ..loading.stored import SEPARATOR
from .listing import Listed, entries_of
from .location import open_store
from .output import echo_json_list, json_option
from .refs import complete_revision
from .text import columns, inline, size

_MAX_HASHED_BYTES: Final = 1 * MIB
"""Of a file that has to be read for its SHA-256."""

_SHA256_SHOWN: Final = 12


@click.command()
@click.argument("revision", default=HEAD, shell_complete=complete_revision)
@click.argument("patterns", nargs=-1, metavar="[NAME]...")
@json_option
@click.pass_context
def ls(ctx: click.Context, revision: str, patterns: tuple[str, ...], *, as_json: bool) -> None:
    """List tensors and values of a commit.

    NAME is item::name, or a name in any item; both may be globs, and the name of a container lists what is in it.
    A first argument that no revision can look like (with :: or * in it) is a NAME, of HEAD.
    Columns: dtype, shape, raw size, stored size, encoding, name. Of files that were stored with the commit: the
    beginning of the SHA-256 in the place of a shape, and their length as the raw size.
    """
    if is_name(revision):
        revision, patterns = HEAD, (revision, *patterns)
    repo = open_store(ctx)
    commit = repo.commit(repo.resolve(revision))
    listed = entries_of(repo, commit, patterns)
    sizes, files = Sizes(repo.reader, repo.is_awaited), files_of(repo, commit, listed)
    if as_json:
        echo_json_list(entry_json(one, sizes, files.get(one.full_name)) for one in listed)
        return
    for line in columns([_row(one, sizes, files.get(one.full_name)) for one in listed], right=(2, 3)):
        click.echo(line)


def is_name(argument: str) -> bool:
    """Whether an argument is the name of an entry, or a pattern for some, which no revision can look like."""
    return SEPARATOR in argument or "*" in argument


def files_of(repo: Repository, commit: Commit, listed: Sequence[Listed]) -> Mapping[str, StoredFile]:
    """Those of some entries that are files, by full name."""
    wanted = {one.name for one in listed if one.item == ITEM and one.name and isinstance(one.entry, ValueEntry)}
    found = files_in(repo, commit) if wanted else {}
    return {
        f"{ITEM}{SEPARATOR}{path}": file
        for path, file in found.items()
        if path in wanted and _is_here(repo, file) and _is_file(file)
    }


def _is_here(repo: Repository, file: StoredFile) -> bool:
    """Whether nothing of it would have to be fetched: a listing fetches nothing."""
    return not isinstance(file.held, ValueEntry) or not any(map(repo.is_awaited, file.held.chunks))


def _is_file(file: StoredFile) -> bool:
    """Whether it has the content of a file. An item of that name may hold other values, none of which is long."""
    if file.composed is not None or file.size_bytes > _MAX_HASHED_BYTES:
        return True
    try:
        file.read()
    except Incompatible:
        return False
    return True


def digest_of(file: StoredFile) -> str | None:
    """SHA-256 of a file in hex; ``None`` of one that would have to be read, and is long."""
    return file.sha256 if file.composed is not None or file.size_bytes <= _MAX_HASHED_BYTES else None


def entry_json(one: Listed, sizes: Sizes, file: StoredFile | None = None) -> dict[str, Any]:
    """A tensor, value or file for programs."""
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
        **({} if file is None else {"file": {"size_bytes": file.size_bytes, "sha256": digest_of(file)}}),
    }


def kind_of(entry: TensorEntry) -> str:
    """A tensor's dtype, and the one that it was cast to, if it was: then it is not what was saved."""
    return entry.dtype if entry.stored is None else f"{entry.dtype} as {entry.stored}"


def _row(one: Listed, sizes: Sizes, file: StoredFile | None) -> list[str]:
    entry, stored = one.entry, sizes.of(one.entry)
    if file is not None:
        digest = (digest_of(file) or "-")[:_SHA256_SHOWN]
        how = stored.text if file.composed is None else "of tensors"
        return ["file", digest, size(file.size_bytes), size(stored.stored_bytes), how, inline(one.full_name)]
    kind, shape = (kind_of(entry), str(list(entry.shape))) if isinstance(entry, TensorEntry) else ("value", "-")
    return [kind, shape, size(size_bytes_of(entry)), size(stored.stored_bytes), stored.text, inline(one.full_name)]
