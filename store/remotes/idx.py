"""What lies beside each pack of a remote: its table, and its commits, so that history is read without the packs. Pure.

    magic 8 B | version u32 | entries u32 | table, 100 B an entry | commits as they are stored, in the table's order

Its length follows from what it says. The table's hash is the pack's id, and commits are named by their hashes: an idx
says nothing that cannot be checked.

Spec: docs/format.md, section on remotes.
"""

import struct
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Final

from ..errors import Corrupt, Incompatible
from ..format.objects import Commit, Kind
from ..format.pack import ENTRY_BYTES, FOOTER_BYTES, PackTable, decode_table, encode_table, footer_of, unseal
from ..ids import Buffer, CommitId, PackId, commit_id, short
from ..limits import IDX_VERSION, MAX_IDX_OBJECTS
from ..reading.reader import decode_small

IDX_MAGIC: Final = b"\x89MCIDX1\n"
_HEAD: Final = struct.Struct("<8sII")


@dataclass(frozen=True, slots=True)
class Idx:
    """What an idx says.

    Attributes:
        table: the pack's objects.
        commits: those among them that are commits, as they are stored.
    """

    table: PackTable
    commits: Mapping[CommitId, bytes]

    @property
    def pack_bytes(self) -> int:
        """Length of the pack."""
        return self.table.entries[-1].end + len(self.table.entries) * ENTRY_BYTES + FOOTER_BYTES


def encode_idx(table: PackTable, commits: Sequence[bytes]) -> bytes:
    """Encode an idx.

    Args:
        table: the pack's; not empty.
        commits: its commits as they are stored, in the table's order.
    """
    head = _HEAD.pack(IDX_MAGIC, IDX_VERSION, len(table.entries))
    return b"".join((head, encode_table(table.entries), *commits))


def decode_idx(data: Buffer, pack: PackId) -> Idx:
    """Decode an idx and check all that it says.

    Args:
        data: the whole of it.
        pack: the pack that it should be of.

    Raises:
        Corrupt: it is not the idx of that pack.
        Incompatible: a newer version wrote it.

    Cost: 10 µs an entry, 20 a commit.
    """
    what = f"idx of pack {short(pack)}"
    view = memoryview(data).cast("B")
    if len(view) < _HEAD.size:
        raise Corrupt(f"{what}: {len(view)} bytes are too few", pack=pack.hex())
    magic, version, count = _HEAD.unpack_from(view)
    end = _HEAD.size + count * ENTRY_BYTES
    if magic != IDX_MAGIC or not 0 < count <= MAX_IDX_OBJECTS or len(view) < end:
        raise Corrupt(f"{what}: it is none, is cut off, or of too many objects", pack=pack.hex())
    if version != IDX_VERSION:
        raise Incompatible(f"{what}: version {version}, this program reads {IDX_VERSION}; use a newer one")
    encoded = view[_HEAD.size : end]
    table = decode_table(encoded, footer_of(encoded, _objects_end(encoded, what)), what)
    if table.id != pack:
        raise Corrupt(f"{what}: it is that of pack {short(table.id)}", pack=pack.hex())
    return Idx(table, _commits(table, view[end:], what))


def decoded_commit(commit: CommitId, stored: Buffer) -> Commit:
    """A commit, from how it is stored.

    Raises:
        Corrupt: it is not that commit, intact.
        Incompatible: a newer version wrote it.
    """
    what = f"commit {short(commit)}"
    header, payload = unseal(stored, what)
    if header.kind is not Kind.COMMIT:
        raise Corrupt(f"{what}: it is no commit", commit=commit.hex())
    encoded = decode_small(header, payload)
    if commit_id(encoded) != commit:
        raise Corrupt(f"{what}: content does not match its id", commit=commit.hex())
    return Commit.decode(encoded, what)


def _objects_end(encoded: memoryview, what: str) -> int:
    """Where the last object ends, which the footer of the pack says."""
    stored_bytes, offset = struct.unpack_from("<IQ", encoded, len(encoded) - ENTRY_BYTES + 8)
    end: int = stored_bytes + offset
    if end >= 1 << 63:
        raise Corrupt(f"{what}: its last object ends nowhere")
    return end


def _commits(table: PackTable, rest: memoryview, what: str) -> dict[CommitId, bytes]:
    commits: dict[CommitId, bytes] = {}
    start = 0
    for entry in table.entries:
        if entry.kind is Kind.COMMIT:
            stored = bytes(rest[start : start + entry.stored_bytes])
            start += entry.stored_bytes
            header, _ = unseal(stored, f"{what}: commit {short(entry.id)}")
            if header != entry.header:
                raise Corrupt(f"{what}: commit {short(entry.id)} is not as its table says", object=entry.id.hex())
            commits[CommitId(entry.id)] = stored
    if start != len(rest):
        raise Corrupt(f"{what}: {len(rest)} bytes of commits where {start} belong")
    return commits
