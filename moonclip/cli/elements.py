"""Tensor elements as text, from their stored bytes, without torch or NumPy: what is shown is few elements."""

import struct
from collections.abc import Callable
from math import ldexp, nan
from typing import Final

from store.format.dtypes import dtype

Reader = Callable[[memoryview], str]

_INTEGERS: Final = {
    "uint8": "<B",
    "int8": "<b",
    "uint16": "<H",
    "int16": "<h",
    "uint32": "<I",
    "int32": "<i",
    "uint64": "<Q",
    "int64": "<q",
}
_FLOATS: Final = {"float16": "<e", "float32": "<f", "float64": "<d"}
_COMPLEX: Final = {"complex32": "<ee", "complex64": "<ff", "complex128": "<dd"}


def texts(dtype_name: str, data: memoryview) -> list[str]:
    """Elements as text, six digits for floats; hex where a byte holds no number (or several).

    Args:
        dtype_name: stored name.
        data: whole elements, little-endian.
    """
    item_bytes = dtype(dtype_name).item_bytes
    read = _reader(dtype_name)
    return [read(data[at : at + item_bytes]) for at in range(0, len(data), item_bytes)]


def _reader(name: str) -> Reader:
    if name == "bool":
        return lambda data: str(data[0] != 0)
    if name in _INTEGERS:
        return lambda data: str(struct.unpack(_INTEGERS[name], data)[0])
    if name in _FLOATS:
        return lambda data: _number(struct.unpack(_FLOATS[name], data)[0])
    if name in _COMPLEX:
        return lambda data: _complex(*struct.unpack(_COMPLEX[name], data))
    if name in _SMALL_FLOATS:
        return lambda data: _number(_SMALL_FLOATS[name](int.from_bytes(data, "little")))
    return lambda data: f"0x{data[::-1].hex()}"


def _number(value: float) -> str:
    return f"{value:.6g}"


def _complex(real: float, imag: float) -> str:
    return f"{real:.6g}{imag:+.6g}j"


def _bfloat16(word: int) -> float:
    value: float = struct.unpack("<f", struct.pack("<I", word << 16))[0]
    return value


def _float8_e5m2(word: int) -> float:
    value: float = struct.unpack("<e", struct.pack("<H", word << 8))[0]
    return value


def _float8_e8m0fnu(word: int) -> float:
    return nan if word == 0xFF else ldexp(1.0, word - 127)


def _finite(word: int, mantissa_bits: int, bias: int) -> float:
    """A float of 8 bits by the general rule, with subnormals and without special values."""
    exponent = (word & 0x7F) >> mantissa_bits
    fraction = word & ((1 << mantissa_bits) - 1)
    if exponent:
        fraction += 1 << mantissa_bits
    magnitude = ldexp(float(fraction), max(exponent, 1) - bias - mantissa_bits)
    return -magnitude if word & 0x80 else magnitude


_SMALL_FLOATS: Final[dict[str, Callable[[int], float]]] = {
    "bfloat16": _bfloat16,
    "float8_e5m2": _float8_e5m2,
    "float8_e4m3fn": lambda word: nan if word & 0x7F == 0x7F else _finite(word, 3, 7),
    "float8_e4m3fnuz": lambda word: nan if word == 0x80 else _finite(word, 3, 8),
    "float8_e5m2fnuz": lambda word: nan if word == 0x80 else _finite(word, 2, 16),
    "float8_e8m0fnu": _float8_e8m0fnu,
}
