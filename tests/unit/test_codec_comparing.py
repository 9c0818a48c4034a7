"""What is expected of a chunk, from its sample, is about what encoding it comes to."""

import numpy as np
import pytest

from store.codec import encode, narrowing
from store.codec.comparing import cast, expected_bytes, sample
from store.format.dtypes import Element, dtype

WORDS = 1 << 18


def chunks(element: Element) -> tuple[memoryview, memoryview]:
    """Something like weights, and the same a little later."""
    chance = np.random.default_rng(1)
    before = chance.standard_normal(WORDS, np.float32) * np.float32(0.02)
    after = before * (1 + chance.standard_normal(WORDS, np.float32) * np.float32(1e-2))
    if element == Element.FP32:
        return memoryview(before.tobytes()), memoryview(after.tobytes())
    if element == Element.BF16:
        halves = [(each.view(np.uint32) >> 16).astype(np.uint16) for each in (before, after)]
        return memoryview(halves[0].tobytes()), memoryview(halves[1].tobytes())
    integers = [(each * 1e5).astype(np.int32) for each in (before, after)]
    return memoryview(integers[0].tobytes()), memoryview(integers[1].tobytes())


@pytest.mark.parametrize("element", [Element.FP32, Element.BF16, Element.INT32], ids=lambda each: each.name)
def test_expected_is_about_what_comes_out(element: Element) -> None:
    before, after = chunks(element)
    one, other = sample(after, element), sample(before, element)
    assert one is not None
    assert other is not None
    assert expected_bytes(one) == pytest.approx(encode(after, element).size_bytes, rel=0.1)
    assert expected_bytes(one, other) == pytest.approx(encode(after, element, before).size_bytes, rel=0.05)
    assert expected_bytes(one, other) < expected_bytes(one)


@pytest.mark.parametrize("length", [0, 100, 1023, 4097])
def test_what_is_not_stored_in_planes_has_no_sample(length: int) -> None:
    assert sample(memoryview(bytes(length)), Element.FP32) is None


def test_a_sample_is_small() -> None:
    given = sample(chunks(Element.FP32)[0], Element.FP32)
    assert given is not None
    assert given.word_count == WORDS
    assert len(given.words) <= 4096


@pytest.mark.parametrize(("held", "wanted"), [("float32", "bfloat16"), ("float32", "float16"), ("bfloat16", "float32")])
def test_a_sample_that_is_cast_is_that_of_the_cast_chunk(held: str, wanted: str) -> None:
    numbers = np.random.default_rng(0).standard_normal(200_000).astype("<f4")
    raw = memoryview(numbers.tobytes())
    given = raw if held == "float32" else narrowing("float32", held, b"", 1).new(raw, 0)
    chunk = narrowing(held, wanted, b"", 1).new(given, 0)
    told, own = sample(given, dtype(held).element), sample(chunk, dtype(wanted).element)
    assert told is not None
    assert own is not None
    made = cast(told, held, wanted)
    assert (made.word_count, made.element) == (own.word_count, own.element)
    assert np.array_equal(made.words, own.words)
