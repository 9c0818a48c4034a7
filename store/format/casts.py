"""Casts: a tensor that is stored in a narrower dtype than it has, and comes back in its own. Pure.

Floats of one byte have a range of few powers of two, so numbers are divided by a power of two first, one for the tensor
or one for each row. It is kept in the entry as its exponent. A power of two costs no precision, and seldom differs from
one save to the next, so that what did not change much still is a small delta.

Spec: docs/format.md §4.2.
"""

import struct
from collections.abc import Sequence
from math import prod
from typing import Final

from ..limits import MAX_SCALE_EXPONENT, MIN_SCALE_EXPONENT, MIN_SCALED_ROW_ELEMENTS
from . import fields
from .dtypes import DTYPES

_CAST: Final = frozenset({"float64", "float32", "bfloat16", "float16"})
SCALED: Final = frozenset({"float8_e4m3fn", "float8_e5m2"})
"""Dtypes that a scale goes with."""

STORED: Final = frozenset({"float32", "bfloat16", "float16"}) | SCALED
"""Dtypes that tensors are cast to."""

_EXPONENT_BYTES: Final = 2


def is_narrower(dtype_name: str, stored: str) -> bool:
    """Whether a tensor of one dtype can be stored in another: both are floats, and it takes fewer bytes."""
    if dtype_name not in _CAST or stored not in STORED:
        return False
    return DTYPES[stored].item_bytes < DTYPES[dtype_name].item_bytes


def packed(exponents: Sequence[int]) -> bytes:
    """Exponents of a scale as an entry has them."""
    return struct.pack(f"<{len(exponents)}h", *exponents)


def exponents_of(scale: bytes) -> tuple[int, ...]:
    """Inverse of :func:`packed`."""
    return struct.unpack(f"<{len(scale) // _EXPONENT_BYTES}h", scale)


def is_by_row(scale: bytes) -> bool:
    """Whether each row has a scale of its own."""
    return len(scale) > _EXPONENT_BYTES


def has_row_scales(shape: tuple[int, ...]) -> bool:
    """Whether rows of a tensor are worth scales of their own."""
    return len(shape) > 1 and shape[0] > 1 and prod(shape[1:]) >= MIN_SCALED_ROW_ELEMENTS


def require_cast(dtype_name: str, stored: str, shape: tuple[int, ...], scale: bytes | None, what: str) -> None:
    """Check what an entry says of its cast.

    Raises:
        Corrupt: there is no such cast, or the scale is none, or one where there must not be one.
    """
    fields.require(is_narrower(dtype_name, stored), what, f"{dtype_name} stored as {stored!r:.60}")
    if scale is None:
        fields.require(stored not in SCALED, what, f"{stored} without a scale")
        return
    fields.require(stored in SCALED and type(scale) is bytes, what, "a scale that belongs to nothing")
    count, odd = divmod(len(scale), _EXPONENT_BYTES)
    fits = count == 1 or (len(shape) > 1 and count == shape[0])
    fields.require(fits and not odd, what, f"a scale of {len(scale)} bytes for shape {list(shape)}")
    legal = all(MIN_SCALE_EXPONENT <= exponent <= MAX_SCALE_EXPONENT for exponent in exponents_of(scale))
    fields.require(legal, what, "a scale out of range")
