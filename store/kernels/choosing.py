"""What a candidate encoding would cost, from statistics of a sample, and how to code each of its planes.

Order-0 entropy of each byte plane, alone and within groups, is what a prefix code gets close to. A sample knows fewer
symbols than the whole, so its entropy is corrected upwards (Miller and Madow, 1955): without that, ten thousand words
spread over thirty groups look far more compressible than they are.

Plain Python in the part of the language that numba compiles as well, on statistics that are integers: compiled kernels
and their twins are made of these very functions, so that both choose the same.
"""

import math
from typing import Any, Final

from ..limits import MIN_GROUP_BYTES, MIN_GROUPED_GAIN, MIN_MOVED_GAIN, MIN_PLANE_GAIN
from .framing import BLOCK_BYTES
from .prefixes import Integers

Floats = Any
"""Whatever holds floats by number: a list, an array, a pointer."""

WEIGHT_OF_ONE_BIT: Final = 1 << 16

KEPT, CODED, MATCHED, GROUPED = 0, 1, 2, 4
"""What becomes of a plane: it stays as it is, it is compressed by how often each byte occurs or by its repeats; and
whether it is in group order besides."""

MAPPING, BITS, PLANES = 0, 1, 2
"""What lies where in a plan: the mapping of words, the expected bits of the payload, and what becomes of each plane."""

MAX_WIDTH_BYTES: Final = 8
PLAN_INTEGERS: Final = PLANES + 2 * MAX_WIDTH_BYTES
"""A plan, with room for what is weighed against it."""

COST_INTEGERS: Final = 4 * (MAX_WIDTH_BYTES + 1)
"""Statistics of all planes and of the groups: see :func:`store.kernels.estimating.order_costs`."""

_BITS_PER_PARAMETER: Final = 0.5 / math.log(2)
_MIN_CODED_BITS: Final = 1.0
_CODING_LOSS: Final = 1.01
_MATCHING_LOSS: Final = 1.45
_NOISE_BITS: Final = 7.9
"""A byte of at least this entropy is not looked at by group: it is noise there too, and looking takes time."""

_BLOCK_OVERHEAD_BYTES: Final = 19
_TABLE_BYTES_PER_SYMBOL: Final = 0.4
"""What heads of blocks and descriptions of codes take, the latter fitted to real planes."""


def noise_weight(whole_weight: int, sample_count: int) -> int:
    """The most weight that the histogram of a noisy plane has.

    Args:
        whole_weight: weight of the sample were it all one byte.
        sample_count: words of the sample.
    """
    return whole_weight - int(_NOISE_BITS * sample_count * WEIGHT_OF_ONE_BIT)


def entropy(weight: int, free_parameters: int) -> float:
    """Bits of the sample, corrected for what a sample cannot know."""
    return weight / WEIGHT_OF_ONE_BIT + free_parameters * _BITS_PER_PARAMETER


def plan_plane(bits: float, word_count: int, stretch_count: int, distinct: float) -> tuple[int, float]:
    """How to compress a plane of so much entropy; not at all if that does not save ``MIN_PLANE_GAIN``.

    Args:
        bits: entropy of the plane.
        word_count: its length.
        stretch_count: how many parts have a code of their own.
        distinct: how many different bytes one of them has.

    Returns:
        What becomes of it, and the bits it will take.
    """
    raw_bits = 8.0 * word_count
    most_bits = (1 - MIN_PLANE_GAIN) * raw_bits
    if bits >= most_bits:
        return KEPT, raw_bits
    heads_bytes = _BLOCK_OVERHEAD_BYTES * (stretch_count + word_count // BLOCK_BYTES)
    table_bits = 8 * (heads_bytes + stretch_count * _TABLE_BYTES_PER_SYMBOL * distinct)
    by_coding = max(bits * _CODING_LOSS, _MIN_CODED_BITS * word_count) + table_bits
    by_matching = bits * _MATCHING_LOSS + table_bits
    if min(by_coding, by_matching) >= most_bits:
        return KEPT, raw_bits
    if by_matching < by_coding:
        return MATCHED, by_matching
    return CODED, by_coding


def plan_planes(
    costs: Integers,
    width_bytes: int,
    word_count: int,
    sample_count: int,
    whole_weight: int,
    plan: Integers,
    bits: Floats,
) -> float:
    """The cheapest way to code each plane of a mapped chunk.

    Args:
        costs: statistics of the sample.
        width_bytes: how many planes there are.
        word_count: words of the chunk.
        sample_count: words of the sample.
        whole_weight: weight of the sample were it all one byte.
        plan: gets what becomes of each plane.
        bits: float[2 · ``MAX_WIDTH_BYTES``], scratch.

    Returns:
        Bits of all planes together.
    """
    scale = word_count / sample_count
    least = noise_weight(whole_weight, sample_count)
    total = 0.0
    for number in range(width_bytes):
        weight, distinct = costs[4 * number], costs[4 * number + 1]
        plane_bits = entropy(whole_weight - weight, distinct - 1) * scale if weight > least else 8.0 * word_count
        plan[PLANES + number], bits[number] = plan_plane(plane_bits, word_count, 1, distinct)
        total += bits[number]
    return total - saved_by_groups(costs, width_bytes, word_count, scale, total, plan, bits)


def saved_by_groups(
    costs: Integers, width_bytes: int, word_count: int, scale: float, total: float, plan: Integers, bits: Floats
) -> float:
    """Put planes in group order if that is worth it, and say how many bits it saves."""
    group_weight, group_count = costs[4 * width_bytes], costs[4 * width_bytes + 1]
    if group_count < 2:
        return 0.0
    stretch_count = 1 + min(group_count, word_count // MIN_GROUP_BYTES)
    saved = 0.0
    for number in range(width_bytes):
        weight, distinct = costs[4 * number + 2], costs[4 * number + 3]
        moved = MAX_WIDTH_BYTES + number
        plan[PLANES + moved] = KEPT
        if distinct > 0:
            plane_bits = entropy(group_weight - weight, distinct - group_count) * scale
            plan[PLANES + moved], bits[moved] = plan_plane(
                plane_bits, word_count, stretch_count, distinct / group_count
            )
            if bits[number] - bits[moved] < MIN_MOVED_GAIN * total:
                plan[PLANES + moved] = KEPT
            else:
                saved += bits[number] - bits[moved]
    if saved < MIN_GROUPED_GAIN * total:
        return 0.0
    for number in range(width_bytes):
        if plan[PLANES + MAX_WIDTH_BYTES + number] != KEPT:
            plan[PLANES + number] = plan[PLANES + MAX_WIDTH_BYTES + number] | GROUPED
    return saved


def stretch_ends(counts: Integers, ends: Integers) -> int:
    """Where groups end inside a plane, leaving out ends that would make a stretch too small to pay for its code.

    Args:
        counts: int[256], words of each group.
        ends: int[257], gets the ends, ascending; the last is the number of words.

    Returns:
        How many ends there are.
    """
    total = 0
    for key in range(256):
        total += counts[key]
    found, last, end = 0, 0, 0
    for key in range(256):
        end += counts[key]
        if end - last >= MIN_GROUP_BYTES and total - end >= MIN_GROUP_BYTES:
            ends[found] = end
            last = end
            found += 1
    ends[found] = total
    return found + 1
