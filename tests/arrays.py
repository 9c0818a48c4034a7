"""Stores of arrays, what goes into them and what should come out, for tests of the engine."""

import os
import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from pathlib import Path
from zlib import crc32

import numpy as np

from store.bases import LastSave
from store.chunking import tensor_cuts
from store.disk import Disk
from store.dtypes import dtype
from store.entries import TensorEntry
from store.fsck import fsck
from store.ids import ChunkId, CommitId, ObjectId, PackId
from store.inputs import ItemInput, TensorInput
from store.packs import pack_path
from store.refnames import branch_name
from store.repository import Repository
from store.saving import Saved, SaveRequest

ITEM = "model"


@dataclass(frozen=True)
class Array:
    """A tensor, as the engine sees it."""

    dtype: str
    shape: tuple[int, ...]
    data: bytes

    @property
    def chunks(self) -> list[bytes]:
        """Its bytes, cut as a save cuts them."""
        cuts = tensor_cuts(self.shape, dtype(self.dtype).item_bytes)
        return [self.data[stop - cut : stop] for cut, stop in zip(cuts, accumulate(cuts), strict=True)]


State = Mapping[str, Array]


def noise(seed: object, *shape: int, dtype_name: str = "float32") -> Array:
    """Bytes that nothing compresses."""
    size_bytes = prod(shape) * dtype(dtype_name).item_bytes
    return Array(dtype_name, shape, random.Random(repr(seed)).randbytes(size_bytes))


def drifted(array: Array, seed: object, share: float = 1.0) -> Array:
    """The lowest byte of a share of the words changed: what a delta is made for."""
    chance, width = np.random.default_rng(crc32(repr(seed).encode())), dtype(array.dtype).item_bytes
    words = np.frombuffer(array.data, np.uint8).copy().reshape(-1, width)
    steps = chance.integers(1, 4, len(words), np.uint8)
    words[:, 0] += steps * (chance.random(len(words)) < share)
    return Array(array.dtype, array.shape, words.tobytes())


def item(state: State, name: str = ITEM, ties: Iterable[tuple[str, ...]] = ()) -> ItemInput:
    """Input of a save."""
    entries = {
        entry: TensorInput(position, array.dtype, array.shape, memoryview(array.data))
        for position, (entry, array) in enumerate(state.items())
    }
    return ItemInput(name, entries, tuple(ties))


def save(
    repo: Repository, state: State, *, branch: str = "main", step: int | None = None, last: LastSave | None = None
) -> Saved:
    """Save a state on top of a branch."""
    parent = repo.refs.read(branch_name(branch))
    return repo.save(SaveRequest([item(state)], branch=branch, parent=parent, step=step, last=last))


def entries_of(repo: Repository, commit: CommitId) -> dict[str, TensorEntry]:
    """Tensors of a commit."""
    tree = repo.tree(repo.commit(commit), ITEM)
    return {name: entry for name, entry in tree if isinstance(entry, TensorEntry)}


def read(repo: Repository, commit: CommitId) -> dict[str, Array]:
    """A commit's tensors, in the order in which they were given."""
    found = sorted(entries_of(repo, commit).items(), key=lambda pair: pair[1].position)
    out = {name: bytearray(entry.size_bytes) for name, entry in found}
    repo.read_tensors([(entry, memoryview(out[name])) for name, entry in found], verify_hash=True)
    return {name: Array(entry.dtype, entry.shape, bytes(out[name])) for name, entry in found}


def require_whole(repo: Repository, commits: Mapping[CommitId, State]) -> None:
    """Every commit reads back, in the order given, and a full check finds nothing."""
    for commit, state in commits.items():
        found = read(repo, commit)
        assert found == state
        assert list(found) == list(state)
    report = fsck(repo, full=True)
    assert report.findings == []


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
