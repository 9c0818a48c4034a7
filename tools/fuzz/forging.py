"""Packs of a remote, taken apart and put together again with other content, so that everything fits but the hashes."""

from collections.abc import Callable, Sequence
from typing import NamedTuple

from store.format.objects import Kind
from store.format.pack import (
    HEADER_BYTES,
    ObjectHeader,
    Sealed,
    encode_footer,
    encode_header,
    encode_table,
    footer_of,
    seal,
    table_entry,
    unseal,
)
from store.ids import PackId, pack_id
from store.remotes.idx import decode_idx
from store.remotes.names import PackName, parse_pack


class Stored(NamedTuple):
    """An object of a pack.

    Attributes:
        header: what it says of itself.
        payload: what it holds.
    """

    header: ObjectHeader
    payload: bytes


Change = Callable[[int, Stored], Stored]
"""Given the number of an object in its pack and the object, what is to be there instead."""


def packs_in(content: dict[str, bytes]) -> list[PackName]:
    """The packs of a remote, sorted."""
    parsed = (parse_pack(key) for key in sorted(content))
    return [found[0] for found in parsed if found is not None and found[1]]


def objects_in(content: dict[str, bytes], name: PackName) -> list[Stored]:
    """The objects of a pack that is whole."""
    table = decode_idx(content[name.idx_key], name.id).table
    data = content[name.pack_key]
    return [
        Stored(header, bytes(payload))
        for entry in table.entries
        for header, payload in [unseal(data[entry.offset : entry.end], "object")]
    ]


def put_pack(content: dict[str, bytes], objects: Sequence[Stored]) -> None:
    """Put a pack with its idx on a remote.

    Raises:
        ValueError: the format allows no such object.
    """
    offset, entries, parts, commits = HEADER_BYTES, [], [encode_header()], []
    for header, payload in objects:
        sealed: Sealed = seal(header, [payload])
        stored = b"".join(map(bytes, sealed.buffers))
        entries.append(table_entry(sealed, offset))
        offset += len(stored)
        parts.append(stored)
        if header.kind is Kind.COMMIT:
            commits.append(stored)
    table = encode_table(entries)
    name = PackName(pack_id(table).hex(), PackId(pack_id(table)))
    content[name.pack_key] = b"".join([*parts, table, encode_footer(footer_of(table, offset))])
    # Not encode_idx: it takes a table, and not every table that is forged decodes.
    head = b"\x89MCIDX1\n" + (1).to_bytes(4, "little") + len(entries).to_bytes(4, "little")
    content[name.idx_key] = head + table + b"".join(commits)


def reforge(content: dict[str, bytes], name: PackName, change: Change) -> None:
    """Put another pack in the place of one.

    Raises:
        ValueError: the format allows no such object.
    """
    objects = [change(number, each) for number, each in enumerate(objects_in(content, name))]
    put_pack(content, objects)
    if objects != objects_in(content, name):
        del content[name.pack_key], content[name.idx_key]
