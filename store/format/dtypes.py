"""Dtype names and what the codec needs to know of each: element width and where the exponent sits.

The engine knows dtypes by name only (``"bfloat16"``, ``"float32"``). A name it has never heard of cannot be stored:
the item size has to be known to cut whole elements.

Spec: docs/format.md §4.1.
"""

from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..errors import Incompatible


class Element(IntEnum):
    """How the codec sees a chunk: an array of little-endian words of one kind. The value is the format's code."""

    INT8 = 0
    INT16 = 1
    INT32 = 2
    INT64 = 3
    FP8 = 4
    BF16 = 5
    FP16 = 6
    FP32 = 7
    FP64 = 8

    @property
    def width_bytes(self) -> int:
        """Bytes of one word: 1, 2, 4 or 8."""
        return _WIDTH[self]

    @property
    def is_float(self) -> bool:
        """Whether integer order is made float order before words are subtracted, and words can be grouped."""
        return self >= Element.FP8

    @property
    def exponent_bits(self) -> tuple[int, int]:
        """First and last bit of the grouping key in the *base's* word, or ``(0, -1)`` for integers.

        A key is at most eight bits: one-byte floats use the whole byte, fp64 the low eight bits of its exponent.
        """
        return _EXPONENT_BITS[self]


_WIDTH: Final = {
    Element.INT8: 1,
    Element.INT16: 2,
    Element.INT32: 4,
    Element.INT64: 8,
    Element.FP8: 1,
    Element.BF16: 2,
    Element.FP16: 2,
    Element.FP32: 4,
    Element.FP64: 8,
}

_EXPONENT_BITS: Final = {
    Element.INT8: (0, -1),
    Element.INT16: (0, -1),
    Element.INT32: (0, -1),
    Element.INT64: (0, -1),
    Element.FP8: (0, 7),
    Element.BF16: (7, 14),
    Element.FP16: (10, 14),
    Element.FP32: (23, 30),
    Element.FP64: (52, 59),
}


@dataclass(frozen=True, slots=True)
class Dtype:
    """One stored dtype.

    Attributes:
        name: as in an entry, e.g. ``"complex64"``.
        item_bytes: bytes of one tensor element (a complex number is two words, a packed sub-byte one byte).
        element: the words the codec works on.
    """

    name: str
    item_bytes: int
    element: Element


def _table() -> dict[str, Dtype]:
    rows = [
        ("bool", 1, Element.INT8),
        ("uint8", 1, Element.INT8),
        ("int8", 1, Element.INT8),
        ("uint16", 2, Element.INT16),
        ("int16", 2, Element.INT16),
        ("uint32", 4, Element.INT32),
        ("int32", 4, Element.INT32),
        ("uint64", 8, Element.INT64),
        ("int64", 8, Element.INT64),
        ("float8_e4m3fn", 1, Element.FP8),
        ("float8_e4m3fnuz", 1, Element.FP8),
        ("float8_e5m2", 1, Element.FP8),
        ("float8_e5m2fnuz", 1, Element.FP8),
        ("float8_e8m0fnu", 1, Element.INT8),
        ("float4_e2m1fn_x2", 1, Element.INT8),
        ("bfloat16", 2, Element.BF16),
        ("float16", 2, Element.FP16),
        ("float32", 4, Element.FP32),
        ("float64", 8, Element.FP64),
        ("complex32", 4, Element.FP16),
        ("complex64", 8, Element.FP32),
        ("complex128", 16, Element.FP64),
        # torch's bit containers and sub-byte integers: one byte an element.
        *((f"bits{n}", 1, Element.INT8) for n in ("1x8", "2x4", "4x2", "8")),
        ("bits16", 2, Element.INT16),
        *((f"{sign}int{n}", 1, Element.INT8) for sign in ("", "u") for n in range(1, 8)),
    ]
    return {name: Dtype(name, item_bytes, element) for name, item_bytes, element in rows}


DTYPES: Final = _table()


def dtype(name: str) -> Dtype:
    """Look a dtype up by name.

    Raises:
        Incompatible: the engine does not know it.
    """
    try:
        return DTYPES[name]
    except KeyError:
        known = ", ".join(sorted(DTYPES))
        raise Incompatible(f"unknown dtype {name!r}; known are {known}", dtype=name) from None
