"""Numbers of each dtype, against torch's."""

from fractions import Fraction

import numpy as np
import pytest
import torch
from hypothesis import given
from hypothesis import strategies as st

from moonclip.state.tensors import DTYPE_NAMES
from store.format.numerals import Numbers, numeral, words

TORCH = {name: dtype for dtype, name in DTYPE_NAMES.items()}
SMALL = ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2", "float8_e5m2fnuz")
BY_BITS = (*SMALL, "float8_e8m0fnu", "bfloat16", "float16")


def codes_of(name: str) -> bytes:
    """Every bit pattern."""
    width = TORCH[name].itemsize
    return np.arange(256**width, dtype=f"<u{width}").tobytes()


def decoded(name: str, data: bytes) -> Numbers:
    known = numeral(name)
    assert known is not None
    with np.errstate(invalid="ignore"):  # signalling NaN
        return known.decode(data).astype(np.float64)


def encoded(name: str, values: Numbers) -> Numbers:
    known = numeral(name)
    assert known is not None
    assert known.encode is not None
    with np.errstate(all="ignore"):
        return known.encode(values)


@pytest.mark.parametrize("name", BY_BITS)
def test_every_bit_pattern_is_the_number_that_torch_reads(name: str) -> None:
    data = codes_of(name)
    expected = torch.frombuffer(bytearray(data), dtype=TORCH[name]).to(torch.float64).numpy()
    assert np.array_equal(decoded(name, data), expected, equal_nan=True)


@pytest.mark.parametrize("name", [*SMALL, "bfloat16", "float16"])
def test_every_number_is_written_as_it_was_read(name: str) -> None:
    data = codes_of(name)
    values = decoded(name, data)
    written = encoded(name, values)
    is_number = ~np.isnan(values)
    assert np.array_equal(
        written.view(f"u{written.itemsize}")[is_number],
        np.frombuffer(data, written.dtype.str.replace("f", "u"))[is_number],
    )
    assert np.isnan(decoded(name, written.tobytes())[~is_number]).all()


@pytest.mark.parametrize("name", [*SMALL, "bfloat16", "float16"])
@given(seed=st.integers(0, 2**32 - 1))
def test_rounding_is_to_the_nearest_and_then_to_the_even_one(name: str, seed: int) -> None:
    finite = np.unique(decoded(name, codes_of(name))[np.isfinite(decoded(name, codes_of(name)))])
    chance = np.random.default_rng(seed)
    lower = finite[chance.integers(0, len(finite) - 1, 50)]
    upper = finite[np.searchsorted(finite, lower) + 1]
    middle = (lower + upper) / 2  # exact: a few bits more
    for values in (middle, np.nextafter(middle, -np.inf), np.nextafter(middle, np.inf), chance.uniform(lower, upper)):
        written = encoded(name, values)
        got = decoded(name, written.tobytes())
        for value, low, high, number, code in zip(values, lower, upper, got, written, strict=True):
            below, above = Fraction(value) - Fraction(low), Fraction(high) - Fraction(value)
            if below == above:
                assert number in (low, high)
                assert int(np.array(code).view(f"u{written.itemsize}")) % 2 == 0
            else:
                assert number == (low if below < above else high)


@pytest.mark.parametrize("name", [*SMALL, "bfloat16", "float16", "float32"])
def test_what_is_too_large_is_infinite_or_no_number(name: str) -> None:
    largest = torch.finfo(TORCH[name]).max
    beyond = decoded(name, encoded(name, np.array([largest * 1.5, -largest * 1.5, np.inf, -np.inf])).tobytes())
    if name in ("float8_e4m3fn", "float8_e4m3fnuz", "float8_e5m2fnuz"):
        assert np.isnan(beyond).all()
    else:
        assert beyond.tolist() == [np.inf, -np.inf, np.inf, -np.inf]
    assert decoded(name, encoded(name, np.array([largest, -largest])).tobytes()).tolist() == [largest, -largest]


def test_what_is_no_number_says_so() -> None:
    opaque = {name for name in DTYPE_NAMES.values() if numeral(name) is None}
    assert opaque == {name for name in opaque if name.startswith(("bits", "float4", "int", "uint"))}
    assert {"float4_e2m1fn_x2", "bits8", "int4", "uint2"} <= opaque
    assert numeral("float8_e8m0fnu").encode is None  # type: ignore[union-attr]
    assert words("float32", bytes(12)).shape == (3, 4)
