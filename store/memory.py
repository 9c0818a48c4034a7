"""Buffers: memory that is used again, and comparing and copying at memory speed, without the GIL."""

import ctypes
import mmap
from contextlib import suppress
from functools import cache
from types import ModuleType

from .forks import loading
from .limits import HELD_COPY_BYTES, KIB, MAX_CHUNK_BYTES

_PROBE_BYTES = 4 * KIB
_LINE_BYTES = 64
_MIN_STREAM_BYTES = 64 * KIB
_MIN_MAPPED_BYTES = 256 * KIB
"""Of a room: less is not worth pages of its own."""


def fresh_pages(size_bytes: int) -> mmap.mmap:
    """Fresh memory of zeros, aligned to pages. Raises OSError if there is none."""
    # Private: Python's default is shared memory, in which a forked child would write over its parent's packs.
    pages = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    with suppress(AttributeError, OSError):  # where there are huge pages, the kernel clears 2 of them, not 1,024
        pages.madvise(mmap.MADV_HUGEPAGE)
    return pages


class Room:
    """Memory that is used again: fresh memory costs page faults, and is in no cache. For one thread at a time."""

    def __init__(self) -> None:
        self._memory = memoryview(b"")

    def of(self, size_bytes: int) -> memoryview:
        """So many bytes, contents undefined. What was in here before is not valid any more.

        Raises:
            MemoryError: there are not so many.
        """
        if len(self._memory) < size_bytes:
            self._memory = _fresh(size_bytes)
        return self._memory[:size_bytes]


def _fresh(size_bytes: int) -> memoryview:
    if size_bytes < _MIN_MAPPED_BYTES:
        return memoryview(bytearray(size_bytes))
    try:
        return memoryview(fresh_pages(max(size_bytes, MAX_CHUNK_BYTES)))
    except OSError as error:  # which would read as if a file could not be read
        raise MemoryError(f"no memory for {size_bytes} bytes ({error})") from error


def same_bytes(left: memoryview, right: memoryview) -> bool:
    """Whether two flat byte views hold the same bytes.

    A memoryview's own ``==`` compares element by element under the GIL, forty times slower. Changed chunks differ
    early: a short probe spares them the pass.
    """
    if len(left) != len(right):
        return False
    if bytes(left[:_PROBE_BYTES]) != bytes(right[:_PROBE_BYTES]):
        return False
    return len(left) <= _PROBE_BYTES or _equal(left[_PROBE_BYTES:], right[_PROBE_BYTES:])


def copy_bytes(source: memoryview, target: memoryview) -> None:
    """Copy a flat byte view into another of its length, which may not overlap it. See :func:`stream`."""
    if len(source) <= HELD_COPY_BYTES:
        target[:] = source
    else:
        np = _numpy()
        left, right = np.frombuffer(target, np.uint8), np.frombuffer(source, np.uint8)
        stream(left.ctypes.data, right.ctypes.data, len(source))


def stream(target_at: int, source_at: int, size_bytes: int) -> None:
    """Copy memory by address, past the caches where it is much: for targets that this processor does not read soon.

    Args:
        target_at: address of writable memory.
        source_at: address; what lies there does not overlap the target.
        size_bytes: how much.

    Cost: 70 ms for 500 MB on one core; compiled kernels take a third less than the C library. Releases the GIL.
    """
    head_bytes = -target_at % _LINE_BYTES
    middle_bytes = (size_bytes - head_bytes) // _LINE_BYTES * _LINE_BYTES
    if size_bytes < _MIN_STREAM_BYTES:
        ctypes.memmove(target_at, source_at, size_bytes)
        return
    done_bytes = head_bytes + middle_bytes
    ctypes.memmove(target_at, source_at, head_bytes)
    _kernels().current(0).stream(target_at + head_bytes, source_at + head_bytes, middle_bytes)
    ctypes.memmove(target_at + done_bytes, source_at + done_bytes, size_bytes - done_bytes)


def _equal(left: memoryview, right: memoryview) -> bool:
    np = _numpy()
    whole_words = len(left) - len(left) % 8
    words = np.array_equal(np.frombuffer(left[:whole_words], np.uint64), np.frombuffer(right[:whole_words], np.uint64))
    return bool(words) and left[whole_words:] == right[whole_words:]


@cache
def _kernels() -> ModuleType:
    with loading:
        from . import kernels

    return kernels


@cache
def _numpy() -> ModuleType:
    """Loaded when first needed: who reads history imports this module too."""
    with loading:
        import numpy as np

    return np
