"""What a candidate encoding would cost, from a sample of strided blocks.

Order-0 entropy of each byte plane, alone and within groups, is what zstd's Huffman stage gets close to. A sample
knows fewer symbols than the whole, so its entropy is corrected upwards (Miller and Madow, 1955): without that, ten
thousand words spread over thirty groups look far more compressible than they are.

Statistics come from a kernel as integers; everything from there is computed here, once, so that compiled and NumPy
kernels lead to the same choice.
"""

import math
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import numpy as np

from .. import kernels
from ..kernels.reference import KEYS, Bytes, Counts, Words
from ..limits import KIB, MIN_GROUP_BYTES, MIN_GROUPED_GAIN, MIN_MOVED_GAIN, MIN_PLANE_GAIN, SAMPLE_WORDS
from . import Transform
from .context import Context

_RUN_WORDS: Final = 32
"""A run of neighbours: half a cache line for each byte of a word, so that sampling reads little more than it uses."""

_RUN_COUNT: Final = SAMPLE_WORDS // _RUN_WORDS

ZSTD_BLOCK_BYTES: Final = 128 * KIB
"""zstd makes a code table for each block of this size."""

_FIXED_POINT: Final = 2.0**16
_BITS_PER_PARAMETER: Final = 0.5 / math.log(2)
_MIN_HUFFMAN_BITS: Final = 1.0
_HUFFMAN_LOSS: Final = 1.01
_MATCHING_LOSS: Final = 1.2
_NOISE_BITS: Final = 7.9
"""A byte of at least this entropy is not looked at by group: it is noise there too, and looking takes time."""

_BLOCK_OVERHEAD_BYTES: Final = 14
_TABLE_BYTES_PER_SYMBOL: Final = 0.4
"""What zstd really needs, fitted to real planes."""


class PlanePlan(NamedTuple):
    """How one plane is to be coded. A tuple, because every candidate makes one for each plane.

    Attributes:
        compressed: with zstd; else raw.
        blocks: the groups' ends are to end zstd blocks.
        grouped: in group order.
        bits: expected bits of the whole plane.
    """

    compressed: bool
    blocks: bool
    grouped: bool
    bits: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to encode a chunk.

    Attributes:
        transform: what becomes of words.
        context: rows and columns that make the groups, if the base does not.
        planes: least significant first.
        bits: expected bits of the payload.
    """

    transform: Transform
    context: Context | None
    planes: Sequence[PlanePlan]
    bits: float

    @property
    def grouped_planes(self) -> int:
        """Bit p set: plane p is grouped."""
        return sum(1 << number for number, plane in enumerate(self.planes) if plane.grouped)


class Sampling:
    """Which words of a chunk are looked at: strided runs of neighbours, everything if there is little."""

    def __init__(self, word_count: int) -> None:
        self._stride = self._run_count = 0
        if word_count > SAMPLE_WORDS:
            # Odd, so that runs begin in ever other columns of a matrix.
            self._stride = max(word_count // _RUN_COUNT - 1, _RUN_WORDS) | 1
            self._run_count = min(_RUN_COUNT, word_count // self._stride)

    def pick(self, words: Words) -> Words:
        """A copy of the sample, of words or of what belongs to them."""
        if not self._run_count:
            return words.copy()
        runs = words[: self._run_count * self._stride].reshape(self._run_count, self._stride)
        return runs[:, :_RUN_WORDS].reshape(-1)


def measure(words: Words, base: Words, mapping: int, keys: Bytes, word_count: int) -> list[PlanePlan]:
    """The cheapest way to code each plane of a mapped chunk.

    Args:
        words: the sample.
        base: words of the base at the same places (any array of that length if ``mapping`` needs none).
        mapping: see ``store.kernels.reference``.
        keys: their group keys, or none.
        word_count: words of the whole chunk.
    """
    sample_count = len(words)
    whole_weight = _WEIGHTS.item(sample_count)
    min_weight = whole_weight - int(_NOISE_BITS * sample_count * _FIXED_POINT)
    statistics = np.empty((words.itemsize + 1, 4), np.int64)
    kernels.current(0).order_costs(words, base, mapping, keys, min_weight, _WEIGHTS, _cells.cells, statistics)
    *rows, (group_weight, group_count, _, _) = statistics.tolist()
    scale = word_count / sample_count
    block_count = 1 + word_count // ZSTD_BLOCK_BYTES
    plans = []
    for weight, distinct, _, _ in rows:
        bits = _entropy(whole_weight - weight, distinct - 1) * scale
        plans.append(_compressed(bits, word_count, block_count, distinct, grouped=False))
    if group_count < 2:
        return plans
    block_count += min(group_count, word_count // MIN_GROUP_BYTES)
    total_bits = sum(plan.bits for plan in plans)
    moved: dict[int, PlanePlan] = {}
    for number, (_, _, weight, distinct) in enumerate(rows):
        if distinct:
            bits = _entropy(group_weight - weight, distinct - group_count) * scale
            grouped = _compressed(bits, word_count, block_count, distinct / group_count, grouped=True)
            if plans[number].bits - grouped.bits >= MIN_MOVED_GAIN * total_bits:
                moved[number] = grouped
    saved_bits = sum(plans[number].bits - plan.bits for number, plan in moved.items())
    if saved_bits < MIN_GROUPED_GAIN * total_bits:
        return plans
    return [moved.get(number, plan) for number, plan in enumerate(plans)]


def _entropy(weight: int, free_parameters: int) -> float:
    """Bits of the sample, corrected for what a sample cannot know."""
    return weight / _FIXED_POINT + free_parameters * _BITS_PER_PARAMETER


def _compressed(bits: float, word_count: int, block_count: int, distinct: float, *, grouped: bool) -> PlanePlan:
    """How to compress a plane of so much entropy; raw if that does not save ``MIN_PLANE_GAIN``."""
    raw_bits = 8.0 * word_count
    table_bits = 8 * block_count * (_BLOCK_OVERHEAD_BYTES + _TABLE_BYTES_PER_SYMBOL * distinct)
    by_entropy = max(bits * _HUFFMAN_LOSS, _MIN_HUFFMAN_BITS * word_count) + table_bits
    by_matching = bits * _MATCHING_LOSS + table_bits
    best = min(by_entropy, by_matching)
    if best >= (1 - MIN_PLANE_GAIN) * raw_bits:
        return PlanePlan(False, False, False, raw_bits)
    # Where repeats are what is saved, blocks of their own only cost their headers.
    return PlanePlan(True, grouped and by_entropy <= by_matching, grouped, best)


class _Cells(threading.local):
    """Histogram cells of one thread: all zero between calls."""

    def __init__(self) -> None:
        self.cells = np.zeros(KEYS * 256, np.int32)


_cells = _Cells()


def _weights() -> Counts:
    counts = np.arange(1, SAMPLE_WORDS + 1)
    return np.concatenate(([0], np.rint(counts * np.log2(counts) * _FIXED_POINT))).astype(np.int64)


_WEIGHTS: Final = _weights()
