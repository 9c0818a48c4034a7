"""The twin of the kernel that chooses an encoding by what a sample says.

Spec: docs/format.md §5: what a writer chooses is its own affair.
"""

import math
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..limits import DELTA_KEEP_RATIO, SAMPLE_WORDS
from .choosing import BITS, MAPPING, MAX_WIDTH_BYTES, PLAN_INTEGERS, WEIGHT_OF_ONE_BIT, noise_weight, plan_planes
from .mapping import Counts, Words, apply

NO_MAPPING: Final = -1

_KEYS: Final = 256


class Runs(NamedTuple):
    """Words of a sample: stretches of neighbours, equally far apart. The first begins at the first word.

    Attributes:
        stride: words from one run's beginning to the next's.
        run_words: words of a run.
        run_count: how many there are.
    """

    stride: int
    run_words: int
    run_count: int


class Candidates(NamedTuple):
    """What to choose from.

    Attributes:
        plain: mapping of the words alone; ``NO_MAPPING`` for none.
        deltas: two mappings of words and their base; ``NO_MAPPING`` for none.
        first_bit: lowest bit of the base's exponent, by which deltas may be grouped.
        mask: which bits from there count, at most 255; 0 if there are to be no groups.
    """

    plain: int
    deltas: tuple[int, int]
    first_bit: int
    mask: int


def _weights() -> Counts:
    counts = np.arange(1, SAMPLE_WORDS + 1)
    return np.concatenate(([0], np.rint(counts * np.log2(counts) * WEIGHT_OF_ONE_BIT))).astype(np.int64)


WEIGHTS: Final = _weights()
"""``c·log2(c)`` for each count ``c`` of a sample, in fixed point: integers, so that every twin agrees."""


def choose(words: Words, base: Words, word_count: int, runs: Runs, candidates: Candidates, plan: Counts) -> None:
    """Plan how to encode a chunk: the smallest of its candidates, going by a sample.

    A delta is taken only if it is smaller by ``DELTA_KEEP_RATIO``.

    Args:
        words: words of a chunk.
        base: words of its base, in the same places; any if there are no deltas.
        word_count: of the whole chunk.
        runs: which words are looked at, ``SAMPLE_WORDS`` at most.
        candidates: what to choose from.
        plan: int64[``PLAN_INTEGERS``]; as :mod:`store.kernels.choosing` says, else undefined.

    Cost: 8 µs a candidate (compiled); reads little more than the sample; no allocation, releases the GIL.
    """
    chosen: list[int] = []
    least = most = math.inf
    if candidates.plain != NO_MAPPING:
        least, chosen = _planned(words, base, word_count, runs, candidates.plain, (0, 0))
        most = DELTA_KEEP_RATIO * least
    for mapping in candidates.deltas:
        if mapping != NO_MAPPING:
            key_field = (candidates.first_bit, candidates.mask)
            bits, rival = _planned(words, base, word_count, runs, mapping, key_field)
            if bits <= most:
                least = most = bits
                chosen = rival
    plan[:] = chosen
    plan[BITS] = int(least)


def _planned(
    words: Words, base: Words, word_count: int, runs: Runs, mapping: int, key_field: tuple[int, int]
) -> tuple[float, list[int]]:
    plan, bits = [0] * PLAN_INTEGERS, [0.0] * (2 * MAX_WIDTH_BYTES)
    plan[MAPPING] = mapping
    sample_count = runs.run_words * runs.run_count
    whole_weight = WEIGHTS.item(sample_count)
    costs = order_costs(words, base, runs, mapping, key_field, noise_weight(whole_weight, sample_count))
    total = plan_planes(costs, words.itemsize, word_count, sample_count, whole_weight, plan, bits)
    return total, plan


def order_costs(
    words: Words, base: Words, runs: Runs, mapping: int, key_field: tuple[int, int], min_weight: int
) -> list[int]:
    """Statistics of a sample, from which the entropy of each byte plane follows, alone and given the key.

    Args:
        words: words[n].
        base: words[n]; ignored by ``COPY`` and ``ROTATE`` unless there are keys.
        runs: which words are looked at, ``SAMPLE_WORDS`` at most.
        mapping: ``COPY`` … ``ORDERED_DIFF``.
        key_field: lowest bit and mask of the base's exponent; mask 0 for no keys.
        min_weight: planes of no more weight than this are taken for noise, whatever the key.

    Returns:
        Four numbers a plane: the sum of ``WEIGHTS`` over its histogram, its distinct bytes, and both over its
        histogram by key (0 if that was not looked at). Then the sum of ``WEIGHTS`` over the histogram of the keys,
        how many keys there are, 0 and 0.
    """
    sample, old = _picked(words, runs), _picked(base, runs)
    mapped = apply(sample, old, mapping)
    first_bit, mask = (words.dtype.type(number) for number in key_field)
    keys = ((old >> first_bit) & mask).astype(np.int64) if mask else None
    costs: list[int] = []
    for plane in range(words.itemsize):
        symbols = mapped.view(np.uint8).reshape(len(mapped), mapped.itemsize)[:, plane].astype(np.int64)
        alone, by_key = _weigh(symbols), [0, 0]
        if keys is not None and alone[0] > min_weight:
            by_key = _weigh(keys * _KEYS + symbols)
        costs += alone + by_key
    return [*costs, *(_weigh(keys) if keys is not None else [0, 0]), 0, 0]


def _picked(words: Words, runs: Runs) -> Words:
    starts = runs.stride * np.arange(runs.run_count)
    return np.asarray(words[(starts[:, None] + np.arange(runs.run_words)).reshape(-1)])


def _weigh(symbols: npt.NDArray[Any]) -> list[int]:
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return [int(WEIGHTS[counts].sum()), len(counts)]
