"""Call every kernel with every kind of argument the codec will ever give it.

A compiled kernel is compiled for the types of its arguments: what is not called here would be compiled in the middle
of somebody's training.
"""

from typing import TYPE_CHECKING

import numpy as np

from .reference import COPY, DIFF, KEYS, ORDERED_DIFF, ROTATE, XOR, Words

if TYPE_CHECKING:
    from . import Kernels

_WORD_COUNT = 2600
"""More than two blocks of the compiled kernels, the last one short."""

_COLUMNS = 48


def exercise(kernels: "Kernels") -> bytes:
    """Run every kernel on a fixed input; the result is the same for all twins."""
    return b"".join(_exercise_width(kernels, width_bytes) for width_bytes in (1, 2, 4, 8))


def _exercise_width(kernels: "Kernels", width_bytes: int) -> bytes:
    words, base = _words(width_bytes, 1), _words(width_bytes, 2)
    results: list[Words] = []
    keys, counts = np.empty(_WORD_COUNT, np.uint8), np.empty(KEYS, np.int64)
    row_sums, column_sums = np.empty(-(-_WORD_COUNT // _COLUMNS), np.int64), np.empty(_COLUMNS, np.int64)
    kernels.exponent_sums(words, 0, 255, _COLUMNS, row_sums, column_sums)
    codes = (np.arange(len(row_sums) + _COLUMNS) % 251).astype(np.uint8)
    codes.flags.writeable = False
    kernels.context_keys(codes, _COLUMNS, keys, counts)
    results += [row_sums, column_sums, keys.copy(), counts.copy()]
    kernels.exponent_keys(base, 1, 15, keys, counts)
    results += [keys, counts]
    for mapping in (COPY, ROTATE, XOR, DIFF, ORDERED_DIFF):
        for grouped_planes in (0, 1 << (width_bytes - 1)):
            starts = np.cumsum(counts) - counts
            planes = tuple(np.empty((width_bytes, _WORD_COUNT), np.uint8))
            varying = kernels.split(words, base, mapping, keys, starts.copy(), grouped_planes, planes)
            back = np.empty(_WORD_COUNT, words.dtype)
            frozen = tuple(_frozen(plane) for plane in planes)
            kernels.join(frozen, base, mapping, keys, starts, grouped_planes, back)
            results += [*planes, back, np.array([varying], np.uint64)]
    weights, cells = np.arange(_WORD_COUNT + 1) ** 2, np.zeros(KEYS * 256, np.int32)
    for mapping in (COPY, ROTATE, XOR, DIFF, ORDERED_DIFF):
        statistics = np.empty((width_bytes + 1, 4), np.int64)
        kernels.order_costs(words.copy(), base.copy(), mapping, keys, 0, weights, cells, statistics)
        results.append(statistics)
    return b"".join(result.tobytes() for result in results)


def _words(width_bytes: int, seed: int) -> Words:
    mixed = np.arange(1, _WORD_COUNT + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15 * seed % 2**64)
    return _frozen((mixed >> np.uint64(64 - 8 * width_bytes)).astype(f"<u{width_bytes}"))


def _frozen(array: Words) -> Words:
    view = array.view()
    view.flags.writeable = False
    return view
