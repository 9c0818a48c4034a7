"""Tensors past the sizes at which 32-bit lengths and single system calls end."""

import mmap
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.format.chunking import tensor_cuts
from store.format.entries import TensorEntry
from store.limits import GIB, MAX_CHUNK_BYTES, MIB
from store.memory import same_bytes
from store.repository import Repository
from store.saving.inputs import ItemInput, TensorInput
from store.saving.saver import Saved, SaveRequest

pytestmark = pytest.mark.slow


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def zeros(size_bytes: int) -> memoryview:
    """Memory that takes no room until it is written to."""
    return memoryview(mmap.mmap(-1, size_bytes))


def save(repo: Repository, data: memoryview, shape: tuple[int, ...], last: Saved | None = None) -> Saved:
    given = ItemInput("model", {"w": TensorInput(0, "uint8", shape, data)})
    parent = last.commit if last else None
    return repo.save(SaveRequest([given], branch="main", parent=parent, last=last.last if last else None))


def entry_of(repo: Repository, saved: Saved) -> TensorEntry:
    entry = repo.tree(repo.commit(saved.commit), "model")["w"]
    assert isinstance(entry, TensorEntry)
    return entry


def test_a18_2_gib_and_one_byte(repo: Repository) -> None:
    size_bytes = 2 * GIB + 1
    data = zeros(size_bytes)
    marks = [0, GIB, 2 * GIB - 1, 2 * GIB]
    for mark in marks:
        data[mark] = 1 + mark % 250
    saved = save(repo, data, (size_bytes,))
    entry = entry_of(repo, saved)
    assert entry.size_bytes == saved.counts.raw_bytes == size_bytes
    for mark in marks:
        out = bytearray(1)
        repo.read_rows(entry, mark, mark + 1, memoryview(out))
        assert out[0] == data[mark]
    whole = zeros(size_bytes)
    repo.read_tensors([(entry, whole)])
    assert same_bytes(whole, data)


def test_a20_one_tensor_of_4_gib(repo: Repository) -> None:
    rows, row_bytes = 4096, MIB
    data = zeros(rows * row_bytes)
    for row in range(0, rows, 64):
        data[row * row_bytes] = 1 + row // 64
    cuts = tensor_cuts((rows, row_bytes), 1)
    first = save(repo, data, (rows, row_bytes))
    assert first.counts.chunk_count == len(cuts) == 4 * GIB // MAX_CHUNK_BYTES
    assert first.counts.new_raw_bytes == (64 + 1) * MAX_CHUNK_BYTES  # those that are marked, and the one of zeros
    assert first.counts.stored_bytes < 65 * 4096 + 40 * len(cuts)
    assert len(repo.index.packs()) == 1
    again = save(repo, data, (rows, row_bytes), last=first)
    assert (again.counts.unchanged_count, again.counts.new_raw_bytes) == (len(cuts), 0)
    assert again.counts.stored_bytes < 500
    out = bytearray(row_bytes)
    repo.read_rows(entry_of(repo, again), 64 * 63, 64 * 63 + 1, memoryview(out))
    assert out[0] == 64
