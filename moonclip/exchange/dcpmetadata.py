"""The ``.metadata`` of a directory that ``torch.distributed.checkpoint`` wrote, read without running anything.

It is a pickle, and what it was unpickled to (``dcppickle``) may be put together in any way: so all of it is checked.
"""

from collections.abc import Iterator, Mapping
from pathlib import Path, PurePosixPath
from typing import Any, Final, NamedTuple

from store.boxes import Box, require_tiling
from store.disk.files import Files
from store.errors import Corrupt, Incompatible, MoonclipError, Unsafe

from ..state.tensors import dtype_name
from .dcppickle import ToldIndex, ToldObject, ToldTensor, damaged, unpickled
from .ranges import MAX_SIZE

NAME: Final = ".metadata"

Keys = tuple[str | int, ...]
"""Keys from the outermost mapping to a leaf; an integer is a place in a list."""

_MAX_KEYS: Final = 64
"""On the way to one leaf: less than what recursion bears, and more than any state has."""


class Place(NamedTuple):
    """A run of a file.

    Attributes:
        path: the file, inside the directory.
        offset: first byte.
        size_bytes: how many.
    """

    path: Path
    offset: int
    size_bytes: int


class TensorLeaf(NamedTuple):
    """A tensor.

    Attributes:
        name: dotted name, for messages.
        keys: where it is in the state.
        dtype: stored name.
        shape: global shape.
        parts: boxes that tile it, and where each is, as ``torch.save`` wrote it.
    """

    name: str
    keys: Keys
    dtype: str
    shape: tuple[int, ...]
    parts: tuple[tuple[Box, Place], ...]


class ObjectLeaf(NamedTuple):
    """Anything else, as ``torch.save`` wrote it.

    Attributes:
        name: dotted name, for messages.
        keys: where it is in the state.
        place: where its file is.
    """

    name: str
    keys: Keys
    place: Place


Leaf = TensorLeaf | ObjectLeaf


def read_leaves(directory: Path, files: Files) -> list[Leaf]:
    """What a directory holds, in order. Reads no tensor.

    Args:
        directory: where ``.metadata`` is.
        files: does the I/O.

    Raises:
        Unsafe: its pickle asks for something that such metadata is not made of, or it names a file elsewhere.
        Corrupt: it cannot be read, or says what cannot be.
        Incompatible: a dtype that cannot be stored, or files that were transformed when they were written.
        OSError: it cannot be read.
    """
    path = directory / NAME
    found = unpickled(path, files.read_bytes(path))
    try:
        return list(_Leaves(directory, found, files).all())
    except (MoonclipError, OSError):
        raise
    except Exception as error:  # what stands there may be of any type, and raise what that raises
        raise damaged(path, repr(error)) from error


class _Leaves:
    """Metadata as leaves, each checked."""

    def __init__(self, directory: Path, found: Any, files: Files) -> None:
        self._directory = directory
        self._found = found
        self._files = files
        self._places: Mapping[Any, Any] = found.storage_data or {}
        self._keys: Mapping[str, Keys] = found.planner_data or {}
        self._sizes: dict[Path, int] = {}

    def all(self) -> Iterator[Leaf]:
        for name, entry in self._found.state_dict_metadata.items():
            if type(name) is not str:
                raise self._damaged(f"a name in it is a {type(name).__name__}")
            if isinstance(entry, ToldTensor):
                yield self._tensor(name, entry)
            elif isinstance(entry, ToldObject):
                yield ObjectLeaf(name, self._keys_of(name), self._place(ToldIndex(name)))
            else:
                raise self._damaged(f"{name} is a {type(entry).__name__}")

    def _tensor(self, name: str, entry: Any) -> TensorLeaf:
        shape = sizes_of(entry.size)
        boxes = [Box(sizes_of(chunk.offsets), sizes_of(chunk.sizes)) for chunk in entry.chunks]
        try:
            require_tiling(name, shape, boxes)
        except Incompatible as error:
            raise self._damaged(str(error)) from error
        parts = tuple((box, self._place(ToldIndex(name, box.offsets))) for box in boxes if box.volume)
        return TensorLeaf(name, self._keys_of(name), dtype_name(entry.properties.dtype), shape, parts)

    def _keys_of(self, name: str) -> Keys:
        keys = self._keys.get(name, (name,))
        is_legal = all(type(key) is str or (type(key) is int and key >= 0) for key in keys)
        if type(keys) is not tuple or not 0 < len(keys) <= _MAX_KEYS or type(keys[0]) is not str or not is_legal:
            raise self._damaged(f"{name} lies where no keys lead")
        return keys

    def _place(self, index: ToldIndex) -> Place:
        info = self._places.get(index)
        if info is None:
            raise self._damaged(f"it does not say where {index.fqn} is")
        if getattr(info, "transform_descriptors", None):
            raise Incompatible(
                f"{index.fqn} in {self._directory} was written through an extension; load it with what has written it,"
                " and save it from there",
                path=str(self._directory),
            )
        path = self._directory / self._beside(info.relative_path)
        offset, size_bytes = info.offset, info.length
        if not (type(offset) is type(size_bytes) is int and 0 <= offset <= offset + size_bytes <= self._size(path)):
            raise self._damaged(f"{index.fqn} lies outside of {path.name}")
        return Place(path, offset, size_bytes)

    def _beside(self, text: str) -> str:
        path = PurePosixPath(text)
        if "\0" in text or path.is_absolute() or ".." in path.parts or not path.parts:
            raise Unsafe(f"{self._directory / NAME} names {text!r}, which is no file below it", name=text)
        return text

    def _size(self, path: Path) -> int:
        if path not in self._sizes:
            self._sizes[path] = self._files.size(path)
        return self._sizes[path]

    def _damaged(self, why: str) -> Corrupt:
        return damaged(self._directory / NAME, why)


def sizes_of(sizes: Any) -> tuple[int, ...]:
    """Numbers that a pickle gives, be they that. Tuples in tuples, each many times, take no end of memory as text.

    Raises:
        ValueError: they are none, or too large for a tensor's.
    """
    found = tuple(sizes)
    if not all(type(size) is int and 0 <= size <= MAX_SIZE for size in found):
        raise ValueError("sizes that are no numbers")
    return found
