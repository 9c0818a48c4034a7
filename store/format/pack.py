"""The pack format: stored objects one after another, then a table that describes them all. Pure.

    header 64 B | object | object | … | table 100 B an entry | footer 64 B

A pack's id is the hash of its table, and the table holds each object's checksum: the id commits to every byte.
Whatever bytes a decoder here is given, it raises Corrupt or Incompatible, or returns what re-encodes to them.

Spec: docs/format.md §6.
"""

import struct
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Final, NamedTuple

from xxhash import xxh3_128, xxh3_128_digest

from ..codec import Transform
from ..codec.views import VIEW_BYTES
from ..errors import Corrupt, Incompatible
from ..ids import ID_BYTES, Buffer, ObjectId, PackId, pack_id
from ..limits import HELD_COPY_BYTES, MAX_CHUNK_BYTES, MAX_TREE_BYTES
from .codes import FLAGS_AT, HAS_BASE, decode_codes, encode_codes, fault_of
from .dtypes import Element
from .objects import Kind

PACK_VERSION: Final = 1
HEADER_BYTES: Final = 64
FOOTER_BYTES: Final = 64
ENTRY_BYTES: Final = 100
OBJECT_HEADER_BYTES: Final = 64
"""Of an object without a base; the base's id adds 32."""
MAX_STORED_BYTES: Final = MAX_TREE_BYTES + OBJECT_HEADER_BYTES + ID_BYTES
"""Longest stored object: what a reader may allocate before it has seen one."""

HEADER_MAGIC: Final = b"\x89MCPACK\n"
FOOTER_MAGIC: Final = b"\x89MCTAIL\n"
OBJECT_MAGIC: Final = b"MCO1"

_NO_BASE: Final = bytes(ID_BYTES)

_HEADER: Final = struct.Struct("<8sI36x")
_FOOTER: Final = struct.Struct("<8sI4xQQ16s")
_OBJECT: Final = struct.Struct("<4s4sII32s")
_ENTRY: Final = struct.Struct("<4sIIQ32s32s16s")


class ObjectHeader(NamedTuple):
    """What has to be known to decode a stored object.

    Attributes:
        kind: chunk, tree or commit.
        transform: what the payload is.
        grouped: whether planes of the payload are in group order.
        element: words the codec sees; ``INT8`` for trees and commits.
        raw_bytes: length once decoded.
        id: hash of what it decodes to.
        base: the chunk it is a delta against, or ``None``.
        viewed: whether the payload begins with a view of the base, which then may have another length.
    """

    kind: Kind
    transform: Transform
    grouped: bool
    element: Element
    raw_bytes: int
    id: ObjectId
    base: ObjectId | None = None
    viewed: bool = False


class Sealed(NamedTuple):
    """A stored object, ready to be appended to a pack.

    Attributes:
        header: what it says of itself.
        buffers: its bytes in order. The payload's are the caller's own, not copies: they must not change before the
            object is appended.
        stored_bytes: length of all of it.
        checksum: xxh3-128 of all of it but the checksum itself.
    """

    header: ObjectHeader
    buffers: tuple[Buffer, ...]
    stored_bytes: int
    checksum: bytes


class TableEntry(NamedTuple):
    """One object in a pack's table: its header's fields, where it lies, and its checksum."""

    kind: Kind
    transform: Transform
    element: Element
    raw_bytes: int
    stored_bytes: int
    offset: int
    id: ObjectId
    base: ObjectId | None
    checksum: bytes
    grouped: bool = False
    viewed: bool = False

    @property
    def header(self) -> ObjectHeader:
        """The header that the object itself must have."""
        codes = self.kind, self.transform, self.grouped, self.element
        return ObjectHeader(*codes, self.raw_bytes, self.id, self.base, self.viewed)

    @property
    def end(self) -> int:
        """Offset of the first byte after the object."""
        return self.offset + self.stored_bytes


@dataclass(frozen=True, slots=True)
class PackTable:
    """All objects of a pack, by offset. They tile the pack between its header and its table."""

    id: PackId
    entries: tuple[TableEntry, ...]


@dataclass(frozen=True, slots=True)
class Footer:
    """Where a pack's table is.

    Attributes:
        table_offset: first byte of the table, and first after the last object.
        entry_count: objects in the pack.
        table_checksum: xxh3-128 of the table.
    """

    table_offset: int
    entry_count: int
    table_checksum: bytes

    @property
    def table_bytes(self) -> int:
        """Length of the table."""
        return self.entry_count * ENTRY_BYTES


# --- objects --------------------------------------------------------------------------------------------------------


