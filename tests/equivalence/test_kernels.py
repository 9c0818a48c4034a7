"""Compiled kernels and their NumPy twins: same results for the same arguments, and the same encodings with them."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import codec, kernels
from store.dtypes import Element
from store.kernels import exercise, reference
from store.kernels.reference import COPY, DIFF, ORDERED_DIFF, ROTATE, XOR

WIDTHS = st.sampled_from([1, 2, 4, 8])
MAPPINGS = st.sampled_from([COPY, ROTATE, XOR, DIFF, ORDERED_DIFF])


@pytest.fixture(scope="module")
def compiled() -> kernels.Kernels:
    if not kernels.warm():
        pytest.skip("numba does not work here: there is one set of kernels only")
    return kernels.current(0)


def words(width: int, count: int, seed: int) -> np.ndarray:
    """Words of very different sizes, some of them equal."""
    random = np.random.default_rng(seed)
    values = random.integers(0, 2**64, count, np.uint64) >> random.integers(64 - 8 * width, 64, count).astype(np.uint64)
    values[random.random(count) < 0.2] = 0
    array = values.astype(f"<u{width}")
    array.flags.writeable = False
    return array


def results_of(
    kernel: kernels.Kernels, width: int, count: int, mapping: int, grouped: int, columns: int
) -> list[bytes]:
    current, base = words(width, count, 1), words(width, count, 2)
    keys, counts = np.empty(count, np.uint8), np.empty(256, np.int64)
    row_sums, column_sums = np.empty(-(-count // columns), np.int64), np.empty(columns, np.int64)
    kernel.exponent_sums(current, 0, 127, columns, row_sums, column_sums)
    codes = words(1, len(row_sums) + columns, 3)
    kernel.context_keys(codes, columns, keys, counts)
    results = [row_sums, column_sums, keys.copy(), counts.copy()]
    kernel.exponent_keys(base, 8 * width - 7, 31, keys, counts)
    starts = np.cumsum(counts) - counts
    planes = tuple(np.empty((width, count), np.uint8))
    varying = kernel.split(current, base, mapping, keys, starts.copy(), grouped, planes)
    statistics = np.empty((width + 1, 4), np.int64)
    cells, weights = np.zeros(256 * 256, np.int32), np.arange(count + 1) ** 2
    kernel.order_costs(current.copy(), base.copy(), mapping, keys, count, weights, cells, statistics)
    assert not cells.any()
    frozen = [plane.view() for plane in planes]
    for plane in frozen:
        plane.flags.writeable = False
    back = np.empty(count, current.dtype)
    kernel.join(tuple(frozen), base, mapping, keys, starts, grouped, back)
    assert np.array_equal(back, current)
    results += [keys, counts, *planes, statistics, np.array([varying], np.uint64)]
    return [result.tobytes() for result in results]


@settings(max_examples=120, deadline=None)
@given(WIDTHS, st.integers(1, 3000), MAPPINGS, st.integers(0, 255), st.integers(1, 400))
def test_every_kernel_equals_its_twin(
    compiled: kernels.Kernels, width: int, count: int, mapping: int, grouped: int, columns: int
) -> None:
    arguments = (width, count, mapping, grouped % (1 << width), min(columns, count))
    assert results_of(compiled, *arguments) == results_of(reference, *arguments)


def drifting(element: Element, byte_count: int, seed: int) -> tuple[memoryview, memoryview]:
    """A chunk and its base: a matrix with rows and columns of its own magnitude, moved a little."""
    random = np.random.default_rng(seed)
    width = element.width_bytes
    count = byte_count // width
    scale = np.exp2(random.integers(-9, 0, count // 256))[:, None] * np.exp2(random.integers(-9, 0, 256))
    before = (random.standard_normal((count // 256, 256)) * scale).ravel()
    after = before * (1 + 1e-3 * random.standard_normal(count))
    if element in (Element.FP32, Element.FP64, Element.FP16):
        kind = f"<f{width}"
        return memoryview(after.astype(kind).tobytes()), memoryview(before.astype(kind).tobytes())
    shift = 64 - 8 * width
    as_words = [(array.view(np.uint64) >> np.uint64(shift)).astype(f"<u{width}").tobytes() for array in (after, before)]
    return memoryview(as_words[0]), memoryview(as_words[1])


@pytest.mark.parametrize("element", list(Element), ids=lambda element: element.name)
@pytest.mark.parametrize("has_base", [False, True], ids=["alone", "base"])
def test_e4_compiled_kernels_and_twins_encode_to_the_same_bytes(
    compiled: kernels.Kernels, element: Element, has_base: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    raw, base = drifting(element, 256 * 1024 * element.width_bytes, 7)
    encodings = []
    for chosen in (compiled, reference):
        monkeypatch.setattr(kernels._loader, "chosen", chosen)
        encodings.append(codec.encode(raw, element, base if has_base else None, 256))
    fast, plain = encodings
    assert (fast.transform, fast.grouped) == (plain.transform, plain.grouped)
    payload = b"".join(fast.payload)
    assert payload == b"".join(plain.payload)
    for chosen in (compiled, reference):
        monkeypatch.setattr(kernels._loader, "chosen", chosen)
        out = memoryview(bytearray(len(raw)))
        used = base if fast.uses_base else None
        codec.decode(fast.transform, fast.grouped, element, memoryview(payload), len(raw), used, out)
        assert out.obj == raw.obj


def test_e4_nothing_is_compiled_after_the_exercise(compiled: kernels.Kernels) -> None:
    """Real work must meet only the argument types that warming compiled for."""
    dispatchers = [compiled.split, compiled.join, compiled.exponent_keys, compiled.context_keys, compiled.order_costs]
    known = [set(dispatcher.signatures) for dispatcher in dispatchers]
    for element in Element:
        for offset in (0, 1):  # an odd offset is not aligned
            raw, base = drifting(element, 128 * 1024 * element.width_bytes, 8)
            raw, base = memoryview(b"x" * offset + raw)[offset:], memoryview(bytearray(b"x" * offset + base))[offset:]
            for other, columns in ((None, 256), (base, 0), (None, 0)):
                encoded = codec.encode(raw, element, other, columns)
                out = memoryview(bytearray(offset + len(raw)))[offset:]
                payload = memoryview(bytearray(b"".join(encoded.payload)))
                used = other if encoded.uses_base else None
                codec.decode(encoded.transform, encoded.grouped, element, payload, len(raw), used, out)
                assert out == raw
    assert [set(dispatcher.signatures) for dispatcher in dispatchers] == known


def test_exercise_reaches_every_mapping_and_width() -> None:
    assert len(exercise.exercise(reference)) > 2600 * sum((1, 2, 4, 8)) * 2 * 5 * 2
