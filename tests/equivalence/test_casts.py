"""Casts between float formats: compiled kernels equal their twins, and both equal torch's own casts, bit for bit.

NaNs stay NaNs of the same sign. Which ones is not compared: torch's answer depends on how many elements a tensor has.
"""

from itertools import product

import numpy as np
import pytest
import torch
from hypothesis import given, settings
from hypothesis import strategies as st

from store import kernels
from store.kernels import casting, reference
from store.kernels.casting import BF16, DOUBLE, E4M3, E5M2, HALF, ITEM_BYTES, SINGLE

TORCH = {
    DOUBLE: torch.float64,
    SINGLE: torch.float32,
    BF16: torch.bfloat16,
    HALF: torch.float16,
    E4M3: torch.float8_e4m3fn,
    E5M2: torch.float8_e5m2,
}
INTEGERS = {8: torch.int64, 4: torch.int32, 2: torch.int16, 1: torch.uint8}
NARROWER = [(s, t) for s, t in product(TORCH, TORCH) if ITEM_BYTES[t] < ITEM_BYTES[s]]
WIDER = [(t, s) for s, t in NARROWER]
FORMATS = st.sampled_from(sorted(TORCH))
RANDOM_COUNT = 10_000_000


@pytest.fixture(scope="module", params=["compiled", "twins"])
def kernel(request: pytest.FixtureRequest) -> kernels.Kernels:
    if request.param == "twins":
        return reference
    return compiled_kernels()


@pytest.fixture(scope="module")
def compiled() -> kernels.Kernels:
    return compiled_kernels()


def compiled_kernels() -> kernels.Kernels:
    if not kernels.warm():
        pytest.skip("numba does not work here: there is one set of kernels only")
    return kernels.current(0)


def patterns(number_format: int) -> np.ndarray:
    """Every number of a format of one or two bytes; of wider ones many random words, and words around every edge."""
    width = ITEM_BYTES[number_format]
    if width <= 2:
        return np.arange(2 ** (8 * width), dtype=f"<u{width}")
    return np.concatenate((edges(number_format), random_words(width, 200_000), near_one(number_format, 200_000)))


def random_words(width: int, count: int, seed: int = 1) -> np.ndarray:
    return np.random.default_rng(seed).integers(0, 2 ** (8 * width), count, f"<u{width}", endpoint=False)


def near_one(number_format: int, count: int) -> np.ndarray:
    """Numbers of such sizes as the narrow formats have."""
    drawn = np.random.default_rng(2)
    values = np.ldexp(drawn.uniform(-2, 2, count), drawn.integers(-30, 20, count))
    return values.astype("<f8" if number_format == DOUBLE else "<f4").view(f"<u{ITEM_BYTES[number_format]}")


def edges(number_format: int) -> np.ndarray:
    """Numbers that narrow formats have, those halfway between two of them, and their neighbours; both signs."""
    narrow = [patterns(one) for one in (BF16, HALF, E4M3, E5M2)]
    exact = np.concatenate(
        [cast(reference, n, f, DOUBLE).view("<f8") for n, f in zip(narrow, (BF16, HALF, E4M3, E5M2), strict=True)]
    )
    exact = np.sort(exact[np.isfinite(exact)])
    halfway = exact[:-1] / 2 + exact[1:] / 2
    wide = np.concatenate((exact, halfway, [np.inf, -np.inf, np.nan, -np.nan, 0.0, -0.0]))
    with np.errstate(all="ignore"):
        words = wide.astype("<f8" if number_format == DOUBLE else "<f4").view(f"<u{ITEM_BYTES[number_format]}")
    return np.concatenate((words, words + words.dtype.type(1), words - words.dtype.type(1)))


def cast(kernel: kernels.Kernels, words: np.ndarray, source: int, target: int) -> np.ndarray:
    out = np.full(words.size, 0x5A, f"<u{ITEM_BYTES[target]}")
    kernel.cast(words, source, out, target, np.empty(0), 1, 0)
    return out


def by_torch(words: np.ndarray, source: int, target: int) -> np.ndarray:
    bits = torch.from_numpy(words.view(f"<i{words.itemsize}") if words.itemsize > 1 else words)
    found = bits.view(TORCH[source]).to(TORCH[target]).view(INTEGERS[ITEM_BYTES[target]])
    return found.numpy().view(f"<u{ITEM_BYTES[target]}")


def is_nan(words: np.ndarray, number_format: int) -> np.ndarray:
    return np.isnan(cast(reference, words, number_format, DOUBLE).view("<f8"))


def assert_same_numbers(found: np.ndarray, expected: np.ndarray, number_format: int) -> None:
    nan = is_nan(expected, number_format)
    assert np.array_equal(is_nan(found, number_format), nan)
    assert np.array_equal(found[~nan], expected[~nan])


def is_within(words: np.ndarray, source: int, target: int) -> np.ndarray:
    """Where versions of torch agree: some make NaN of what e4m3 has no number for, some the largest that it has."""
    if target != E4M3:
        return np.ones(words.size, np.bool_)
    values = cast(reference, words, source, DOUBLE).view("<f8")
    return np.isnan(values) | (np.abs(values) < 464)


