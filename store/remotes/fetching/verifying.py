"""Seeing that a copy of an object is what its pack's table says, and what it is named by. Pure.

Chunks need more than this, since they may be stored against others: who decodes them compares their hash.
"""

from ...errors import Corrupt
from ...format.objects import Commit, Kind, TreeNode
from ...format.pack import OBJECT_HEADER_BYTES, ObjectHeader, unseal
from ...ids import commit_id, tree_id
from ...reading.reader import decode_small
from .incoming import RemoteCopy

_CHECKSUM = slice(OBJECT_HEADER_BYTES - 16, OBJECT_HEADER_BYTES)


def name_of(copy: RemoteCopy) -> str:
    """What a copy is called in messages."""
    kind = copy.entry.kind.name.lower()
    return f"pack {copy.pack.text} at offset {copy.entry.offset}: {kind} {copy.entry.id.hex()}"


def unsealed(copy: RemoteCopy, stored: memoryview) -> tuple[ObjectHeader, memoryview]:
    """Header and payload of a copy.

    Args:
        copy: the copy.
        stored: what was read of it; the payload lies in this.

    Raises:
        Corrupt: it is damaged, or not what the pack's table says.
        Incompatible: a newer version wrote it.
    """
    header, payload = unseal(stored, name_of(copy))
    if header != copy.entry.header or stored[_CHECKSUM] != copy.entry.checksum:
        raise Corrupt(f"{name_of(copy)}: it differs from the pack's table", object=copy.entry.id.hex())
    return header, payload


def small_content(copy: RemoteCopy, header: ObjectHeader, payload: memoryview) -> bytes:
    """The canonical encoding of a tree or commit; its hash was compared.

    Raises:
        Corrupt: it is not what it is named by.
    """
    raw = decode_small(header, payload)
    if (tree_id(raw) if header.kind == Kind.TREE else commit_id(raw)) != header.id:
        raise wrong(copy)
    return raw


def require_readable(copy: RemoteCopy, raw: bytes) -> None:
    """See that a tree or commit says something: a hash fits whatever somebody made up.

    Raises:
        Corrupt: it does not.
        Incompatible: a newer version wrote it.
    """
    (TreeNode if copy.entry.kind == Kind.TREE else Commit).decode(raw, name_of(copy))


def wrong(copy: RemoteCopy) -> Corrupt:
    """What to raise for a copy whose hash is another."""
    return Corrupt(f"{name_of(copy)}: content does not match its id", object=copy.entry.id.hex())
