"""Call every kernel with every kind of argument the codec will ever give it, so that twins can be compared."""

from typing import TYPE_CHECKING

import numpy as np

from .framing import frame_room
from .interface import WIDTHS
from .reference import COPY, DIFF, KEYS, ORDERED_DIFF, ROTATE, STREAM_LINE_BYTES, XOR, Runs, Words

if TYPE_CHECKING:
    from . import Kernels

_WORD_COUNT = 2600
"""More than two blocks of the compiled kernels, the last one short."""

_COLUMNS = 48
_RUNS = Runs(stride=131, run_words=31, run_count=19)


def exercise(kernels: "Kernels") -> bytes:
    """Run every kernel on a fixed input; the result is the same for all twins."""
    widths = b"".join(_exercise_width(kernels, width_bytes) for width_bytes in WIDTHS)
    return widths + _exercise_compress(kernels) + _exercise_stream(kernels)


def _exercise_width(kernels: "Kernels", width_bytes: int) -> bytes:
    words, base = _words(width_bytes, 1), _words(width_bytes, 2)
    results: list[Words] = []
    keys, counts = np.empty(_WORD_COUNT, np.uint8), np.empty(KEYS, np.int64)
    codes = (np.arange(-(-_WORD_COUNT // _COLUMNS) + _COLUMNS) % 251).astype(np.uint8)
    kernels.context_keys(codes, _COLUMNS, keys, counts)
    results += [keys.copy(), counts.copy()]
    kernels.exponent_keys(base, 1, 15, keys, counts)
    results += [keys, counts]
    for mapping in (COPY, ROTATE, XOR, DIFF, ORDERED_DIFF):
        for grouped_planes in (0, 1 << (width_bytes - 1)):
            starts = np.cumsum(counts) - counts
            planes = tuple(np.empty((width_bytes, _WORD_COUNT), np.uint8))
            varying = kernels.split(words, base, mapping, keys, starts.copy(), grouped_planes, planes)
            back = np.empty(_WORD_COUNT, words.dtype)
            kernels.join(planes, base, mapping, keys, starts, grouped_planes, back)
            results += [*planes, back, np.array([varying], np.uint64)]
    for mapping in (COPY, ROTATE, XOR, DIFF, ORDERED_DIFF):
        for mask in (0, 15):
            costs = kernels.order_costs(words, base, _RUNS, mapping, (1, mask), 0)
            results.append(np.array(costs))
    return b"".join(result.tobytes() for result in results)


def _exercise_compress(kernels: "Kernels") -> bytes:
    """Skewed bytes, bytes in steps, one byte, noise, and ends in between."""
    noise = _words(1, 3)
    plane = np.concatenate((noise & (noise >> 1) & (noise >> 2), noise >> 5, np.full(999, 7, np.uint8), noise))
    ends = np.array([_WORD_COUNT, _WORD_COUNT + 70, 2 * _WORD_COUNT, 2 * _WORD_COUNT + 999, plane.size])
    out = np.empty(frame_room(plane.size), np.uint8)
    return out[: kernels.compress(plane, ends, out)].tobytes()


def _exercise_stream(kernels: "Kernels") -> bytes:
    """From an address that is a multiple of nothing, to one that is of a line; no byte more."""
    source = _words(1, 4)
    target = np.zeros(source.size + STREAM_LINE_BYTES, np.uint8)
    head = -target.ctypes.data % STREAM_LINE_BYTES
    kernels.stream(target.ctypes.data + head, source.ctypes.data + 1, source.size // 128 * STREAM_LINE_BYTES)
    return target[head : head + source.size].tobytes()


def _words(width_bytes: int, seed: int) -> Words:
    mixed = np.arange(1, _WORD_COUNT + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15 * seed % 2**64)
    return (mixed >> np.uint64(64 - 8 * width_bytes)).astype(f"<u{width_bytes}")
