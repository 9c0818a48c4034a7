"""The kernels that see a whole chunk, as numba compiles them: made of the parts that the other sources hold.

Rules and reasons are those of :mod:`store.kernels.source_words`.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return"

import numpy as np

from ..limits import DELTA_KEEP_RATIO
from . import choosing, payloads
from .choosing import BITS, CODED, GROUPED, KEPT, MAPPING, MATCHED, PLAN_INTEGERS, PLANES
from .estimating import NO_MAPPING
from .payloads import CODED_BODY, CONSTANT_BODY, ENTRY_BYTES, IS_GROUPED, RAW_BODY
from .pointers import Pointer, behind, copy, counts_in, inner, make_known, numbers_in, put_number, width_of
from .reference import KEYS
from .scratch import ASIDE, COSTS, COUNTS, CURSORS, ENDS, PLANE_BITS, RIVAL, WHOLE
from .source_frames import compress
from .source_groups import begin_halves
from .source_words import order_costs, split

make_known(choosing.noise_weight, choosing.entropy, choosing.plan_plane, choosing.saved_by_groups)
_noise_weight = inner(choosing.noise_weight)
_plan_planes = inner(choosing.plan_planes)
_stretch_ends = inner(choosing.stretch_ends)
_entry_of = inner(payloads.entry_of)


def choose(
    words: Pointer,
    base: Pointer,
    word_count: int,
    stride: int,
    run_words: int,
    run_count: int,
    plain: int,
    delta: int,
    other_delta: int,
    first_bit: int,
    mask: int,
    weights: Pointer,
    plan: Pointer,
    scratch: Pointer,
) -> None:
    """Twin: :func:`store.kernels.estimating.choose`."""
    sample = (stride, run_words, run_count)
    least, most, rival = np.inf, np.inf, counts_in(scratch, RIVAL)
    for number in range(3):  # one call in a loop: three would be compiled three times
        mapping = plain if number == 0 else (delta if number == 1 else other_delta)
        if mapping != NO_MAPPING:
            key_mask = mask if number > 0 else 0
            bits = _planned(words, base, word_count, sample, mapping, first_bit, key_mask, weights, rival, scratch)
            if bits <= most:
                least = bits
                most = DELTA_KEEP_RATIO * bits if number == 0 else bits
                for i in range(PLAN_INTEGERS):
                    plan[i] = rival[i]
    plan[BITS] = np.int64(least)


@inner
def _planned(
    words: Pointer,
    base: Pointer,
    word_count: int,
    sample: tuple[int, int, int],
    mapping: int,
    first_bit: int,
    mask: int,
    weights: Pointer,
    plan: Pointer,
    scratch: Pointer,
) -> float:
    stride, run_words, run_count = sample
    count = run_words * run_count
    min_weight = _noise_weight(weights[count], count)
    order_costs(words, base, stride, run_words, run_count, mapping, first_bit, mask, min_weight, weights, scratch)
    plan[MAPPING] = mapping
    costs, bits = counts_in(scratch, COSTS), numbers_in(scratch, PLANE_BITS)
    return _plan_planes(costs, width_of(words), word_count, count, weights[count], plan, bits)


def encode(
    words: Pointer,
    base: Pointer,
    word_count: int,
    plan: Pointer,
    first_bit: int,
    mask: int,
    out: Pointer,
    keys: Pointer,
    planes: Pointer,
    scratch: Pointer,
) -> int:
    """Twin: :func:`store.kernels.reference.encode`."""
    width = width_of(words)
    grouped_planes, end_count = 0, 1
    for number in range(width):
        grouped_planes |= (plan[PLANES + number] & GROUPED != 0) << number
    if grouped_planes:
        end_count = _group(base, word_count, first_bit, mask, keys, scratch)
    placed = _place(width, word_count, plan, out, planes)
    varying = split(words, base, word_count, plan[MAPPING], keys, grouped_planes, planes, scratch)
    at = ENTRY_BYTES * width
    for number in range(width):
        plane, code, start = planes[number], plan[PLANES + number], at
        coding = CONSTANT_BODY if (varying >> np.uint64(8 * number)) & np.uint64(255) == 0 else RAW_BODY
        grouped = IS_GROUPED if code & GROUPED and coding == RAW_BODY else 0
        if coding == CONSTANT_BODY:
            out[at] = plane[0]
            at += 1
        elif code & CODED:
            ends = counts_in(scratch, ENDS if grouped else WHOLE)
            ends[0] = ends[0] if grouped else word_count
            at = compress(plane, word_count, ends, end_count if grouped else 1, out, at, scratch)
            coding = CODED_BODY if at - start < word_count else RAW_BODY
        if coding == RAW_BODY:
            at = start + word_count
            if number >= placed or start != ENTRY_BYTES * width + number * word_count:
                copy(plane, 0, word_count, out, start)
        put_number(out, ENTRY_BYTES * number, ENTRY_BYTES, _entry_of(coding, grouped, at - start))
    return at


@inner
def _group(base: Pointer, word_count: int, first_bit: int, mask: int, keys: Pointer, scratch: Pointer) -> int:
    """Find each word's group, where each group starts, and where stretches end; return how many of these there are."""
    begin_halves(base, word_count, first_bit, mask, keys, scratch)
    counts, cursors = counts_in(scratch, COUNTS), counts_in(scratch, CURSORS)
    for key in range(KEYS):
        stop = cursors[key + 1] if key + 1 < KEYS else word_count
        counts[key] = stop - cursors[key]
    return _stretch_ends(counts, counts_in(scratch, ENDS))


@inner
def _place(width: int, word_count: int, plan: Pointer, out: Pointer, planes: Pointer) -> int:
    """Decide where planes go: the first ones, if they stay as they are, to their place in the payload; others aside.

    Returns:
        How many are in place.
    """
    placed = 0
    for number in range(width):
        if placed == number and plan[PLANES + number] & ~MATCHED == KEPT:
            planes[number] = behind(out, ENTRY_BYTES * width + number * word_count)
            placed += 1
        else:
            planes[number] = planes[ASIDE + number]
    return placed
