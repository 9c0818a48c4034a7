"""Stores of arrays, looked at and damaged, for tests of the engine."""

import os
from pathlib import Path

from store.disk.calls import Disk
from store.ids import ChunkId, CommitId, ObjectId, PackId
from store.reading.packs import pack_path
from store.repository import Repository
from tools.crash.states import ITEM, Array, State, drifted, entries_of, item, noise, read, require_whole, save

__all__ = [
    "ITEM",
    "Array",
    "Hiccuping",
    "State",
    "chunk_of",
    "damage",
    "depth",
    "depths",
    "drifted",
    "entries_of",
    "flip",
    "item",
    "noise",
    "pack_file",
    "read",
    "require_whole",
    "save",
]


def chunk_of(repo: Repository, commit: CommitId, name: str, number: int = 0) -> ChunkId:
    """Id of one chunk of a tensor."""
    return entries_of(repo, commit)[name].chunks[number]


def depth(repo: Repository, object_id: ObjectId) -> int:
    """How many objects have to be decoded before it."""
    return repo.index.places(object_id)[0].depth


def depths(repo: Repository, commit: CommitId) -> list[int]:
    """Of all chunks of a commit."""
    return [depth(repo, chunk) for entry in entries_of(repo, commit).values() for chunk in entry.chunks]


def pack_file(repo: Repository, pack: PackId) -> Path:
    """Where a pack lies."""
    return pack_path(repo.layout.packs, pack)


def flip(path: Path, offset: int, mask: int = 0x10) -> None:
    """Damage one byte of a file."""
    data = bytearray(path.read_bytes())
    data[offset] ^= mask
    path.write_bytes(data)


class Hiccuping(Disk):
    """Fails to read at one offset of any file.

    Args:
        error_number: ``errno`` of the failure.
        offset: where; another one can be set.
    """

    def __init__(self, error_number: int, offset: int) -> None:
        self.offset = offset
        self._error_number = error_number

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read, or fail."""
        if offset == self.offset:
            raise OSError(self._error_number, os.strerror(self._error_number))
        return super().pread(fd, size_bytes, offset)

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        """The same, into memory at hand."""
        data = self.pread(fd, len(out), offset)
        out[: len(data)] = data
        return len(data)


def damage(repo: Repository, object_id: ObjectId, copy: int = 0) -> PackId:
    """Damage the last byte of a stored object; returns the pack."""
    place = repo.index.places(object_id)[copy]
    flip(pack_file(repo, place.pack), place.offset + place.stored_bytes - 1)
    return place.pack
