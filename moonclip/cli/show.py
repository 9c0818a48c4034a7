"""``moonclip show``: a commit, or one tensor or value in it."""

from collections.abc import Iterator
from typing import Any

import click

from store.beside.composed import Run
from store.beside.files import StoredFile
from store.format.entries import ContainerEntry, TensorEntry, ValueEntry
from store.format.objects import Commit
from store.format.values import Plain
from store.naming.refnames import HEAD
from store.repository import Repository
from store.sizes import Sizes, size_bytes_of

from ..loading.stored import full_name
from .commits import Described, describe
from .corners import look
from .listing import Listed, find, holds
from .location import open_store
from .ls import digest_of, entry_json, files_of, kind_of
from .output import echo_json, json_option
from .plain import to_json, to_lines
from .refs import complete_revision, read_names
from .text import columns, counted, inline, printable, size


@click.command()
@click.argument("revision", default=HEAD, shell_complete=complete_revision)
@click.argument("name", required=False)
@json_option
@click.pass_context
def show(ctx: click.Context, revision: str, name: str | None, *, as_json: bool) -> None:
    """Show a commit, a tensor, a value, or one of its metadata.

    NAME is item::name, or a name that only one item has, or else a key of the metadata. Of a large tensor the first
    and last elements are shown, and only these are read. JSON holds a value in full, but no elements of tensors:
    export those.
    """
    repo = open_store(ctx)
    described = describe(repo, repo.resolve(revision), read_names(repo.refs))
    metadata = described.commit.metadata
    if name is not None and name in metadata and not holds(repo, described.commit, name):
        _show_metadata(name, metadata[name], as_json=as_json)
    elif name is not None:
        one = find(repo, described.commit, name)
        file = files_of(repo, described.commit, [one]).get(one.full_name)
        _show_entry(repo, one, file, Sizes(repo.reader, repo.is_awaited), as_json=as_json)
    elif as_json:
        echo_json(described.as_json() | {"items": _item_sizes(repo, described.commit)})
    else:
        for line in _commit_lines(repo, described):
            click.echo(line)


def _show_metadata(key: str, value: Plain, *, as_json: bool) -> None:
    if as_json:
        echo_json({"metadata": key, "value": to_json(value)})
        return
    for line in to_lines(value):
        click.echo(line)


def _show_entry(repo: Repository, one: Listed, file: StoredFile | None, sizes: Sizes, *, as_json: bool) -> None:
    if as_json:
        document = entry_json(one, sizes, file)
        if file is not None and file.composed is not None:
            document["parts"] = list(map(_part_json, file.composed.parts))
        elif isinstance(one.entry, ValueEntry):
            document["value"] = to_json(repo.read_value(one.entry))
        elif isinstance(one.entry, ContainerEntry):
            document["value"] = {"container": one.entry.container, "info": to_json(one.entry.info)}
        echo_json(document)
        return
    for line in _entry_lines(repo, one, sizes) if file is None else _file_lines(repo, one, file, sizes):
        click.echo(line)


def _entry_lines(repo: Repository, one: Listed, sizes: Sizes) -> Iterator[str]:
    entry, name = one.entry, printable(one.full_name)
    if isinstance(entry, ContainerEntry):
        yield f"{name}  {printable(entry.container)}; see what is in it with `moonclip ls`"
        return
    stored = sizes.of(entry)
    kind = f"{kind_of(entry)} {list(entry.shape)}" if isinstance(entry, TensorEntry) else "value"
    yield f"{name}  {kind}  {size(size_bytes_of(entry))}, stored in {size(stored.stored_bytes)} ({stored.text})"
    yield ""
    yield from look(repo, entry) if isinstance(entry, TensorEntry) else to_lines(repo.read_value(entry))


def _file_lines(repo: Repository, one: Listed, file: StoredFile, sizes: Sizes) -> Iterator[str]:
    """A file: what it consists of, or its beginning."""
    stored, name = sizes.of(one.entry), printable(one.full_name)
    yield f"{name}  file  {size(file.size_bytes)}, stored in {size(stored.stored_bytes)} ({stored.text})"
    yield f"SHA-256: {digest_of(file) or 'not looked at: the file is long'}"
    yield ""
    if file.composed is None:
        assert isinstance(one.entry, ValueEntry)
        yield from to_lines(repo.read_value(one.entry))
        return
    yield "It consists of"
    for part in file.composed.parts:
        yield f"  {counted(len(part), 'byte')}" if isinstance(part, bytes) else f"  {_named(part)}"


def _named(run: Run) -> str:
    """A run of a tensor in one line."""
    return f"{printable(full_name(run.item, run.name))}, {counted(run.stop - run.start, 'byte')} from {run.start}"


def _part_json(part: bytes | Run) -> dict[str, Any]:
    return {"bytes": part.hex()} if isinstance(part, bytes) else part._asdict()


def _commit_lines(repo: Repository, described: Described) -> Iterator[str]:
    yield from described.paragraph()
    items = _item_sizes(repo, described.commit)
    if items:
        yield ""
        yield from columns([_item_row(item) for item in items], right=(2, 3))


def _item_row(item: dict[str, Any]) -> list[str]:
    lossy = f" ({item['lossy_tensors']} stored with loss)" if item["lossy_tensors"] else ""
    holds = f"{counted(item['tensors'], 'tensor')}{lossy}, {counted(item['values'], 'value')}"
    return [
        inline(item["name"]),
        holds,
        f"{size(item['raw_bytes'])} raw",
        f"{size(item['stored_bytes'])} stored",
    ]


def _item_sizes(repo: Repository, commit: Commit) -> list[dict[str, Any]]:
    """Name, counts and sizes of each item that can be read."""
    sizes = Sizes(repo.reader, repo.is_awaited)
    items = []
    for item in repo.items(commit):
        entries = [entry for _, entry in repo.tree(commit, item)]
        items.append(
            {
                "name": item,
                "tensors": sum(isinstance(entry, TensorEntry) for entry in entries),
                "lossy_tensors": sum(isinstance(entry, TensorEntry) and entry.stored is not None for entry in entries),
                "values": sum(isinstance(entry, ValueEntry) for entry in entries),
                "raw_bytes": sum(map(size_bytes_of, entries)),
                "stored_bytes": sizes.total_bytes(entries),
            }
        )
    return items
