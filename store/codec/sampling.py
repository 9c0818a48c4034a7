"""What a candidate encoding would cost, from a sample of strided blocks.

Order-0 entropy of each byte plane, alone and within groups, is what zstd's Huffman stage gets close to. A sample
knows fewer symbols than the whole, so its entropy is corrected upwards (Miller and Madow, 1955): without that, ten
thousand words spread over thirty groups look far more compressible than they are.

Statistics come from a kernel as integers; everything from there is computed here, once, so that compiled and NumPy
kernels lead to the same choice.
"""

import math
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

from .. import kernels
from ..kernels.framing import BLOCK_BYTES
from ..kernels.reference import WEIGHT_OF_ONE_BIT, WEIGHTS, Runs, Words
from ..limits import MIN_GROUP_BYTES, MIN_GROUPED_GAIN, MIN_MOVED_GAIN, MIN_PLANE_GAIN, SAMPLE_WORDS
from . import Transform

_RUN_WORDS: Final = 32
"""A run of neighbours: half a cache line for each byte of a word, so that sampling reads little more than it uses."""

_RUN_COUNT: Final = SAMPLE_WORDS // _RUN_WORDS

NO_KEY_FIELD: Final = (0, 0)

_BITS_PER_PARAMETER: Final = 0.5 / math.log(2)
_MIN_HUFFMAN_BITS: Final = 1.0
_HUFFMAN_LOSS: Final = 1.01
_MATCHING_LOSS: Final = 1.2
_NOISE_BITS: Final = 7.9
"""A byte of at least this entropy is not looked at by group: it is noise there too, and looking takes time."""

_BLOCK_OVERHEAD_BYTES: Final = 19
_TABLE_BYTES_PER_SYMBOL: Final = 0.4
"""What heads of blocks and descriptions of codes take, the latter fitted to real planes."""


class PlanePlan(NamedTuple):
    """How one plane is to be coded. A tuple, because every candidate makes one for each plane.

    Attributes:
        compressed: with zstd; else raw.
        matched: by its repeats; else by how often each byte occurs.
        grouped: in group order.
        bits: expected bits of the whole plane.
    """

    compressed: bool
    matched: bool
    grouped: bool
    bits: float


@dataclass(frozen=True, slots=True)
class Candidate:
    """One way to encode a chunk.

    Attributes:
        transform: what becomes of words.
        planes: least significant first.
        bits: expected bits of the payload.
    """

    transform: Transform
    planes: Sequence[PlanePlan]
    bits: float

    @property
    def grouped_planes(self) -> int:
        """Bit p set: plane p is grouped."""
        return sum(1 << number for number, plane in enumerate(self.planes) if plane.grouped)


def measure(words: Words, base: Words, mapping: int, key_field: tuple[int, int]) -> list[PlanePlan]:
    """The cheapest way to code each plane of a mapped chunk.

    Args:
        words: the chunk.
        base: its base (any array of that length if ``mapping`` needs none).
        mapping: see ``store.kernels.reference``.
        key_field: where the group keys are in the base's words; ``NO_KEY_FIELD`` if groups are out of the question.
    """
    word_count, runs = len(words), _runs(len(words))
    sample_count = runs.run_words * runs.run_count
    whole_weight = WEIGHTS.item(sample_count)
    min_weight = whole_weight - int(_NOISE_BITS * sample_count * WEIGHT_OF_ONE_BIT)
    costs = kernels.current(0).order_costs(words, base, runs, mapping, key_field, min_weight)
    *rows, (group_weight, group_count, _, _) = costs
    scale = word_count / sample_count
    plans = []
    for weight, distinct, _, _ in rows:
        bits = _entropy(whole_weight - weight, distinct - 1) * scale if weight > min_weight else 8.0 * word_count
        plans.append(_compressed(bits, word_count, 1, distinct, grouped=False))
    if group_count < 2:
        return plans
    stretch_count = 1 + min(group_count, word_count // MIN_GROUP_BYTES)
    total_bits = sum(plan.bits for plan in plans)
    moved: dict[int, PlanePlan] = {}
    for number, (_, _, weight, distinct) in enumerate(rows):
        if distinct:
            bits = _entropy(group_weight - weight, distinct - group_count) * scale
            grouped = _compressed(bits, word_count, stretch_count, distinct / group_count, grouped=True)
            if plans[number].bits - grouped.bits >= MIN_MOVED_GAIN * total_bits:
                moved[number] = grouped
    saved_bits = sum(plans[number].bits - plan.bits for number, plan in moved.items())
    if saved_bits < MIN_GROUPED_GAIN * total_bits:
        return plans
    return [moved.get(number, plan) for number, plan in enumerate(plans)]


def _runs(word_count: int) -> Runs:
    """Which words of a chunk are looked at: runs of neighbours, everything if there is little."""
    if word_count <= SAMPLE_WORDS:
        return Runs(word_count, word_count, 1)
    # Odd, so that runs begin in ever other columns of a matrix.
    stride = max(word_count // _RUN_COUNT - 1, _RUN_WORDS) | 1
    return Runs(stride, _RUN_WORDS, min(_RUN_COUNT, word_count // stride))


def _entropy(weight: int, free_parameters: int) -> float:
    """Bits of the sample, corrected for what a sample cannot know."""
    return weight / WEIGHT_OF_ONE_BIT + free_parameters * _BITS_PER_PARAMETER


def _compressed(bits: float, word_count: int, stretch_count: int, distinct: float, *, grouped: bool) -> PlanePlan:
    """How to compress a plane of so much entropy; raw if that does not save ``MIN_PLANE_GAIN``."""
    raw_bits = 8.0 * word_count
    if bits >= (1 - MIN_PLANE_GAIN) * raw_bits:
        return PlanePlan(False, False, False, raw_bits)
    heads_bytes = _BLOCK_OVERHEAD_BYTES * (stretch_count + word_count // BLOCK_BYTES)
    table_bits = 8 * (heads_bytes + stretch_count * _TABLE_BYTES_PER_SYMBOL * distinct)
    by_entropy = max(bits * _HUFFMAN_LOSS, _MIN_HUFFMAN_BITS * word_count) + table_bits
    by_matching = bits * _MATCHING_LOSS + table_bits
    best = min(by_entropy, by_matching)
    if best >= (1 - MIN_PLANE_GAIN) * raw_bits:
        return PlanePlan(False, False, False, raw_bits)
    return PlanePlan(True, by_matching < by_entropy, grouped, best)
