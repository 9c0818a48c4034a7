"""From where tensors lie in a file to what the file consists of: pure, but for reading what lies between them."""

from collections.abc import Callable, Sequence
from hashlib import sha256
from typing import Final, NamedTuple

from store.beside.composed import Composed, Run
from store.disk.files import ReadHandle
from store.errors import Conflict
from store.format.chunking import BlobCutter
from store.limits import MIB

from .listing import Found

_MAX_LITERAL_BYTES: Final = 64 * MIB
"""Of a file, in one value: a header of safetensors may have 100 MB, and has one."""

_READ_BYTES: Final = 1 * MIB


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


def composed(outline: Sequence[Gap | Lying], found: Found, handle: ReadHandle, told: Callable[[int], None]) -> Composed:
    """The recipe of a file: reads all of it, for its SHA-256.

    Args:
        outline: as :func:`outlined` made it.
        found: the file.
        handle: reads it.
        told: told of so many more bytes that were read.

    Raises:
        Conflict: the file is shorter than it was.
        OSError: it cannot be read.

    Cost: the hash, without the GIL; memory of what is no tensor's.
    """
    parts = tuple(
        _read(found, handle, part) if isinstance(part, Gap) else Run(part.item, part.name, 0, part.size_bytes)
        for part in outline
    )
    return Composed(found.size_bytes, _hashed(found, handle, told), parts)


def blob(
    found: Found, handle: ReadHandle, cuts: tuple[int, ...] | None, told: Callable[[int], None]
) -> tuple[bytes, tuple[int, ...]]:
    """SHA-256 of a file, and where to cut it: by its content, unless that is known.

    Raises:
        Conflict: the file is shorter than it was.
        OSError: it cannot be read.
    """
    if cuts is not None:
        return _hashed(found, handle, told), cuts
    cutter = BlobCutter()
    return _hashed(found, handle, told, cutter), cutter.finish()


def whole_of(found: Found, handle: ReadHandle, told: Callable[[int], None]) -> bytes:
    """All bytes of a small file.

    Raises:
        Conflict: the file is shorter than it was.
        OSError: it cannot be read.
    """
    data = _read(found, handle, Gap(0, found.size_bytes))
    told(len(data))
    return data


def _hashed(found: Found, handle: ReadHandle, told: Callable[[int], None], cutter: BlobCutter | None = None) -> bytes:
    hashing, block = sha256(), memoryview(bytearray(min(_READ_BYTES, found.size_bytes)))
    for start in range(0, found.size_bytes, _READ_BYTES):
        view = block[: found.size_bytes - start]
        if handle.pread_into(start, view) < len(view):
            raise _cut_off(found)
        hashing.update(view)
        if cutter is not None:
            cutter.add(view)
        told(len(view))
    return hashing.digest()


def _read(found: Found, handle: ReadHandle, gap: Gap) -> bytes:
    data = handle.pread(gap.start, gap.stop - gap.start)
    if len(data) < gap.stop - gap.start:
        raise _cut_off(found)
    return data


def _cut_off(found: Found) -> Conflict:
    return Conflict(f"{found.path} is shorter than it was when this import began", path=str(found.path))
