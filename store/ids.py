"""Identity: BLAKE3-256 of content, under a context of its own for each kind of object.

A chunk's id is the plain BLAKE3 of its raw bytes, so that it can be checked with any BLAKE3 tool. Trees, commits
and packs are hashed under derive-key contexts: no chunk can be made to collide with a tree by its content.

Spec: docs/format.md §3.
"""

from typing import Final, NewType

from blake3 import blake3

Buffer = bytes | bytearray | memoryview
"""What the engine accepts as bytes (``collections.abc.Buffer`` needs Python 3.12)."""

ObjectId = NewType("ObjectId", bytes)
"""32 raw bytes; the common supertype of the next three where the kind does not matter."""

ChunkId = NewType("ChunkId", ObjectId)
TreeId = NewType("TreeId", ObjectId)
CommitId = NewType("CommitId", ObjectId)
PackId = NewType("PackId", bytes)

ID_BYTES: Final = 32
SHORT_HEX: Final = 8
"""Hex digits in an abbreviated id, as people see it."""

TREE_CONTEXT: Final = "moonclip 2026-11 tree v1"
COMMIT_CONTEXT: Final = "moonclip 2026-11 commit v1"
PACK_CONTEXT: Final = "moonclip 2026-11 pack table v1"


def chunk_id(raw: Buffer) -> ChunkId:
    """Id of a chunk: BLAKE3-256 of its raw little-endian C-order bytes. Releases the GIL."""
    return ChunkId(ObjectId(blake3(raw).digest()))


def tree_id(canonical: Buffer) -> TreeId:
    """Id of a tree, from its canonical encoding."""
    return TreeId(ObjectId(blake3(canonical, derive_key_context=TREE_CONTEXT).digest()))


def commit_id(canonical: Buffer) -> CommitId:
    """Id of a commit, from its canonical encoding."""
    return CommitId(ObjectId(blake3(canonical, derive_key_context=COMMIT_CONTEXT).digest()))


def pack_id(table: Buffer) -> PackId:
    """Id of a pack, from the bytes of its table."""
    return PackId(blake3(table, derive_key_context=PACK_CONTEXT).digest())


def short(object_id: bytes) -> str:
    """The first eight hex digits, as shown to people."""
    return object_id.hex()[:SHORT_HEX]


def from_hex(text: str) -> ObjectId:
    """Parse a full hex id.

    Raises:
        ValueError: ``text`` is not 64 lower-case hex digits.
    """
    if len(text) != 2 * ID_BYTES or text != text.lower():
        raise ValueError(f"not a full object id: {text!r}")
    return ObjectId(bytes.fromhex(text))
