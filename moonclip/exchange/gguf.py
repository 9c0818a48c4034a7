"""GGUF files: where their tensors lie, so that the file can be cut there. What is in them is not looked at.

Spec: https://github.com/ggml-org/ggml/blob/master/docs/gguf.md
"""

import struct
from collections.abc import Iterable
from itertools import pairwise
from typing import Any, Final

from store.disk.files import ReadHandle
from store.limits import KIB, MAX_CHUNK_BYTES, MIB

_MAGIC: Final = b"GGUF"
_VERSIONS: Final = (2, 3)
_MAX_HEADER_BYTES: Final = 256 * MIB
"""Vocabularies lie in it: those of today take a few megabytes."""

_READ_BYTES: Final = 1 * MIB
_LEAST_BYTES: Final = 64 * KIB
"""Smaller tensors share a chunk with what follows."""

_ALIGNMENT_KEY: Final = b"general.alignment"
_DEFAULT_ALIGNMENT: Final = 32
_MAX_DIMS: Final = 8

_SCALARS: Final = {0: "B", 1: "b", 2: "H", 3: "h", 4: "I", 5: "i", 6: "f", 7: "B", 10: "Q", 11: "q", 12: "d"}
"""Types of values, as ``struct`` calls them."""

_STRING: Final = 8
_ARRAY: Final = 9


def cuts(handle: ReadHandle, size_bytes: int) -> tuple[int, ...] | None:
    """Lengths of the chunks of a file that is cut where its tensors begin, and at 4 MiB at most.

    Args:
        handle: reads it.
        size_bytes: its length when it was listed, which all chunks have together: it may be growing.

    Returns:
        ``None`` if it is no such file, or one of a kind that is not known here.

    Raises:
        OSError: it cannot be read.
    """
    header = _Header(handle)
    try:
        starts = _tensor_starts(header)
    except _UnknownError:
        return None
    return cut_at([start for start in starts if start < size_bytes], size_bytes)


def cut_at(starts: Iterable[int], size_bytes: int) -> tuple[int, ...]:
    """Lengths of chunks that begin at some bytes of a file, or a few behind them. Pure."""
    bounds = [0]
    for start in sorted(set(starts)):
        if start - bounds[-1] >= _LEAST_BYTES:
            bounds.append(start)
    found: list[int] = []
    for start, stop in pairwise([*bounds, size_bytes]):
        found += [MAX_CHUNK_BYTES] * ((stop - start) // MAX_CHUNK_BYTES)
        if rest := (stop - start) % MAX_CHUNK_BYTES:
            found.append(rest)
    return tuple(found)


class _UnknownError(Exception):
    """The header says something that is not understood here."""


class _Header:
    """The beginning of a file, read as far as it is asked for."""

    def __init__(self, handle: ReadHandle) -> None:
        self._handle = handle
        self._data = bytearray()
        self.at = 0

    def take(self, size_bytes: int) -> bytes:
        """The next bytes."""
        end = self.at + size_bytes
        while end > len(self._data):
            if end > _MAX_HEADER_BYTES or not (block := self._handle.pread(len(self._data), _READ_BYTES)):
                raise _UnknownError
            self._data += block
        found = bytes(self._data[self.at : end])
        self.at = end
        return found

    def number(self, form: str) -> Any:
        """The next number."""
        return struct.unpack(f"<{form}", self.take(struct.calcsize(form)))[0]

    def text(self) -> bytes:
        """The next string."""
        return self.take(self.number("Q"))


def _tensor_starts(header: _Header) -> list[int]:
    if header.take(len(_MAGIC)) != _MAGIC or header.number("I") not in _VERSIONS:
        raise _UnknownError
    tensor_count, value_count = header.number("Q"), header.number("Q")
    alignment: Any = _DEFAULT_ALIGNMENT
    for _ in range(value_count):
        key, kind = header.text(), header.number("I")
        value = _value(header, kind)
        if key == _ALIGNMENT_KEY:
            alignment = value
    offsets = [_tensor_offset(header) for _ in range(tensor_count)]
    if type(alignment) is not int or alignment <= 0:
        raise _UnknownError
    start = -(-header.at // alignment) * alignment
    return [start + offset for offset in offsets]


def _tensor_offset(header: _Header) -> int:
    header.text()
    dim_count = header.number("I")
    if dim_count > _MAX_DIMS:
        raise _UnknownError
    header.take(dim_count * struct.calcsize("Q") + struct.calcsize("I"))
    offset: int = header.number("Q")
    return offset


def _value(header: _Header, kind: int) -> Any:
    """The next value, of which only numbers are of interest."""
    if kind in _SCALARS:
        return header.number(_SCALARS[kind])
    if kind == _STRING:
        return header.text()
    if kind != _ARRAY:
        raise _UnknownError
    of, count = header.number("I"), header.number("Q")
    if of in _SCALARS:
        return header.take(count * struct.calcsize(_SCALARS[of]))
    if of != _STRING:  # arrays in arrays, which nothing writes
        raise _UnknownError
    for _ in range(count):
        header.text()
    return None