def seal(header: ObjectHeader, payload: Sequence[Buffer]) -> Sealed:
    """Put header and checksum before a payload.

    Args:
        header: describes the payload.
        payload: its parts, C-contiguous; short ones are copied, others referred to by the result.

    Raises:
        ValueError: the format does not allow such an object.

    Cost: one pass of xxh3 (15 GB/s) over the payload, without the GIL.
    """
    base = header.base or b""
    payload_bytes = sum(memoryview(part).nbytes for part in payload)
    stored_bytes = OBJECT_HEADER_BYTES + len(base) + payload_bytes
    codes = _codes(header)
    if fault := _fault(header, stored_bytes, codes):
        raise ValueError(f"object {header.id.hex()}: {fault}")
    fields = _OBJECT.pack(OBJECT_MAGIC, codes, header.raw_bytes, payload_bytes, header.id)
    if stored_bytes <= HELD_COPY_BYTES:  # of small objects there are many, and each part costs a microsecond
        body = b"".join((base, *payload))
        checksum = xxh3_128_digest(fields + body)
        return Sealed(header, (fields + checksum + body,), stored_bytes, checksum)
    checksum = _checksum(fields, base, *payload)
    return Sealed(header, (fields + checksum + base, *payload), stored_bytes, checksum)


def unseal(data: Buffer, what: str) -> tuple[ObjectHeader, memoryview]:
    """Check a stored object and take it apart.

    Args:
        data: exactly the object's stored bytes.
        what: named in errors.

    Returns:
        The header, and the payload as a view of ``data``.

    Raises:
        Corrupt: not an intact object.
        Incompatible: an intact object that uses something this version does not know.

    Cost: one pass of xxh3 over ``data``, without the GIL.
    """
    view = memoryview(data).cast("B")
    _require(len(view) >= OBJECT_HEADER_BYTES, what, f"{len(view)} bytes are too few for an object")
    fields, checksum = view[: _OBJECT.size], view[_OBJECT.size : OBJECT_HEADER_BYTES]
    magic, codes, raw_bytes, payload_bytes, object_id = _OBJECT.unpack(fields)
    _require(magic == OBJECT_MAGIC, what, "no object begins here")
    start = OBJECT_HEADER_BYTES + (ID_BYTES if codes[FLAGS_AT] & HAS_BASE else 0)
    _require(start + payload_bytes == len(view), what, "of another length than it says")
    _require(_checksum(fields, view[OBJECT_HEADER_BYTES:]) == checksum, what, "its checksum does not match its bytes")
    base = bytes(view[OBJECT_HEADER_BYTES:start]) or _NO_BASE
    header = _header_from(codes, raw_bytes, object_id, base, what)
    _require_possible(header, len(view), codes, what)
    return header, view[start:]


def table_entry(sealed: Sealed, offset: int) -> TableEntry:
    """The table's entry for an object at ``offset``."""
    kind, transform, grouped, element, raw_bytes, object_id, base, viewed = sealed.header
    lengths = raw_bytes, sealed.stored_bytes, offset
    return TableEntry(kind, transform, element, *lengths, object_id, base, sealed.checksum, grouped, viewed)


# --- header, table, footer ------------------------------------------------------------------------------------------


def encode_header() -> bytes:
    """The first bytes of every pack."""
    fields = _HEADER.pack(HEADER_MAGIC, PACK_VERSION)
    return fields + xxh3_128_digest(fields)


def check_header(data: Buffer, what: str) -> None:
    """Check the first bytes of a pack.

    Raises:
        Corrupt: no pack begins so.
        Incompatible: a pack of another version.
    """
    _checked(data, HEADER_MAGIC, what, "header")
    _require(data == encode_header(), what, "bytes of the header that must be zero are not")


def encode_table(entries: Iterable[TableEntry]) -> bytes:
    """Encode a table, whose hash is the pack's id."""
    return b"".join(
        _ENTRY.pack(
            _codes(entry.header),
            entry.raw_bytes,
            entry.stored_bytes,
            entry.offset,
            entry.id,
            entry.base or _NO_BASE,
            entry.checksum,
        )
        for entry in entries
    )


