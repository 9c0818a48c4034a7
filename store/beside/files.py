"""Files that are stored with a commit: logs, a run's settings, a tokenizer. Each comes back byte for byte.

They are the item ``files``: a value for each, named by the file's path, which holds its bytes. So they are cut by their
content, shared between commits, pushed, fetched, checked and pruned like everything else. An item of that name whose
one value is a dictionary of bytes, as ``CheckpointManager.save(files={"run.json": data})`` makes it, holds files too.

A file that consists of tensors of the same commit has a recipe there instead of its bytes, see ``composed``.
"""

import hashlib
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from functools import cached_property
from pathlib import Path
from typing import Any, Final

from ..disk.files import Files
from ..disk.replacing import replacing
from ..engine.placing import ROOT, placed
from ..errors import Incompatible, NotFound
from ..format.entries import ValueEntry
from ..format.objects import Commit
from ..format.values import Plain, Tagged
from ..limits import MIB
from ..reading.contents import Contents
from ..reading.copies import ChunkCopy
from ..saving.inputs import Input, ItemInput, StoredInput, ValueInput
from .composed import TAG, Composed, Parts, from_payload, hashed, to_plain

ITEM: Final = "files"
"""Name of the item that files are."""

FileSource = bytes | str | os.PathLike[str]
"""The content of a file, or the path where it lies."""

_HEADS: Final = ((1, 24), (2, 1 << 8), (3, 1 << 16), (5, 1 << 32), (9, 1 << 64))
"""Bytes that precede a byte string in its encoding, by the length below which they do; docs/format.md §2.1."""

_TAGGED: Final = b"\x83\x66tagged"
"""What the encoding of a tagged value begins with; docs/format.md §2.2."""

WINDOW_BYTES: Final = 16 * MIB
"""Of a composed file, read at once: enough for four threads to have a chunk each."""


@dataclass(frozen=True)
class StoredFile:
    """A file of a commit.

    Attributes:
        path: its path there, parts joined by ``/``.
        contents: the store that it is in.
        held: where its content is: an entry, or the bytes or the recipe themselves.
        parts: reads it, if it consists of tensors.
    """

    path: str
    contents: Contents
    held: ValueEntry | bytes | Composed
    parts: Parts

    @cached_property
    def composed(self) -> Composed | None:
        """What it consists of, if that are tensors; ``None`` if its bytes are stored as they are.

        Raises:
            NotFound: a chunk is missing.
            Corrupt: a chunk is damaged, or it is no recipe.
        """
        if isinstance(self.held, Composed):
            return self.held
        if isinstance(self.held, bytes) or not _is_tagged(self.contents, self.held):
            return None
        value = self.contents.read_value(self.held)
        is_recipe = isinstance(value, Tagged) and value.tag == TAG
        return from_payload(value.payload) if is_recipe else None

    @property
    def size_bytes(self) -> int:
        """Its length. Raises as :attr:`composed` does."""
        if self.composed is not None:
            return self.composed.size_bytes
        return _content_bytes(self.held.size_bytes) if isinstance(self.held, ValueEntry) else len(self._bytes())

    @property
    def sha256(self) -> str:
        """SHA-256 in hex. What has a recipe has it there; all else is read. Raises as :meth:`read` does."""
        return (hashlib.sha256(self.read()).digest() if self.composed is None else self.composed.sha256).hex()

    def read(self) -> bytes:
        """Its content.

        Raises:
            Incompatible: it was saved as something else than a file.
            NotFound: a chunk or an item is missing.
            Corrupt: a chunk is damaged, or it has not the SHA-256 that it was imported with.
        """
        return b"".join(self.windows())

    def windows(self, window_bytes: int = WINDOW_BYTES) -> Iterator[memoryview]:
        """Its content, so many bytes at a time if it consists of tensors.

        Raises as :meth:`read` does; a wrong SHA-256 is told behind the last of them.
        """
        if self.composed is not None:
            self.parts.require(self.composed)
            yield from hashed(self.path, self.composed, self._windows(self.composed, window_bytes))
            return
        yield memoryview(self._bytes())

    def _windows(self, composed: Composed, window_bytes: int) -> Iterator[memoryview]:
        for window in self.parts.windows(composed, window_bytes):
            out = memoryview(bytearray(window.size_bytes))
            self.contents.read_copies(self.parts.copies(window, out))
            yield out

    def copy_to(self, path: str | os.PathLike[str]) -> None:
        """Write it to a file, which is replaced if it exists. Raises as :meth:`read` does, and OSError."""
        files, target = Files(), Path(path).absolute()
        if self.composed is None:
            content = self.read()
            files.make_directory(target.parent)
            files.write_atomic(target, content)
            return
        files.make_directory(target.parent)
        with replacing(files, target) as blocks:
            for window in self.windows():
                blocks.write([window])

    def at(self, position: int) -> Input:
        """The same file in another commit of this store, at some place among its siblings.

        A composed one goes only where the tensors go that it consists of.
        """
        if isinstance(self.held, ValueEntry):
            return StoredInput(replace(self.held, position=position))
        return ValueInput(position, to_plain(self.held) if isinstance(self.held, Composed) else self.held)

    def _bytes(self) -> bytes:
        value: Plain = self.held
        if isinstance(self.held, ValueEntry):
            self.contents.bring([self.held])
            value = self.contents.read_value(self.held)
        if not isinstance(value, bytes):
            raise Incompatible(f"{self.path} was saved as a {type(value).__name__}, not as a file", path=self.path)
        return value


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
    parts = Parts(contents, commit)
    for name, entry in contents.tree(commit, ITEM):
        if name == ROOT and isinstance(entry, ValueEntry):
            contents.bring([entry])
            given = _within(contents.read_value(entry), ())
            found |= {path: StoredFile(path, contents, held, parts) for path, held in given}
        elif isinstance(entry, ValueEntry):
            found[name] = StoredFile(name, contents, entry, parts)
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


def _within(value: Any, around: tuple[str, ...]) -> Iterator[tuple[str, bytes | Composed]]:
    """Files in a value of nested dictionaries; whatever else it holds is none."""
    if isinstance(value, bytes) and around:
        yield "/".join(around), value
    elif isinstance(value, Tagged) and value.tag == TAG:
        yield "/".join(around), from_payload(value.payload)
    elif isinstance(value, dict):
        for name, child in value.items():
            if isinstance(name, str):
                yield from _within(child, (*around, name))


def _content_bytes(encoded_bytes: int) -> int:
    """Length of the byte string whose encoding has that length."""
    return next(encoded_bytes - head for head, limit in _HEADS if encoded_bytes - head < limit)


def _is_tagged(contents: Contents, entry: ValueEntry) -> bool:
    """Whether a value is a tagged one. Of one that is cut, the first chunk is read."""
    if entry.inline is not None:
        return entry.inline.startswith(_TAGGED)
    start = bytearray(len(_TAGGED))
    contents.read_copies([ChunkCopy(entry.chunks[0], entry.cuts[0], 0, memoryview(start))])
    return start == _TAGGED