@pytest.mark.parametrize(("source", "target"), NARROWER)
def test_narrowing_equals_torch(kernel: kernels.Kernels, source: int, target: int) -> None:
    words = patterns(source)
    words = words[is_within(words, source, target)]
    assert_same_numbers(cast(kernel, words, source, target), by_torch(words, source, target), target)


@pytest.mark.parametrize(("source", "target"), WIDER)
def test_widening_equals_torch(kernel: kernels.Kernels, source: int, target: int) -> None:
    words = patterns(source)
    assert_same_numbers(cast(kernel, words, source, target), by_torch(words, source, target), target)


@pytest.mark.parametrize(("source", "target"), [(SINGLE, BF16), (SINGLE, HALF), (DOUBLE, SINGLE), (DOUBLE, BF16)])
def test_ten_million_random_numbers_equal_torch(compiled: kernels.Kernels, source: int, target: int) -> None:
    words = random_words(ITEM_BYTES[source], RANDOM_COUNT, 3)
    assert_same_numbers(cast(compiled, words, source, target), by_torch(words, source, target), target)


@pytest.mark.parametrize(("source", "target"), WIDER)
def test_what_was_widened_narrows_to_itself(compiled: kernels.Kernels, source: int, target: int) -> None:
    words = patterns(source)[:70_000]
    nan = is_nan(words, source)
    there_and_back = cast(compiled, cast(compiled, words, source, target), target, source)
    if (source, target) not in {(HALF, BF16), (BF16, HALF)}:
        assert np.array_equal(there_and_back[~nan], words[~nan])
    assert np.array_equal(is_nan(there_and_back, source), nan)


@pytest.mark.parametrize("target", [BF16, HALF, E4M3, E5M2])
def test_nan_keeps_its_sign_and_infinity_is_kept_or_is_the_largest(kernel: kernels.Kernels, target: int) -> None:
    words = np.array([0x7FC00000, 0xFFC00000, 0x7F800001, 0xFF800001, 0x7F800000, 0xFF800000], "<u4")
    found = cast(kernel, words, SINGLE, target)
    values = cast(reference, found, target, DOUBLE).view("<f8")
    assert np.isnan(values[:4]).all()
    assert np.array_equal(np.signbit(values), [False, True] * 3)
    largest = 448.0 if target == E4M3 else np.inf
    assert values[4:].tolist() == [largest, -largest]


@settings(max_examples=150, deadline=None)
@given(FORMATS, FORMATS, st.integers(0, 5000), st.integers(1, 700), st.integers(0, 900), st.booleans())
def test_kernels_equal_their_twins(
    compiled: kernels.Kernels, source: int, target: int, count: int, columns: int, first: int, is_scaled: bool
) -> None:
    words = random_words(ITEM_BYTES[source], count, count)
    rows = (first + count) // columns + 1
    factors = np.ldexp(1.0, np.random.default_rng(first).integers(-100, 100, rows, np.int32))
    outs = []
    for kernel in (compiled, reference):
        room = np.full(count + 8, 0x5A, f"<u{ITEM_BYTES[target]}")
        kernel.cast(words, source, room[:count], target, factors if is_scaled else factors[:0], columns, first)
        assert (room[count:] == 0x5A).all()
        outs.append(room.tobytes())
    assert outs[0] == outs[1]


@settings(max_examples=100, deadline=None)
@given(st.sampled_from([(8, 0x7FF << 52), (4, 0x7F800000), (2, 0x7C00), (2, 0x7F80)]), st.integers(0, 40_000))
def test_the_largest_equals_its_twin(compiled: kernels.Kernels, kind: tuple[int, int], count: int) -> None:
    width, infinity = kind
    words = random_words(width, count, count)
    found = compiled.largest(words, infinity)
    assert found == reference.largest(words, infinity)
    magnitudes = words & words.dtype.type(2 ** (8 * width - 1) - 1)
    assert found == max(magnitudes[magnitudes <= infinity].tolist(), default=0)


def test_rows_are_multiplied_by_their_own_factors(kernel: kernels.Kernels) -> None:
    values = np.arange(1, 13, dtype="<f4")
    out = np.empty(12, "<u2")
    kernel.cast(values.view("<u4"), SINGLE, out, HALF, np.array([1.0, 0.5, 4.0, 2.0]), 4, 2)
    assert out.view("<f2").tolist() == [1, 2, 1.5, 2, 2.5, 3, 28, 32, 36, 40, 22, 24]


def test_a_double_is_multiplied_before_it_is_rounded(kernel: kernels.Kernels) -> None:
    values = np.array([1e300, -1e300, 1e-300], "<f8")
    out = np.empty(3, "<u2")
    kernel.cast(values.view("<u8"), DOUBLE, out, BF16, np.array([2.0**-990]), 2**62, 0)
    assert cast(kernel, out, BF16, DOUBLE).view("<f8")[:2].tolist() == pytest.approx(
        [1e300 / 2**990, -1e300 / 2**990], rel=2**-8
    )
    assert casting.ITEM_BYTES[BF16] == out.itemsize
