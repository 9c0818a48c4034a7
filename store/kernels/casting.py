"""Numbers from one floating-point format to another, in NumPy: what the compiled kernels must equal, byte for byte.

Everything passes through fp32, as torch's own casts do: a double is rounded to a single first. Rounding is to nearest,
ties to even. NaNs stay NaNs, with their sign and as much of their payload as there is room for, and are quiet; what is
too large becomes infinite, or in e4m3, which has no infinity, 448.
"""

from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from .mapping import Words

DOUBLE, SINGLE, BF16, HALF, E4M3, E5M2 = range(6)
"""Formats of numbers: the same in every twin, ``DOUBLE`` the least."""

ITEM_BYTES: Final = (8, 4, 2, 2, 1, 1)
"""Bytes of a number, by format."""

Numbers = npt.NDArray[np.float64]
_Singles = npt.NDArray[np.float32]

_BLOCK_NUMBERS: Final = 16 * 1024
"""What is worked on at a time: fits the second-level cache, and is long enough for NumPy to get going."""

SINGLE_INFINITY: Final = 0x7F80_0000
SINGLE_MAGNITUDE: Final = 0x7FFF_FFFF


class Rounding(NamedTuple):
    """How a single becomes a narrower number, in terms of the single's word without its sign.

    Attributes:
        shift: bits of the mantissa that go.
        rebias: what is added to the word, modulo 2³², so that its exponent has the narrow format's bias.
        least_normal: the word of the least number that the narrow format has in full precision.
        magic: the word of a power of two whose last bit weighs as much as the narrow format's last: adding it rounds.
        most: the narrow word that stands for whatever is too large.
        nan: the narrow word of a NaN without payload.
    """

    shift: int
    rebias: int
    least_normal: int
    magic: int
    most: int
    nan: int


def _rounding(mantissa_bits: int, bias: int, most: int, nan: int) -> Rounding:
    shift = 23 - mantissa_bits
    return Rounding(shift, (bias - 127) % 2**9 << 23, (128 - bias) << 23, (128 - bias + shift) << 23, most, nan)


TO_BF16: Final = Rounding(16, 0, 0, 0, 0x7F80, 0x7FC0)  # its exponents are a single's, so the least need nothing else
TO_HALF: Final = _rounding(10, 15, 0x7C00, 0x7E00)
TO_E4M3: Final = _rounding(3, 7, 0x7E, 0x7F)
TO_E5M2: Final = _rounding(2, 15, 0x7C, 0x7F)


class Restoring(NamedTuple):
    """How a narrower number becomes a single, in terms of its word without its sign.

    Attributes:
        bits: of the word, without the sign.
        shift: bits of the mantissa that are added.
        rebias: what is added to the shifted word, so that its exponent has the single's bias.
        least_normal: the word of the least number of full precision.
        unit: what the last bit of lesser numbers is worth.
        special: the first word that is an infinity or a NaN.
    """

    bits: int
    shift: int
    rebias: int
    least_normal: int
    unit: float
    special: int


FROM_HALF: Final = Restoring(15, 13, 112 << 23, 1 << 10, 2.0**-24, 0x7C00)
FROM_E4M3: Final = Restoring(7, 20, 120 << 23, 1 << 3, 2.0**-9, 0x7F)
FROM_E5M2: Final = Restoring(7, 21, 112 << 23, 1 << 2, 2.0**-16, 0x7C)


def cast(
    source: Words, source_format: int, target: Words, target_format: int, factors: Numbers, columns: int, first: int
) -> None:
    """Numbers of one format as the nearest ones of another.

    Args:
        source: words of the source format.
        source_format: its number.
        target: as many words, fully overwritten; does not overlap the source.
        target_format: its number.
        factors: what numbers are multiplied by on the way, a power of two for each row; empty for no multiplication.
        columns: numbers of a row.
        first: which number of the first row the source begins with.

    Cost: one pass.
    """
    with np.errstate(all="ignore"):  # overflow and NaN are what the format makes of them
        for start in range(0, source.size, _BLOCK_NUMBERS):
            stop = min(start + _BLOCK_NUMBERS, source.size)
            rows = (np.arange(first + start, first + stop) // columns) if factors.size else None
            numbers = _restored(source[start:stop], source_format, None if rows is None else factors[rows])
            if rows is not None and min(source_format, target_format) > DOUBLE:  # a double was, or will be, multiplied
                numbers = numbers * factors[rows].astype(np.float32)
            if target_format == DOUBLE:
                wide = numbers.astype(np.float64)
                target[start:stop] = (wide if rows is None else wide * factors[rows]).view(np.uint64)
            else:
                target[start:stop] = _rounded(numbers.view(np.uint32), target_format)


def largest(words: Words, infinity: int) -> int:
    """The word of the largest magnitude among numbers that are none of them NaN; 0 if there are none.

    Args:
        words: numbers of any format that has an infinity.
        infinity: its word.

    Cost: one pass.
    """
    most = 0
    for start in range(0, words.size, _BLOCK_NUMBERS):
        magnitudes = words[start : start + _BLOCK_NUMBERS] & words.dtype.type(2 ** (8 * words.itemsize - 1) - 1)
        most = max(most, magnitudes[magnitudes <= infinity].max(initial=0).item())
    return most


def _restored(words: Words, number_format: int, factors: Numbers | None) -> _Singles:
    """As singles. Doubles are multiplied here: what does not fit a single may do so afterwards."""
    if number_format == DOUBLE:
        wide = words.view(np.float64)
        return (wide if factors is None else wide * factors).astype(np.float32)
    if number_format == SINGLE:
        return words.view(np.float32)
    wider = words.astype(np.uint32)
    if number_format == BF16:
        return (wider << 16).view(np.float32)
    return _widened(wider, {HALF: FROM_HALF, E4M3: FROM_E4M3, E5M2: FROM_E5M2}[number_format])


def _widened(words: Any, how: Restoring) -> _Singles:
    magnitude = words & ((1 << how.bits) - 1)
    normal = (magnitude << how.shift) + how.rebias
    small = (magnitude.astype(np.float32) * np.float32(how.unit)).view(np.uint32)
    special = (magnitude << how.shift) | SINGLE_INFINITY
    special |= (special > SINGLE_INFINITY).astype(np.uint32) << 22
    found = np.where(magnitude < how.least_normal, small, np.where(magnitude < how.special, normal, special))
    return np.asarray(found | ((words >> how.bits) << 31)).view(np.float32)


def _rounded(words: Any, number_format: int) -> Words:
    """Words of singles as narrower ones."""
    if number_format == SINGLE:
        return np.asarray(words)
    how = {BF16: TO_BF16, HALF: TO_HALF, E4M3: TO_E4M3, E5M2: TO_E5M2}[number_format]
    magnitude = words & SINGLE_MAGNITUDE
    rounding = ((magnitude >> how.shift) & 1) + ((1 << how.shift - 1) - 1)
    found = np.minimum((magnitude + how.rebias + rounding) >> how.shift, how.most)
    if how.least_normal:
        magic = np.uint32(how.magic).view(np.float32)
        small = (magnitude.view(np.float32) + magic).view(np.uint32) - how.magic
        found = np.where(magnitude < how.least_normal, small, found)
    nan = ((magnitude >> how.shift) & ((1 << 23 - how.shift) - 1)) | how.nan
    found = np.where(magnitude > SINGLE_INFINITY, nan, found)
    sign_shift = 8 * ITEM_BYTES[number_format] - 1
    return np.asarray((found | ((words >> 31) << sign_shift)).astype(f"<u{ITEM_BYTES[number_format]}"))
