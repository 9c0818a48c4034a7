"""From where tensors lie in a file to what the file consists of: pure, but for reading what lies between them."""

from collections.abc import Callable, Mapping, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from store.beside.composed import Composed, Run
from store.disk.files import ReadHandle
from store.errors import Conflict
from store.format.chunking import BlobCutter
from store.ids import ChunkId, chunk_id
from store.limits import MIB

from .listing import Found

_MAX_LITERAL_BYTES: Final = 64 * MIB
"""Of a file, in one value: a header of safetensors may have 100 MB, and has one."""

_READ_BYTES: Final = 1 * MIB

Told = Callable[[int], None]
"""Told of so many more bytes that were read, in any thread."""


class Lying(NamedTuple):
    """Where a tensor lies in a file.

    Attributes:
        start: the first byte.
        size_bytes: how many.
        item: the item that it becomes part of.
        name: its name there.
    """

    start: int
    size_bytes: int
    item: str
    name: str


class Gap(NamedTuple):
    """Bytes of a file that are no tensor's."""

    start: int
    stop: int


def outlined(lying: Sequence[Lying], size_bytes: int) -> list[Gap | Lying] | None:
    """What a file consists of, without holes or overlaps, in order.

    Of several names of the same bytes the first stands for them.

    Args:
        lying: tensors in it.
        size_bytes: its length.

    Returns:
        ``None`` if tensors overlap or lie outside, or most of the file is none.
    """
    outline: list[Gap | Lying] = []
    end = gap_bytes = 0
    distinct = {(each.start, each.size_bytes): each for each in reversed(lying) if each.size_bytes}
    for (start, tensor_bytes), each in sorted(distinct.items()):
        if start < end:
            return None
        if start > end:
            outline.append(Gap(end, start))
            gap_bytes += start - end
        outline.append(each)
        end = start + tensor_bytes
    if end > size_bytes:
        return None
    if end < size_bytes:
        outline.append(Gap(end, size_bytes))
        gap_bytes += size_bytes - end
    return outline if gap_bytes <= min(size_bytes // 2, _MAX_LITERAL_BYTES) else None


class Read(NamedTuple):
    """What came of reading a file.

    Attributes:
        recipe: what it consists of.
        chunks: ids of the chunks of the tensors in it, in the order of the file, as its bytes were when they were
            hashed: what is stored is the same file if these are the chunks that its tensors have there.
        cuts: lengths of its chunks, if it is one blob.
    """

    recipe: Composed
    chunks: tuple[ChunkId, ...]
    cuts: tuple[int, ...] = ()


def composed(
    outline: Sequence[Gap | Lying],
    cuts: Mapping[tuple[str, str], tuple[int, ...]],
    found: Found,
    handle: ReadHandle,
    told: Told,
) -> Read:
    """The recipe of a file: reads all of it, for its SHA-256.

    Args:
        outline: as :func:`outlined` made it.
        cuts: lengths of the chunks of each tensor, by its item and name.
        found: the file.
        handle: reads it.
        told: told of so many more bytes that were read.

    Raises:
        Conflict: the file is shorter than it was.
        OSError: it cannot be read.

    Cost: both hashes, without the GIL; memory of a chunk, and of what is no tensor's.
    """
    hashing = _Hashing(found, handle, told)
    parts: list[bytes | Run] = []
    for part in outline:
        if isinstance(part, Gap):
            parts.append(hashing.literal(part.stop - part.start))
        else:
            parts.append(Run(part.item, part.name, 0, part.size_bytes))
            hashing.chunks(cuts[part.item, part.name])
    return Read(Composed(found.size_bytes, hashing.digest(), tuple(parts)), tuple(hashing.ids))


def blob(item: str, cuts: tuple[int, ...] | None, found: Found, handle: ReadHandle, told: Told) -> Read:
    """The recipe of a file that is one tensor of bytes: cut by its content, unless where to cut it is known.

    Args:
        item: the item that the tensor is in, under the file's name.
        cuts: lengths of its chunks, if they are known.
        found: the file.
        handle: reads it.
        told: told of so many more bytes that were read.

    Raises:
        Conflict: the file is shorter than it was.
        OSError: it cannot be read.
    """
    hashing = _Hashing(found, handle, told)
    if cuts is None:
        cuts = hashing.cut()
    else:
        hashing.chunks(cuts)
    run = Run(item, found.name, 0, found.size_bytes)
    return Read(Composed(found.size_bytes, hashing.digest(), (run,)), tuple(hashing.ids), cuts)


def whole_of(found: Found, handle: ReadHandle, told: Told) -> bytes:
    """All bytes of a small file.

    Raises:
        Conflict: the file is shorter than it was.
        OSError: it cannot be read.
    """
    data = _read(found, handle, Gap(0, found.size_bytes))
    told(len(data))
    return data


class _Hashing:
    """Reads a file once, from its beginning, for its SHA-256 and for the ids of chunks in it.

    Attributes:
        ids: of the chunks so far.
    """

    def __init__(self, found: Found, handle: ReadHandle, told: Told) -> None:
        self.ids: list[ChunkId] = []
        self._found = found
        self._handle = handle
        self._told = told
        self._hash = sha256()
        self._at = 0
        self._room = memoryview(b"")

    def literal(self, size_bytes: int) -> bytes:
        """The next bytes, which belong to no chunk."""
        data = _read(self._found, self._handle, Gap(self._at, self._at + size_bytes))
        self._passed(memoryview(data))
        return data

    def chunks(self, cuts: Sequence[int]) -> None:
        """Go on over chunks of these lengths."""
        self.ids += [chunk_id(self._next(cut)) for cut in cuts]

    def cut(self) -> tuple[int, ...]:
        """Go on to the end, and tell where the content says to cut."""
        cutter = BlobCutter(lambda chunk: self.ids.append(chunk_id(chunk)))
        for start in range(self._at, self._found.size_bytes, _READ_BYTES):
            cutter.add(self._next(min(_READ_BYTES, self._found.size_bytes - start)))
        return cutter.finish()

    def digest(self) -> bytes:
        """SHA-256 of the file, all of which was read."""
        assert self._at == self._found.size_bytes, "an outline covers the file"
        return self._hash.digest()

    def _next(self, size_bytes: int) -> memoryview:
        if len(self._room) < size_bytes:
            self._room = memoryview(bytearray(size_bytes))
        view = self._room[:size_bytes]
        if self._handle.pread_into(self._at, view) < size_bytes:
            raise _cut_off(self._found)
        self._passed(view)
        return view

    def _passed(self, data: memoryview) -> None:
        self._hash.update(data)
        self._at += len(data)
        self._told(len(data))


def _read(found: Found, handle: ReadHandle, gap: Gap) -> bytes:
    data = handle.pread(gap.start, gap.stop - gap.start)
    if len(data) < gap.stop - gap.start:
        raise _cut_off(found)
    return data


def _cut_off(found: Found) -> Conflict:
    return Conflict(f"{found.path} is shorter than it was when this import began", path=str(found.path))
