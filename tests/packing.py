"""Objects and packs for tests."""

from pathlib import Path

from store.codec import Transform
from store.disk.files import Files
from store.format import pack
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, PackTable, Sealed
from store.ids import Buffer, PackId, chunk_id
from store.reading.packs import PackStore, PackWriter, pack_path


def chunk(raw: Buffer, element: Element = Element.INT8) -> Sealed:
    """A chunk, stored raw."""
    header = ObjectHeader(Kind.CHUNK, Transform.RAW, False, element, memoryview(raw).nbytes, chunk_id(raw))
    return pack.seal(header, [raw])


def delta(raw: bytes, base: bytes, payload: bytes) -> Sealed:
    """A chunk that says it is a delta against another; nothing here decodes its payload."""
    header = ObjectHeader(Kind.CHUNK, Transform.XOR, False, Element.INT8, len(raw), chunk_id(raw), chunk_id(base))
    return pack.seal(header, [payload])


def join(sealed: list[Sealed]) -> bytes:
    """The bytes of a pack of these objects."""
    objects = [b"".join(each.buffers) for each in sealed]
    entries, offset = [], pack.HEADER_BYTES
    for each in sealed:
        entries.append(pack.table_entry(each, offset))
        offset += each.stored_bytes
    table = pack.encode_table(entries)
    return b"".join([pack.encode_header(), *objects, table, pack.encode_footer(pack.footer_of(table, offset))])


def id_of(data: bytes) -> PackId:
    """Id of a pack, from its bytes."""
    footer = pack.decode_footer(data[-pack.FOOTER_BYTES :], len(data), "pack")
    return pack.decode_table(data[footer.table_offset : -pack.FOOTER_BYTES], footer, "pack").id


def place(directory: Path, data: bytes, pack_id: PackId) -> Path:
    """Put bytes where a pack of that id lies."""
    directory.mkdir(exist_ok=True)
    path = pack_path(directory, pack_id)
    path.write_bytes(data)
    return path


def write(directory: Path, sealed: list[Sealed], files: Files | None = None) -> PackTable:
    """Write and publish a pack."""
    directory.mkdir(exist_ok=True)
    writer = PackWriter(files or Files(), directory, "tmp-test")
    for each in sealed:
        writer.append(each)
    table = writer.finish()
    writer.publish()
    return table


def verified(store: PackStore, pack_id: PackId) -> PackTable:
    """A pack's table, once all it names was read."""
    table = store.table(pack_id)
    for entry in table.entries:
        store.read_entry(pack_id, entry)
    return table
