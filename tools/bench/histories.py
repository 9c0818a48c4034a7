"""Stores with as many commits and objects as a bench asks for. Made once, kept under .cache/bench.

They are what as many saves would leave: a pack for each commit, a line of commits, a line in the reflog for each, an
index that was filled bit by bit. The ways in are the real ones; only the disk is not waited for, and the index is
told of several packs at a time.
"""

import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from random import Random
from typing import Final

from store.codec import encode_blob
from store.disk.calls import Disk
from store.disk.files import Files
from store.format import trees
from store.format.dtypes import Element
from store.format.entries import Piece, TensorEntry
from store.format.objects import Commit, Kind
from store.format.pack import ObjectHeader, PackTable, seal
from store.ids import ChunkId, CommitId, ObjectId, TreeId, chunk_id
from store.index import IndexWriter
from store.naming.refnames import branch_name
from store.reading.packs import PackWriter
from store.repository import DEFAULT_BRANCH, Repository
from store.saving.inputs import ItemInput, TensorInput
from store.saving.publish import row_of

from .workloads import CACHE

TENSOR_COUNT: Final = 98
"""New chunks of each commit."""

OBJECT_COUNT: Final = TENSOR_COUNT + 2
"""Objects of each commit: its chunks, its tree and itself."""

TENSOR_BYTES: Final = 320
"""Little more than what would be kept inline: here the number of objects counts, not their size."""

ITEM: Final = "model"

_SECOND_NS: Final = 1_000_000_000
_FIRST_NS: Final = 1_700_000_000 * _SECOND_NS
_BATCH: Final = 50
"""Packs that the index is told of in one transaction: each transaction waits for the disk."""

_REVISION: Final = 1
"""Raised when what is made here, or the format of stores, changes."""


class _Unsynced(Disk):
    """Does not wait for the disk: a store that is lost can be made again."""

    def fsync(self, fd: int) -> None:
        pass

    def sync_directory(self, path: Path) -> None:
        pass


def history(commit_count: int) -> Path:
    """Folder of a store with one line of ``commit_count`` commits, made if it is not there. Not to be changed."""
    folder = CACHE / "histories" / f"line-{_REVISION}-{commit_count}"
    if not folder.exists():
        making = folder.with_suffix(".making")
        shutil.rmtree(making, ignore_errors=True)
        _make(making, commit_count)
        making.rename(folder)
    return folder


def copy(store: Path, target: Path) -> None:
    """Copy a store; both share their packs, which never change."""
    shutil.copytree(store, target, ignore=shutil.ignore_patterns("packs"))
    shutil.copytree(store / "packs", target / "packs", copy_function=os.link)


def state(seed: int, changed_count: int = TENSOR_COUNT) -> ItemInput:
    """The item that a commit holds: all tensors by default, else all but the first as the seed 0 makes them."""
    now, before = _tensors(seed), _tensors(0)
    data = [*now[:changed_count], *before[changed_count:]]
    inputs = {
        _name(number): TensorInput(number, "uint8", (TENSOR_BYTES,), memoryview(raw)) for number, raw in enumerate(data)
    }
    return ItemInput(ITEM, inputs)


def _make(root: Path, commit_count: int) -> None:
    with Repository.init(root, files=Files(_Unsynced()), thread_count=1) as repo:
        line = _Line(repo)
        for first in range(0, commit_count, _BATCH):
            made = [line.commit(number) for number in range(first, min(first + _BATCH, commit_count))]
            repo.index.write(lambda writer, made=made: _add(writer, made))  # type: ignore[misc]


def _add(writer: IndexWriter, made: list[tuple[PackTable, Commit]]) -> None:
    for table, commit in made:
        writer.add_pack(table.id, table.entries)
        writer.add_commit(row_of(commit))


class _Line:
    """Grows a store's branch."""

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._tip: CommitId | None = None

    def commit(self, number: int) -> tuple[PackTable, Commit]:
        """Write the pack of the next commit and move the branch to it."""
        pack = PackWriter(self._repo.files, self._repo.layout.packs, "tmp-bench")
        commit = self._write(pack, number)
        table = pack.finish()
        pack.publish()
        self._repo.refs.update(branch_name(DEFAULT_BRANCH), self._tip, commit.id, "save", commit.message)
        self._tip = commit.id
        return table, commit

    def _write(self, pack: PackWriter, number: int) -> Commit:
        entries = dict(_entries(pack, number))
        for tree in trees.build(entries):
            _append(pack, tree.id, Kind.TREE, tree.encoded)
        root: TreeId = tree.id
        commit = Commit(
            items={ITEM: root},
            parents=() if self._tip is None else (self._tip,),
            step=100 * number,
            time_ns=_FIRST_NS + 60 * number * _SECOND_NS,
            branch=DEFAULT_BRANCH,
            message="",
            metadata={"loss": f"{2 + 1 / (1 + number):.4f}"},
        )
        _append(pack, commit.id, Kind.COMMIT, commit.encode())
        return commit


def _entries(pack: PackWriter, seed: int) -> Iterator[tuple[str, TensorEntry]]:
    for number, raw in enumerate(_tensors(seed)):
        chunk: ChunkId = chunk_id(raw)
        _append(pack, chunk, Kind.CHUNK, raw)
        piece = Piece((0,), (TENSOR_BYTES,), (TENSOR_BYTES,), (chunk,))
        yield _name(number), TensorEntry(number, "uint8", (TENSOR_BYTES,), (piece,))


def _append(pack: PackWriter, object_id: ObjectId, kind: Kind, raw: bytes) -> None:
    encoded = encode_blob(raw)
    header = ObjectHeader(kind, encoded.transform, False, Element.INT8, len(raw), object_id)
    pack.append(seal(header, encoded.payload))


def _tensors(seed: int) -> list[bytes]:
    noise = Random(seed).randbytes(TENSOR_COUNT * TENSOR_BYTES)
    return [noise[at : at + TENSOR_BYTES] for at in range(0, len(noise), TENSOR_BYTES)]


def _name(number: int) -> str:
    return f"layers.{number // 7}.{number % 7}.weight"
