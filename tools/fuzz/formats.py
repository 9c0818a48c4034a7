"""Targets: the binary formats that come from a remote, taken apart.

A hash would stop nearly every change at the door, so hashes are made to fit first: what is behind them is looked at.
"""

import struct
from collections.abc import Iterator
from contextlib import suppress

from xxhash import xxh3_128_digest

from store import codec
from store.codec import Transform
from store.codec.views import View, seen
from store.errors import Corrupt, Incompatible
from store.format import values
from store.format.dtypes import Element
from store.format.entries import ContainerEntry, Entry, Piece, TensorEntry, ValueEntry
from store.format.objects import Commit, Kind, TreeNode
from store.format.pack import (
    ENTRY_BYTES,
    FOOTER_BYTES,
    HEADER_BYTES,
    OBJECT_HEADER_BYTES,
    ObjectHeader,
    Sealed,
    check_header,
    decode_footer,
    decode_table,
    encode_footer,
    encode_header,
    encode_table,
    footer_of,
    seal,
    table_entry,
    unseal,
)
from store.gc.scanning import chunk_ids, subtree_ids
from store.ids import ID_BYTES, ChunkId, ObjectId, PackId, TreeId, chunk_id, pack_id
from store.reading.decoding import decode_chunk
from store.reading.reader import decode_small
from store.remotes.idx import decode_idx, decoded_commit, encode_idx

_IDX_HEAD_BYTES = 16
_FIELDS_BYTES = 48
_CHECKSUM_BYTES = 16
_MAX_DECODED_BYTES = 1 << 20


def idx(data: bytes) -> None:
    """An idx, under the id that its table has."""
    count = int.from_bytes(data[12:16], "little")
    table = data[_IDX_HEAD_BYTES : _IDX_HEAD_BYTES + count * ENTRY_BYTES]
    with suppress(Corrupt, Incompatible):
        found = decode_idx(data, PackId(pack_id(table)))
        assert encode_idx(found.table, list(found.commits.values())) == data
        for commit_id, stored in found.commits.items():
            with suppress(Corrupt, Incompatible):
                decoded_commit(commit_id, stored)


def pack_file(data: bytes) -> None:
    """Header, footer and table of a pack, with checksums that fit."""
    with suppress(Corrupt, Incompatible):
        check_header(data[:HEADER_BYTES], "pack")
    if len(data) >= FOOTER_BYTES:
        fields = data[-FOOTER_BYTES:-_CHECKSUM_BYTES]
        with suppress(Corrupt, Incompatible):
            decode_footer(fields + xxh3_128_digest(fields), len(data), "pack")
    table = data[: len(data) // ENTRY_BYTES * ENTRY_BYTES]
    if table:
        stored_bytes, offset = struct.unpack_from("<IQ", table, len(table) - ENTRY_BYTES + 8)
        with suppress(Corrupt, Incompatible):
            found = decode_table(table, footer_of(table, min(offset + stored_bytes, (1 << 63) - 1)), "pack")
            assert encode_table(found.entries) == table


def stored_object(data: bytes) -> None:
    """A stored object whose checksum fits: taken apart, and decoded if it is small."""
    sealed = bytearray(data)
    if len(sealed) >= OBJECT_HEADER_BYTES:
        start = OBJECT_HEADER_BYTES + (ID_BYTES if sealed[7] & 1 else 0)
        sealed[12:16] = max(0, len(sealed) - start).to_bytes(4, "little")
        hashed = bytes(sealed[:_FIELDS_BYTES]) + bytes(sealed[OBJECT_HEADER_BYTES:])
        sealed[_FIELDS_BYTES:OBJECT_HEADER_BYTES] = xxh3_128_digest(hashed)
    with suppress(Corrupt, Incompatible):
        header, payload = unseal(bytes(sealed), "object")
        if header.raw_bytes > _MAX_DECODED_BYTES:
            return
        if header.kind is not Kind.CHUNK:
            decode_small(header, payload)
            return
        base = memoryview(bytes(2 * header.raw_bytes)) if header.viewed else memoryview(bytes(header.raw_bytes))
        out = memoryview(bytearray(header.raw_bytes))
        decode_chunk(header, payload, base if header.base is not None else None, out)


def tree(data: bytes) -> None:
    """A tree, and what gc finds in it without taking it apart; its inline values."""
    with suppress(Corrupt):
        subtree_ids(data)
    found = set(chunk_ids(data))
    with suppress(Corrupt):
        node = TreeNode.decode(data)
        assert node.encode() == data
        chunks = {chunk for _, entry in node.entries for chunk in entry.chunks}
        assert chunks <= found, "gc would not see a chunk that a tree names"
        for _, entry in node.entries:
            if isinstance(entry, ValueEntry) and entry.inline is not None:
                with suppress(Corrupt):
                    values.decode(entry.inline)


def commit(data: bytes) -> None:
    """A commit; and the same bytes as a value."""
    with suppress(Corrupt):
        assert Commit.decode(data).encode() == data
    with suppress(Corrupt):
        values.encode(values.decode(data))


# --- seeds ----------------------------------------------------------------------------------------------------------


def _objects() -> list[Sealed]:
    raw = bytes(range(256)) * 4
    plain = codec.encode(memoryview(raw), Element.BF16)
    delta = codec.encode(memoryview(raw[::-1]), Element.FP32, memoryview(raw))
    blob = codec.encode_blob(_commit().encode())
    chunk = ObjectHeader(Kind.CHUNK, plain.transform, plain.grouped, Element.BF16, len(raw), ObjectId(chunk_id(raw)))
    above = ObjectHeader(
        Kind.CHUNK,
        delta.transform,
        delta.grouped,
        Element.FP32,
        len(raw),
        ObjectId(chunk_id(raw[::-1])),
        chunk.id if delta.uses_base else None,
    )
    commit_size = len(_commit().encode())
    made = ObjectHeader(Kind.COMMIT, blob.transform, False, Element.INT8, commit_size, _commit().id)
    return [seal(chunk, plain.payload), seal(above, delta.payload), _viewed(raw * 4), seal(made, blob.payload)]


def _viewed(base: bytes) -> Sealed:
    """What a cast window of a base is, stored against that."""
    view = View(Element.FP32, 3)
    raw = bytes(seen(memoryview(base), view, Element.BF16, 1024))
    delta = codec.encode(memoryview(raw), Element.BF16, memoryview(base), None, view)
    codes, ids = (delta.transform, delta.grouped, Element.BF16), (chunk_id(raw), chunk_id(base))
    return seal(ObjectHeader(Kind.CHUNK, *codes, len(raw), *ids, delta.viewed), delta.payload)


def _commit() -> Commit:
    tags = {"loss": 0.5, "tuple": (1, None, {"a": [b"\x00", 1 << 70]}), "set": {1, 2}}
    return Commit({"model": TreeId(ObjectId(b"t" * 32))}, (), 7, 1, "main", "a message", tags)


def object_seeds() -> Iterator[bytes]:
    """Stored objects."""
    yield from (b"".join(map(bytes, sealed.buffers)) for sealed in _objects())
    header = ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.INT8, 4, ObjectId(chunk_id(b"four")))
    yield b"".join(map(bytes, seal(header, [b"four"]).buffers))