def footer_of(table: Buffer, table_offset: int) -> Footer:
    """Describe a table for the footer."""
    return Footer(table_offset, memoryview(table).nbytes // ENTRY_BYTES, xxh3_128_digest(table))


def encode_footer(footer: Footer) -> bytes:
    """Encode the last bytes of a pack."""
    fields = _FOOTER.pack(FOOTER_MAGIC, PACK_VERSION, footer.table_offset, footer.entry_count, footer.table_checksum)
    return fields + xxh3_128_digest(fields)


def decode_footer(data: Buffer, pack_bytes: int, what: str) -> Footer:
    """Decode the last bytes of a pack.

    Args:
        data: the last ``FOOTER_BYTES``.
        pack_bytes: length of the pack.
        what: named in errors.

    Raises:
        Corrupt: not a footer, or not that of a pack of this length.
        Incompatible: a pack of another version.
    """
    fields = _checked(data, FOOTER_MAGIC, what, "footer")
    footer = Footer(*_FOOTER.unpack(fields)[2:])
    _require(encode_footer(footer) == data, what, "bytes of the footer that must be zero are not")
    end = footer.table_offset + footer.table_bytes + FOOTER_BYTES
    _require(end == pack_bytes, what, f"is {pack_bytes} bytes long where its footer says {end}")
    _require(footer.table_offset >= HEADER_BYTES, what, "its table begins inside the header")
    return footer


def decode_table(data: Buffer, footer: Footer, what: str) -> PackTable:
    """Decode a table and check that its objects tile the pack: no hole, no overlap, nothing twice.

    Raises:
        Corrupt: not an intact table, or it describes no possible pack.
        Incompatible: an object uses something this version does not know.

    Cost: about 10 µs an entry.
    """
    _require(len(data) == footer.table_bytes, what, "table is cut off")
    _require(xxh3_128_digest(data) == footer.table_checksum, what, "table does not match its checksum")
    entries: list[TableEntry] = []
    ids: set[ObjectId] = set()
    end = HEADER_BYTES
    for fields in _ENTRY.iter_unpack(data):
        entry = _entry_from(fields, f"{what}: table entry {len(entries)}")
        if entry.offset != end:
            raise Corrupt(f"{what}: object at offset {entry.offset} where one should begin at {end}")
        if entry.id in ids:
            raise Corrupt(f"{what}: object {entry.id.hex()} is there twice")
        ids.add(entry.id)
        entries.append(entry)
        end = entry.end
    _require(end == footer.table_offset, what, f"objects end at {end}, the table begins at {footer.table_offset}")
    return PackTable(pack_id(data), tuple(entries))


# --- how ------------------------------------------------------------------------------------------------------------


def _require(condition: object, what: str, why: str | None) -> None:
    if not condition:
        raise Corrupt(f"{what}: {why}")


def _require_possible(header: ObjectHeader, stored_bytes: int, codes: bytes, what: str) -> None:
    if fault := _fault(header, stored_bytes, codes):
        sizes = f"{header.raw_bytes} bytes raw, {stored_bytes} stored"
        raise Corrupt(f"{what}: {fault} ({header.kind.name} {header.id.hex()}, {header.transform.name}, {sizes})")


def _checked(data: Buffer, magic: bytes, what: str, part: str) -> bytes:
    """The fields of a header or footer, which both are magic, version, more fields, and xxh3-128 of all that."""
    fields, checksum = bytes(data[:48]), bytes(data[48:])
    _require(fields[: len(magic)] == magic, what, f"has no {part} of a pack")
    _require(xxh3_128_digest(fields) == checksum, what, f"its {part} does not match its checksum")
    version = int.from_bytes(fields[8:12], "little")
    if version != PACK_VERSION:
        raise Incompatible(f"{what}: pack version {version}, this program reads {PACK_VERSION}; use a newer one")
    return fields


def _checksum(*parts: Buffer) -> bytes:
    hasher = xxh3_128()
    for part in parts:
        hasher.update(part)
    return hasher.digest()


def _codes(header: ObjectHeader) -> bytes:
    flags = {"has_base": header.base is not None, "grouped": header.grouped, "viewed": header.viewed}
    return encode_codes(header.kind, header.transform, header.element, **flags)


def _header_from(codes: bytes, raw_bytes: int, object_id: bytes, base: bytes, what: str) -> ObjectHeader:
    """Fields to what they mean. The bytes are intact, so what is unknown is newer, not damaged."""
    try:
        meaning, viewed = decode_codes(codes)
    except ValueError as error:
        raise Incompatible(f"{what}: {error}; a newer version wrote it") from None
    base_id = ObjectId(base) if codes[FLAGS_AT] & HAS_BASE else None
    return ObjectHeader(*meaning, raw_bytes, ObjectId(object_id), base_id, viewed)


def _entry_from(fields: tuple[Any, ...], what: str) -> TableEntry:
    codes, raw_bytes, stored_bytes, offset, object_id, base, checksum = fields
    header = _header_from(codes, raw_bytes, object_id, base, what)
    _require(header.base is not None or base == _NO_BASE, what, "a base, and a flag that says there is none")
    _require_possible(header, stored_bytes, codes, what)
    return table_entry(Sealed(header, (), stored_bytes, checksum), offset)


def _max_raw_bytes(kind: Kind) -> int:
    return MAX_CHUNK_BYTES if kind is Kind.CHUNK else MAX_TREE_BYTES


def _fault(header: ObjectHeader, stored_bytes: int, codes: bytes) -> str | None:
    """Why the format does not allow such an object, or ``None`` if it does. Payloads are the codec's to check."""
    raw_bytes, payload_bytes = header.raw_bytes, stored_bytes - OBJECT_HEADER_BYTES - (ID_BYTES if header.base else 0)
    if not 0 < raw_bytes <= _max_raw_bytes(header.kind):
        return "raw length out of range"
    if not (VIEW_BYTES if header.viewed else 0) < payload_bytes <= raw_bytes:
        return "stored length out of range"
    if raw_bytes % header.element.width_bytes:
        return "raw length is no multiple of its element's"
    if header.transform is Transform.RAW and payload_bytes != raw_bytes:
        return "a raw payload of another length"
    return "its own base" if header.base == header.id else fault_of(codes)
