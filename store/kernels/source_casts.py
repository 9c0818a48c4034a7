"""The kernels that change the format of numbers, as numba compiles them: twins of :mod:`store.kernels.casting`.

Rules and reasons are those of :mod:`store.kernels.source_words`. A block becomes singles in scratch memory, then what
it is to be. Every step says that it is 32 bits wide, since numba's integers grow to 64 and the vectors would hold half.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return"

import numpy as np

from . import casting
from .casting import BF16, DOUBLE, E4M3, HALF, SINGLE, SINGLE_INFINITY, SINGLE_MAGNITUDE
from .pointers import (
    Pointer,
    behind,
    bytes_at,
    doubles_at,
    fours_at,
    fours_in,
    inner,
    narrow,
    pairs_at,
    single_of,
    singles_in,
    width_of,
    word_of,
)
from .scratch import BLOCK, BLOCK_WORDS

TO_BF16 = tuple(casting.TO_BF16)
TO_HALF = tuple(casting.TO_HALF)
TO_E4M3 = tuple(casting.TO_E4M3)
TO_E5M2 = tuple(casting.TO_E5M2)
FROM_HALF = tuple(casting.FROM_HALF)
FROM_E4M3 = tuple(casting.FROM_E4M3)
FROM_E5M2 = tuple(casting.FROM_E5M2)
_INFINITY = np.uint32(SINGLE_INFINITY)
_MAGNITUDE = np.uint32(SINGLE_MAGNITUDE)


def cast(
    source: Pointer,
    source_format: int,
    count: int,
    target: Pointer,
    target_format: int,
    factors: Pointer,
    factor_count: int,
    columns: int,
    first: int,
    scratch: Pointer,
) -> None:
    """Twin: :func:`store.kernels.casting.cast`."""
    at = 0
    while at < count:
        stop = min(at + BLOCK_WORDS, count)
        factor = 1.0
        if factor_count:
            row = (first + at) // columns
            stop = min(stop, (row + 1) * columns - first)
            factor = doubles_at(factors)[row]
        before = factor if source_format == DOUBLE else 1.0
        after = factor if target_format == DOUBLE else 1.0
        _to_singles(source, source_format, at, stop - at, before, scratch)
        if factor_count and min(source_format, target_format) > DOUBLE:  # a double was, or will be, multiplied as one
            singles, single_factor = singles_in(scratch, BLOCK), np.float32(factor)
            for i in range(stop - at):
                singles[i] *= single_factor
        _from_singles(scratch, stop - at, after, target, target_format, at)
        at = stop


@inner
def _to_singles(source: Pointer, source_format: int, at: int, count: int, factor: float, scratch: Pointer) -> None:
    words, singles = fours_in(scratch, BLOCK), singles_in(scratch, BLOCK)
    if source_format == DOUBLE:
        doubles = doubles_at(behind(source, 8 * at))
        for i in range(count):
            singles[i] = np.float32(doubles[i] * factor)
    elif source_format == SINGLE:
        fours = fours_at(behind(source, 4 * at))
        for i in range(count):
            words[i] = fours[i]
    elif source_format == BF16:
        pairs = pairs_at(behind(source, 2 * at))
        for i in range(count):
            words[i] = np.uint32(np.uint32(pairs[i]) << np.uint32(16))
    elif source_format == HALF:
        _restore(pairs_at(behind(source, 2 * at)), count, words, FROM_HALF)
    elif source_format == E4M3:
        _restore(bytes_at(behind(source, at)), count, words, FROM_E4M3)
    else:
        _restore(bytes_at(behind(source, at)), count, words, FROM_E5M2)


@inner
def _restore(narrower: Pointer, count: int, words: Pointer, how: tuple[int, int, int, int, float, int]) -> None:
    bits, shift = np.uint32(how[0]), np.uint32(how[1])
    rebias, least_normal, unit, special = np.uint32(how[2]), np.uint32(how[3]), np.float32(how[4]), np.uint32(how[5])
    mask, sign_shift = np.uint32((1 << how[0]) - 1), np.uint32(31)
    for i in range(count):
        word = np.uint32(narrower[i])
        magnitude = np.uint32(word & mask)
        shifted = np.uint32(magnitude << shift)
        small = word_of(np.float32(np.int32(magnitude)) * unit)
        infinite = np.uint32(shifted | _INFINITY)
        quiet = np.uint32(infinite | np.uint32(1 << 22)) if infinite > _INFINITY else infinite
        normal = np.uint32(shifted + rebias) if magnitude < special else quiet
        found = small if magnitude < least_normal else normal
        words[i] = np.uint32(found | np.uint32(np.uint32(word >> bits) << sign_shift))


@inner
def _from_singles(scratch: Pointer, count: int, factor: float, target: Pointer, target_format: int, at: int) -> None:
    words, singles = fours_in(scratch, BLOCK), singles_in(scratch, BLOCK)
    if target_format == DOUBLE:
        doubles = doubles_at(behind(target, 8 * at))
        for i in range(count):
            doubles[i] = np.float64(singles[i]) * factor
    elif target_format == SINGLE:
        fours = fours_at(behind(target, 4 * at))
        for i in range(count):
            fours[i] = words[i]
    elif target_format == BF16:
        _round(words, count, pairs_at(behind(target, 2 * at)), TO_BF16)
    elif target_format == HALF:
        _round(words, count, pairs_at(behind(target, 2 * at)), TO_HALF)
    elif target_format == E4M3:
        _round(words, count, bytes_at(behind(target, at)), TO_E4M3)
    else:
        _round(words, count, bytes_at(behind(target, at)), TO_E5M2)


@inner
def _round(words: Pointer, count: int, narrower: Pointer, how: tuple[int, int, int, int, int, int]) -> None:
    shift, rebias, least_normal = np.uint32(how[0]), np.uint32(how[1]), np.uint32(how[2])
    magic, most, nan = np.uint32(how[3]), np.uint32(how[4]), np.uint32(how[5])
    half = np.uint32((1 << (how[0] - 1)) - 1)
    payload = np.uint32((1 << (23 - how[0])) - 1)
    one, sign_from, sign_to = np.uint32(1), np.uint32(31), np.uint32(8 * width_of(narrower) - 1)
    for i in range(count):
        word = words[i]
        magnitude = np.uint32(word & _MAGNITUDE)
        shifted = np.uint32(magnitude >> shift)
        rounded = np.uint32(np.uint32(np.uint32(magnitude + rebias) + np.uint32(shifted & one)) + half)
        found = min(np.uint32(rounded >> shift), most)
        small = np.uint32(word_of(single_of(magnitude) + single_of(magic)) - magic)
        found = small if magnitude < least_normal else found
        found = np.uint32(np.uint32(shifted & payload) | nan) if magnitude > _INFINITY else found
        sign = np.uint32(np.uint32(word >> sign_from) << sign_to)
        narrower[i] = narrow(narrower, np.uint64(np.uint32(found | sign)))


def largest(words: Pointer, count: int, infinity: int) -> int:
    """Twin: :func:`store.kernels.casting.largest`."""
    mask = narrow(words, np.uint64((1 << (8 * width_of(words) - 1)) - 1))
    limit, most = narrow(words, np.uint64(infinity)), narrow(words, np.uint64(0))
    for i in range(count):
        magnitude = narrow(words, words[i] & mask)
        kept = magnitude if magnitude <= limit else narrow(words, np.uint64(0))
        most = max(most, kept)
    return np.uint64(most)