def pack_seeds() -> Iterator[bytes]:
    """A table, and a pack of nothing."""
    yield _table()
    yield encode_header() + encode_footer(footer_of(b"", HEADER_BYTES))


def _table() -> bytes:
    offset, entries = HEADER_BYTES, []
    for sealed in _objects():
        entries.append(table_entry(sealed, offset))
        offset += sealed.stored_bytes
    return encode_table(entries)


def idx_seeds() -> Iterator[bytes]:
    """An idx with a commit."""
    table = _table()
    end = HEADER_BYTES + sum(sealed.stored_bytes for sealed in _objects())
    stored = [b"".join(map(bytes, sealed.buffers)) for sealed in _objects() if sealed.header.kind is Kind.COMMIT]
    yield encode_idx(decode_table(table, footer_of(table, end), "table"), stored)


def tree_seeds() -> Iterator[bytes]:
    """Trees with every kind of entry."""
    chunks = tuple(ChunkId(ObjectId(bytes([number]) * 32)) for number in range(3))
    two = (Piece((0, 0), (4, 64), (1024,), chunks[:1]), Piece((4, 0), (4, 64), (512, 512), chunks[1:]))
    entries: dict[str, Entry] = {
        "": ContainerEntry(0, "dict"),
        "a": TensorEntry(0, "float32", (8, 64), two),
        "b": TensorEntry(1, "float32", (16, 16), (Piece((0, 0), (16, 16), (1024,), chunks[:1]),)),
        "c": TensorEntry(2, "int64", (), inline=bytes(8)),
        "d": ValueEntry(3, inline=values.encode({"lr": 0.5, "betas": (0.9, 1 << 80), "text": "\ud800"})),
        "e": ValueEntry(4, cuts=(20_000,), chunks=chunks[:1]),
        "f": ContainerEntry(5, "namedtuple", ["module", "Name"]),
    }
    ordered = tuple(sorted(entries.items()))
    yield TreeNode(entries=ordered).encode()
    yield TreeNode(entries=ordered, ties=(("a", "b"),)).encode()
    yield TreeNode(entries=tuple(pair for pair in ordered if pair[0] in "bc")).encode()


def commit_seeds() -> Iterator[bytes]:
    """A commit, and values."""
    yield _commit().encode()
    yield values.encode({"a": [1, 2.5, 1j, "x", b"y", (None, True)], "s": frozenset({1, (2,)})})
