"""Indexes and what goes into them, for tests."""

import subprocess
import sys
from collections.abc import Callable, Iterable
from pathlib import Path

from store.codec import Transform
from store.disk.files import Files
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import TableEntry
from store.ids import CommitId, ObjectId, PackId
from store.index import CommitRow, IndexWriter, LmdbIndex
from store.opening.generations import Generations

REPOSITORY = Path(__file__).parents[1]


def object_id(name: str) -> ObjectId:
    return ObjectId(name.encode().ljust(32, b"."))


def commit_id(name: str) -> CommitId:
    return CommitId(object_id(name))


def pack_id(name: str) -> PackId:
    return PackId(name.encode().ljust(32, b"."))


def entry(name: str, base: str | None = None, offset: int = 64) -> TableEntry:
    below = object_id(base) if base else None
    return TableEntry(Kind.CHUNK, Transform.RAW, Element.INT8, 100, 164, offset, object_id(name), below, b"x" * 16)


def row(name: str, parents: Iterable[str] = ()) -> CommitRow:
    return CommitRow(commit_id(name), tuple(map(commit_id, parents)), step=7, time_ns=8, branch="main", sequence=0)


def nothing(_: IndexWriter) -> None:
    pass


def generations(
    root: Path, fill: Callable[[IndexWriter], None] = nothing, map_bytes: int = 1 << 30, *, locked: bool = True
) -> Generations:
    """Those of a store whose packs hold what ``fill`` adds."""
    return Generations(root / "index", Files(), lambda: fill, map_bytes=map_bytes, locked=locked)


def make(root: Path, fill: Callable[[IndexWriter], None] = nothing, map_bytes: int = 1 << 30) -> LmdbIndex:
    """A new index, open."""
    made = generations(root, fill, map_bytes)
    made.rebuild()
    return made.open(writable=True)


def data_of(root: Path) -> Path:
    """The file of the index in use."""
    return max((root / "index").glob("[0-9]*"), key=lambda path: int(path.name)) / "data.mdb"


def start(program: str, *arguments: str | Path) -> "subprocess.Popen[str]":
    """Run a program in a process of its own, with pipes to it and from it."""
    command = [sys.executable, "-c", program, *map(str, arguments)]
    return subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True, cwd=REPOSITORY)


def run(program: str, *arguments: str | Path) -> str:
    """Run a program in a process of its own, which must end well, and return what it printed."""
    with start(program, *arguments) as process:
        printed, _ = process.communicate()
    assert process.returncode == 0, f"exit code {process.returncode}"
    return printed
