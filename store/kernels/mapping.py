"""Words and what becomes of them before they are cut into planes, in NumPy.

Spec: docs/format.md §5.1.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

COPY: Final = 0
ROTATE: Final = 1
XOR: Final = 2
DIFF: Final = 3
ORDERED_DIFF: Final = 4
"""Mappings of a word (and the base's word): the same numbers in every twin."""


def apply(words: Words, base: Words, mapping: int) -> Words:
    """The mapping alone. Always a new array."""
    if mapping == COPY:
        return words.copy()
    one, top = _one_and_top(words)
    mapped: Words
    if mapping == ROTATE:
        mapped = (words << one) | (words >> top)
    elif mapping == XOR:
        mapped = words ^ base
    else:
        ordered = mapping == ORDERED_DIFF
        difference = (_float_order(words) - _float_order(base)) if ordered else words - base
        mapped = (difference << one) ^ _filled(difference >> top)
    return mapped


def revert(mapped: Words, base: Words, mapping: int) -> Words:
    """Inverse of :func:`apply` in the first argument."""
    if mapping == COPY:
        return mapped
    one, top = _one_and_top(mapped)
    words: Words
    if mapping == ROTATE:
        words = (mapped >> one) | (mapped << top)
    elif mapping == XOR:
        words = mapped ^ base
    else:
        difference = (mapped >> one) ^ _filled(mapped & one)
        ordered = mapping == ORDERED_DIFF
        words = _float_pattern(_float_order(base) + difference) if ordered else base + difference
    return words


def _one_and_top(words: Words) -> tuple[Any, Any]:
    """1 and the number of the top bit, in the words' own type: any other would widen the result."""
    return words.dtype.type(1), words.dtype.type(8 * words.itemsize - 1)


def _filled(bits: Words) -> Words:
    """All ones where the bit is 1, else 0."""
    return np.asarray(np.zeros_like(bits) - bits)


def _float_order(words: Words) -> Words:
    """Integers in the order of the floats: negatives are complemented, the rest get the top bit."""
    one, top = _one_and_top(words)
    return np.asarray(words ^ (_filled(words >> top) | (one << top)))


def _float_pattern(ordered: Words) -> Words:
    """Inverse of :func:`_float_order`."""
    one, top = _one_and_top(ordered)
    return np.asarray(ordered ^ (_filled((ordered >> top) ^ one) | (one << top)))
