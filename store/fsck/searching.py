"""Finding the objects of a pack whose table cannot be used: cut off, or damaged at one of its ends.

Objects describe themselves. Where one ends the next begins; where that is not so, the next is taken that begins
anywhere with an object's magic and passes its check.
"""

from collections.abc import Iterator
from typing import Final

from ..disk.files import ReadHandle
from ..errors import Corrupt, Incompatible
from ..format.pack import (
    HEADER_BYTES,
    MAX_STORED_BYTES,
    OBJECT_HEADER_BYTES,
    OBJECT_MAGIC,
    Sealed,
    TableEntry,
    table_entry,
    unseal,
)
from ..ids import ID_BYTES, ObjectId
from ..limits import MIB

_WINDOW_BYTES: Final = MIB
_FLAGS_OFFSET, _PAYLOAD_OFFSET, _CHECKSUM_OFFSET = 7, 12, 48
_HAS_BASE: Final = 1


def search(pack: ReadHandle) -> tuple[TableEntry, ...]:
    """Entries of all objects of a pack that are whole, by offset; of an object that is there twice the first.

    Args:
        pack: the file, whatever is in it.

    Raises:
        OSError: it cannot be read.

    Cost: reads all of it.
    """
    found: dict[ObjectId, TableEntry] = {}
    for entry in _objects(pack):
        found.setdefault(entry.id, entry)
    return tuple(found.values())


def _objects(pack: ReadHandle) -> Iterator[TableEntry]:
    offset: int | None = HEADER_BYTES
    while offset is not None:
        stored_bytes = _length_at(pack, offset)
        entry = None if stored_bytes is None else _entry_at(pack, offset, stored_bytes)
        if entry is not None:
            yield entry
        if stored_bytes is not None and (entry is not None or _begins_at(pack, offset + stored_bytes)):
            offset += stored_bytes  # past a damaged one, whatever its payload may look like
        else:
            offset = _next_magic(pack, offset + 1)


def _length_at(pack: ReadHandle, offset: int) -> int | None:
    """Stored length of the object that begins there, as it says; ``None`` if none does that could be one."""
    head = pack.pread(offset, OBJECT_HEADER_BYTES)
    if len(head) < OBJECT_HEADER_BYTES or not head.startswith(OBJECT_MAGIC):
        return None
    base_bytes = ID_BYTES if head[_FLAGS_OFFSET] & _HAS_BASE else 0
    payload_bytes = int.from_bytes(head[_PAYLOAD_OFFSET : _PAYLOAD_OFFSET + 4], "little")
    stored_bytes = OBJECT_HEADER_BYTES + base_bytes + payload_bytes
    return stored_bytes if stored_bytes <= min(MAX_STORED_BYTES, pack.size - offset) else None


def _entry_at(pack: ReadHandle, offset: int, stored_bytes: int) -> TableEntry | None:
    data = pack.pread(offset, stored_bytes)
    try:
        header, _ = unseal(data, "object")
    except (Corrupt, Incompatible):
        return None
    return table_entry(Sealed(header, (), stored_bytes, data[_CHECKSUM_OFFSET:OBJECT_HEADER_BYTES]), offset)


def _begins_at(pack: ReadHandle, offset: int) -> bool:
    return pack.pread(offset, len(OBJECT_MAGIC)) == OBJECT_MAGIC


def _next_magic(pack: ReadHandle, start: int) -> int | None:
    while start < pack.size:
        at = pack.pread(start, _WINDOW_BYTES).find(OBJECT_MAGIC)
        if at >= 0:
            return start + at
        start += _WINDOW_BYTES - len(OBJECT_MAGIC) + 1
    return None
