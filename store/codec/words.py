"""Bytes as arrays of words, and the room in which a thread makes planes of them."""

import threading
from typing import Final

import numpy as np

from ..format.dtypes import Element
from ..kernels.mapping import Bytes, Words

_PLANE_GAP_BYTES: Final = 17 * 64
"""Between planes: a power of two apart, the same offset of every plane falls into one set of the cache."""


_TYPES: Final = {width_bytes: np.dtype(f"<u{width_bytes}") for width_bytes in (1, 2, 4, 8)}


def words_of(data: memoryview | bytes, element: Element) -> Words:
    """Aligned words over ``data``: a view, or a copy if it is not aligned. Only to be read."""
    words: Words = np.frombuffer(data, _TYPES[element.width_bytes])
    return words if words.flags.aligned else words.copy()


class _Scratch(threading.local):
    def __init__(self) -> None:
        self.keys = np.empty(0, np.uint8)
        self.planes = np.empty((0, 0), np.uint8)


_scratch = _Scratch()


def scratch_keys(word_count: int) -> Bytes:
    """Room for group keys: uint8[n], contents undefined, valid until this thread's next call.

    Kept between chunks: fresh memory costs page faults, and is in no cache.
    """
    if _scratch.keys.size < word_count:
        _scratch.keys = np.empty(word_count, np.uint8)
    return _scratch.keys[:word_count]


def scratch_planes(plane_count: int, word_count: int) -> Bytes:
    """Room for planes: uint8[planes, n], else as :func:`scratch_keys`."""
    have_planes, have_bytes = _scratch.planes.shape
    if have_planes < plane_count or have_bytes < word_count:
        _scratch.planes = spaced_planes(max(have_planes, plane_count), max(have_bytes, word_count))
    return _scratch.planes[:plane_count, :word_count]


def spaced_planes(plane_count: int, word_count: int) -> Bytes:
    """New planes: uint8[planes, n], contents undefined."""
    return np.empty((plane_count, word_count + _PLANE_GAP_BYTES), np.uint8)[:, :word_count]


NO_KEYS = np.empty(0, np.uint8)
NO_CURSORS = np.empty(0, np.int64)
