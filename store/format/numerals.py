"""Stored elements as numbers, and numbers as stored elements. Pure; NumPy only.

NumPy lacks bfloat16 and the floats of one byte: the former is half a float32, the latter have 256 values each. Callers
turn off what NumPy says of overflows and NaN: here these are results like others.

Sources: OCP 8-bit Floating Point Specification (e4m3, e5m2) and OCP Microscaling Formats (e8m0); those named ``fnuz``
have one more in the exponent's bias, no infinities, and their only NaN where -0 would be (Noune et al., 2022).
"""

from collections.abc import Callable
from dataclasses import dataclass
from functools import cache
from math import inf, ldexp, nan
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from ..ids import Buffer
from .dtypes import dtype

Numbers = npt.NDArray[Any]


@dataclass(frozen=True, slots=True)
class Numeral:
    """How the elements of one dtype are read and written as numbers.

    Attributes:
        decode: their values, exactly, from whole little-endian elements: ``parts`` numbers an element, in any NumPy
            dtype that holds them.
        encode: from float64, each rounded once, to the nearest and of two such to the even one; what is too large
            becomes what the dtype has for that (infinity, else NaN). ``None`` for integers.
        parts: 2 for complex numbers, else 1.
    """

    decode: Callable[[Buffer], Numbers]
    encode: Callable[[Numbers], Numbers] | None = None
    parts: int = 1


def numeral(dtype_name: str) -> Numeral | None:
    """How elements of a dtype are numbers; ``None`` where a byte holds several, or bits of no stated meaning."""
    return _NUMERALS.get(dtype_name)


def words(dtype_name: str, data: Buffer) -> Numbers:
    """Elements as unsigned bytes, uint8[n, bytes of one]: equal ones are equal bit for bit."""
    return np.frombuffer(data, np.uint8).reshape(-1, dtype(dtype_name).item_bytes)


def _native(kind: str) -> Callable[[Buffer], Numbers]:
    return lambda data: np.frombuffer(data, kind)


def _rounded_to(kind: str) -> Callable[[Numbers], Numbers]:
    return lambda values: values.astype(kind)


# --- bfloat16 -----------------------------------------------------------------------------------------------------


def _from_bfloat16(data: Buffer) -> Numbers:
    return (np.frombuffer(data, "<u2").astype(np.uint32) << 16).view(np.float32)


def _to_bfloat16(values: Numbers) -> Numbers:
    """By way of float32 rounded to odd, which rounding once more cannot tell from the value itself (Boldo, 2008)."""
    nearest = values.astype(np.float32)
    bits, wide = nearest.view(np.uint32), nearest.astype(np.float64)
    bits = np.where(np.isfinite(values), bits - (np.abs(wide) > np.abs(values)), bits)  # towards zero
    bits |= (wide != values) & np.isfinite(values)
    rounded = (bits + np.uint32(0x7FFF) + ((bits >> 16) & 1)) >> 16
    return np.where(np.isnan(values), 0x7FC0, rounded).astype("<u2")


# --- one byte -----------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Small:
    """A float of one byte: sign, exponent, mantissa.

    Attributes:
        mantissa_bits: of the byte's lowest.
        bias: of its exponent.
        finite_count: codes without sign that stand for finite values, from 0 on.
        has_negative_zero: if not, that code is NaN.
    """

    mantissa_bits: int
    bias: int
    finite_count: int
    has_negative_zero: bool = True

    def value(self, code: int) -> float:
        """What a byte stands for."""
        magnitude, is_negative = code & 0x7F, bool(code & 0x80)
        if is_negative and magnitude == 0 and not self.has_negative_zero:
            return nan
        size = self.magnitude(magnitude) if magnitude < self.finite_count else self._beyond(magnitude)
        return -size if is_negative else size

    def magnitude(self, code: int) -> float:
        """Value of a code without sign, as if it were no special one."""
        exponent, fraction = code >> self.mantissa_bits, code & ((1 << self.mantissa_bits) - 1)
        fraction += (1 << self.mantissa_bits) if exponent else 0
        return ldexp(float(fraction), max(exponent, 1) - self.bias - self.mantissa_bits)

    def _beyond(self, code: int) -> float:
        return inf if code & ((1 << self.mantissa_bits) - 1) == 0 else nan  # e4m3's only such code has all bits


_SMALL: Final = {
    "float8_e4m3fn": _Small(3, 7, 0x7F),
    "float8_e4m3fnuz": _Small(3, 8, 0x80, has_negative_zero=False),
    "float8_e5m2": _Small(2, 15, 0x7C),
    "float8_e5m2fnuz": _Small(2, 16, 0x80, has_negative_zero=False),
}


@cache
def _table(name: str) -> Numbers:
    if name == "float8_e8m0fnu":
        return np.array([ldexp(1.0, code - 127) for code in range(255)] + [nan], np.float32)
    return np.array([_SMALL[name].value(code) for code in range(256)], np.float32)


@cache
def _midpoints(name: str) -> Numbers:
    """Where rounding goes over from each finite code to the next; the last one's next is too large."""
    small = _SMALL[name]
    sizes = np.array([small.magnitude(code) for code in range(small.finite_count + 1)])
    midpoints: Numbers = (sizes[:-1] + sizes[1:]) / 2
    return midpoints


def _from_small(name: str) -> Callable[[Buffer], Numbers]:
    return lambda data: _table(name)[np.frombuffer(data, np.uint8)]


def _to_small(name: str) -> Callable[[Numbers], Numbers]:
    small = _SMALL[name]

    def encode(values: Numbers) -> Numbers:
        bounds, sizes = _midpoints(name), np.abs(values)
        codes: Numbers = np.searchsorted(bounds, sizes)
        is_tie = bounds[np.minimum(codes, len(bounds) - 1)] == sizes
        codes += is_tie & (codes & 1 == 1)
        is_signed = np.signbit(values) & (small.has_negative_zero | (codes > 0))
        not_a_number = 0x7F if small.has_negative_zero else 0x80
        coded: Numbers = np.where(np.isnan(values), not_a_number, codes | (is_signed * 0x80)).astype(np.uint8)
        return coded

    return encode


# --- all of them --------------------------------------------------------------------------------------------------


def _numerals() -> dict[str, Numeral]:
    integers = {"bool": "u1"} | {f"{sign}int{8 * n}": f"<{sign or 'i'}{n}" for sign in ("", "u") for n in (1, 2, 4, 8)}
    floats = {"float16": "<f2", "float32": "<f4", "float64": "<f8"}
    parts = {"complex32": "<f2", "complex64": "<f4", "complex128": "<f8"}
    return {
        **{name: Numeral(_native(kind)) for name, kind in integers.items()},
        **{name: Numeral(_native(kind), _rounded_to(kind)) for name, kind in floats.items()},
        **{name: Numeral(_native(kind), _rounded_to(kind), parts=2) for name, kind in parts.items()},
        **{name: Numeral(_from_small(name), _to_small(name)) for name in _SMALL},
        "bfloat16": Numeral(_from_bfloat16, _to_bfloat16),
        "float8_e8m0fnu": Numeral(_from_small("float8_e8m0fnu")),  # a scale: of two, no average is one
    }


_NUMERALS: Final = _numerals()
