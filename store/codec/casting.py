"""Elements of one float dtype as those of another, a chunk at a time, and the scale that a narrow one needs.

Spec: docs/format.md §4.2.
"""

from collections.abc import Sequence
from functools import lru_cache
from typing import Final, NamedTuple

import numpy as np

from .. import kernels
from ..format import casts
from ..format.dtypes import dtype
from ..ids import Buffer
from ..kernels.casting import BF16, DOUBLE, E4M3, E5M2, HALF, SINGLE, Numbers
from ..kernels.mapping import Words
from ..limits import MIN_SCALE_EXPONENT

_FORMATS: Final = {
    "float64": DOUBLE,
    "float32": SINGLE,
    "bfloat16": BF16,
    "float16": HALF,
    "float8_e4m3fn": E4M3,
    "float8_e5m2": E5M2,
}
_INFINITIES: Final = {"float64": 0x7FF << 52, "float32": 0xFF << 23, "bfloat16": 0xFF << 7, "float16": 0x1F << 10}
_EXPONENT_STEPS: Final = {"float64": 1 << 52, "float32": 1 << 23, "bfloat16": 1 << 7, "float16": 1 << 10}
"""Word of infinity by dtype, and by how much words of one exponent differ from those of the next."""

_LARGEST: Final = {"float8_e4m3fn": 448.0, "float8_e5m2": 57344.0}
_ONE_ROW: Final = 2**62
"""Columns of a tensor whose elements all have one scale."""

_SHORT_ROW = 16 * 1024
_BLOCK_WORDS = 64 * 1024
"""Rows of up to so many elements are looked at so many elements at a time, which stay in the second-level cache."""

_KEPT = 1024
"""Layers have the same scales."""


class Casting(NamedTuple):
    """A cast of a tensor's elements.

    Attributes:
        source: number of the format they are in.
        target: and of the one they will be in.
        source_bytes: bytes of an element as it is.
        target_bytes: bytes of an element as it will be.
        factors: what each row is multiplied by on the way; empty for nothing.
        columns: elements of a row.
    """

    source: int
    target: int
    source_bytes: int
    target_bytes: int
    factors: Numbers
    columns: int

    def into(self, data: Buffer, first: int, out: memoryview) -> None:
        """Cast elements into memory.

        Args:
            data: elements, little-endian.
            first: which element of the tensor the first of them is.
            out: as many elements, writable; does not overlap ``data``.

        Cost: one pass, without the GIL.
        """
        source = np.frombuffer(data, f"<u{self.source_bytes}")
        target = np.frombuffer(out, f"<u{self.target_bytes}")
        room = target if target.flags.aligned else np.empty_like(target)
        source = source if source.flags.aligned else source.copy()
        kernels.current(source.nbytes).cast(source, self.source, room, self.target, self.factors, self.columns, first)
        if room is not target:
            target[:] = room

    def new(self, data: Buffer, first: int) -> memoryview:
        """Cast elements into new memory."""
        count = memoryview(data).nbytes // self.source_bytes
        out = memoryview(bytearray(count * self.target_bytes))
        self.into(data, first, out)
        return out


def narrowing(dtype_name: str, stored: str, scale: bytes, columns: int) -> Casting:
    """The cast from a tensor's dtype to what it is stored in.

    Args:
        dtype_name: the tensor's.
        stored: a narrower one.
        scale: as in an entry.
        columns: elements of one index along dim 0.
    """
    return _casting(dtype_name, stored, scale, columns, -1)


def widening(dtype_name: str, stored: str, scale: bytes, columns: int) -> Casting:
    """The cast back. Arguments as for :func:`narrowing`."""
    return _casting(stored, dtype_name, scale, columns, 1)


@lru_cache(_KEPT)
def _casting(source: str, target: str, scale: bytes, columns: int, sign: int) -> Casting:
    factors = np.ldexp(1.0, sign * np.array(casts.exponents_of(scale), np.int32))
    known = _FORMATS[source], _FORMATS[target], dtype(source).item_bytes, dtype(target).item_bytes
    return Casting(*known, factors, columns if casts.is_by_row(scale) else _ONE_ROW)


def scale_for(data: memoryview, dtype_name: str, stored: str, columns: int | None) -> bytes | None:
    """The scale with which a tensor's largest number is just within reach of a float of one byte.

    Args:
        data: the tensor's elements; NaNs count for nothing.
        dtype_name: its dtype.
        stored: the dtype to store it in.
        columns: elements of a row, for a scale for each row; ``None`` for one for all.

    Returns:
        As in an entry. ``None`` if the tensor has no elements, or cannot be cast, see :func:`scale_of`.

    Cost: one pass, without the GIL.
    """
    most = largest_of(data, dtype_name, columns)
    return scale_of(most, dtype_name, stored) if most else None


def largest_of(data: memoryview, dtype_name: str, columns: int | None) -> list[int]:
    """The largest magnitude of some elements, or of each row, as a word: as numbers, words are in the same order.

    Arguments and cost as for :func:`scale_for`; nothing of no elements.
    """
    words: Words = np.frombuffer(data, f"<u{dtype(dtype_name).item_bytes}")
    words = words if words.flags.aligned else words.copy()
    return _largest_of_rows(words, columns or max(1, words.size), _INFINITIES[dtype_name])


def scale_of(most: Sequence[int], dtype_name: str, stored: str) -> bytes | None:
    """The scale for such largest magnitudes.

    Returns:
        As in an entry. ``None`` if they cannot be cast: an infinity has no counterpart in e4m3, and the largest numbers
        of a dtype could be rounded up to one that it does not have.
    """
    if max(most) >= _INFINITIES[dtype_name] - _EXPONENT_STEPS[dtype_name]:
        return None
    return casts.packed(_exponents(most, dtype_name, stored))


def _largest_of_rows(words: Words, columns: int, infinity: int) -> list[int]:
    """The word of the largest magnitude of each row. A call for each of many short ones would take longer than they."""
    if columns > _SHORT_ROW:
        kernel = kernels.current(words.nbytes)
        return [kernel.largest(words[start : start + columns], infinity) for start in range(0, words.size, columns)]
    mask, step = words.dtype.type(2 ** (8 * words.itemsize - 1) - 1), _BLOCK_WORDS // columns * columns
    most: list[int] = []
    for start in range(0, words.size, step):
        magnitudes = (words[start : start + step] & mask).reshape(-1, columns)
        magnitudes[magnitudes > infinity] = 0
        most += magnitudes.max(axis=1).tolist()
    return most


def _exponents(most: Sequence[int], dtype_name: str, stored: str) -> list[int]:
    """For each number, given as its word, the least power of two that brings it to the largest one or below."""
    words, values = np.array(most, f"<u{dtype(dtype_name).item_bytes}"), np.empty(len(most))
    kernels.current(0).cast(words, _FORMATS[dtype_name], values.view(np.uint64), DOUBLE, np.empty(0), 1, 0)
    mantissas, exponents = np.frexp(values / _LARGEST[stored])
    exponents -= mantissas == 0.5  # a power of two is reached, not exceeded
    return [
        max(exponent, MIN_SCALE_EXPONENT) if value else 0
        for exponent, value in zip(exponents.tolist(), most, strict=True)
    ]
