"""Small states of arrays: what goes into a store, and what must come out of it again."""

import random
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import prod
from zlib import crc32

import numpy as np

from store.format.chunking import tensor_cuts
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.fsck import fsck
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.repository import Repository
from store.saving.bases import LastSave
from store.saving.inputs import ItemInput, TensorInput
from store.saving.saver import Saved, SaveRequest

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


def entries_of(repo: Repository, commit: CommitId, name: str = ITEM) -> dict[str, TensorEntry]:
    """Tensors of an item of a commit."""
    tree = repo.tree(repo.commit(commit), name)
    return {name: entry for name, entry in tree if isinstance(entry, TensorEntry)}


def read(repo: Repository, commit: CommitId, name: str = ITEM) -> dict[str, Array]:
    """Tensors of an item of a commit, in the order in which they were given."""
    found = sorted(entries_of(repo, commit, name).items(), key=lambda pair: pair[1].position)
    out = {tensor: bytearray(entry.size_bytes) for tensor, entry in found}
    repo.read_tensors([(entry, memoryview(out[tensor])) for tensor, entry in found], verify_hash=True)
    return {tensor: Array(entry.dtype, entry.shape, bytes(out[tensor])) for tensor, entry in found}


def require_whole(repo: Repository, commits: Mapping[CommitId, State]) -> None:
    """Every commit reads back, in the order given, and a full check finds nothing."""
    for commit, state in commits.items():
        found = read(repo, commit)
        assert found == state
        assert list(found) == list(state)
    report = fsck(repo, full=True)
    assert report.findings == []
