"""Files that are stored with a commit: logs, a run's settings, a tokenizer. Each comes back byte for byte.

They are the item ``files``: a value for each, named by the file's path, which holds its bytes. So they are cut by their
content, shared between commits, pushed, fetched, checked and pruned like everything else. An item of that name whose
one value is a dictionary of bytes, as ``CheckpointManager.save(files={"run.json": data})`` makes it, holds files too.
"""

import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from ..disk.files import Files
from ..engine.placing import ROOT, placed
from ..errors import Incompatible, NotFound
from ..format.entries import ValueEntry
from ..format.objects import Commit
from ..reading.contents import Contents
from ..saving.inputs import Input, ItemInput, StoredInput, ValueInput

ITEM: Final = "files"
"""Name of the item that files are."""

FileSource = bytes | str | os.PathLike[str]
"""The content of a file, or the path where it lies."""

_HEADS: Final = ((1, 24), (2, 1 << 8), (3, 1 << 16), (5, 1 << 32), (9, 1 << 64))
"""Bytes that precede a byte string in its encoding, by the length below which they do; docs/format.md §2.1."""


@dataclass(frozen=True, slots=True)
class StoredFile:
    """A file of a commit.

    Attributes:
        path: its path there, parts joined by ``/``.
        size_bytes: its length.
        contents: the store that it is in.
        held: where its content is: an entry, or the bytes themselves.
    """

    path: str
    size_bytes: int
    contents: Contents
    held: ValueEntry | bytes

    def read(self) -> bytes:
        """Its content.

        Raises:
            Incompatible: it was saved as something else than a file.
            NotFound: a chunk is missing.
            Corrupt: a chunk is damaged.
        """
        if isinstance(self.held, bytes):
            return self.held
        self.contents.bring([self.held])
        value = self.contents.read_value(self.held)
        if not isinstance(value, bytes):
            raise Incompatible(f"{self.path} was saved as a {type(value).__name__}, not as a file", path=self.path)
        return value

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is replaced if it exists. Raises as :meth:`read` does, and OSError."""
        content, files, target = self.read(), Files(), Path(path).absolute()
        files.make_directory(target.parent)
        files.write_atomic(target, content)

    def at(self, position: int) -> Input:
        """The same file in another commit of this store, at some place among its siblings."""
        if isinstance(self.held, bytes):
            return ValueInput(position, self.held)
        return StoredInput(replace(self.held, position=position))


def files_item(given: Mapping[str, FileSource | StoredFile]) -> ItemInput:
    """The item that files are stored as. Reads them.

    Args:
        given: by path in the commit, parts joined by ``/``.

    Raises:
        Incompatible: a path that leads elsewhere, or lies inside another file.
        OSError: a file cannot be read.

    Memory: all that is read.
    """
    for path in given:
        _check_path(path)
    return placed(ITEM, given, _file_input)


def files_in(contents: Contents, commit: Commit) -> dict[str, StoredFile]:
    """The files of a commit, by path.

    Raises:
        Pruned: they were pruned.
        Corrupt: a tree is damaged.
    """
    if ITEM not in commit.items:
        return {}
    found: dict[str, StoredFile] = {}
    for name, entry in contents.tree(commit, ITEM):
        if name == ROOT and isinstance(entry, ValueEntry):
            contents.bring([entry])
            given = _within(contents.read_value(entry), ())
            found |= {path: StoredFile(path, len(data), contents, data) for path, data in given}
        elif isinstance(entry, ValueEntry):
            found[name] = StoredFile(name, _content_bytes(entry.size_bytes), contents, entry)
    return found


def file_at(contents: Contents, commit: Commit, path: str) -> StoredFile:
    """One of them.

    Raises:
        NotFound: the commit has no such file; the message lists those it has.
        Pruned: they were pruned.
        Corrupt: a tree is damaged.
    """
    found = files_in(contents, commit)
    if path not in found:
        known = ", ".join(sorted(found)) or "none"
        raise NotFound(f"no file {path!r} in commit {commit.id.hex()[:8]}; it has: {known}", path=path)
    return found[path]


def _file_input(_name: str, position: int, source: Any) -> Input:
    if isinstance(source, StoredFile):
        return source.at(position)
    return ValueInput(position, source if isinstance(source, bytes) else Files().read_bytes(Path(source)))


def _check_path(path: Any) -> None:
    parts: Sequence[str] = path.split("/") if isinstance(path, str) else ()
    if not parts or not all(parts) or "\0" in path or not {".", ".."}.isdisjoint(parts):
        raise Incompatible(f"{path!r} cannot be a file in a commit; a path is relative, as 'logs/train.txt'", path=path)


def _within(value: Any, around: tuple[str, ...]) -> Iterator[tuple[str, bytes]]:
    """Files in a value of nested dictionaries; whatever else it holds is none."""
    if isinstance(value, bytes) and around:
        yield "/".join(around), value
    elif isinstance(value, dict):
        for name, child in value.items():
            if isinstance(name, str):
                yield from _within(child, (*around, name))


def _content_bytes(encoded_bytes: int) -> int:
    """Length of the byte string whose encoding has that length."""
    return next(encoded_bytes - head for head, limit in _HEADS if encoded_bytes - head < limit)
