"""Whatever window of a base a chunk sees, and however it is cast, the chunk comes back; what is no view is refused."""

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from store import codec, kernels
from store.codec import Encoded, Transform
from store.codec.encoding import gathered
from store.codec.views import VIEW_BYTES, View, can_see, encode_view, seen, split
from store.errors import Corrupt
from store.format.dtypes import Element
from tools import decode_pack

PAIRS = [(held, element) for held in Element for element in Element if can_see(held, element)]
FLOATS = [pair for pair in PAIRS if pair[0] != pair[1]]


def patterns(seed: int, element: Element, count: int) -> bytes:
    """Words of all sorts: any bits, close to one, NaNs with payloads, infinities, subnormal numbers, zeros."""
    random = np.random.default_rng(seed)
    width = element.width_bytes
    words = random.integers(0, 256, count * width, np.uint8).view(f"<u{width}")
    one = np.frombuffer(np.full(1, 1.0, "<f8" if width == 8 else "<f4").tobytes()[-width:], words.dtype)[0]
    kinds = random.integers(0, 4, count)
    exponent = words.dtype.type(~((1 << 8 * width - 9) - 1) & ((1 << 8 * width) - 1) >> 1) if width > 1 else 0x7F
    words = np.where(kinds == 0, one + words % 16, words)
    words = np.where(kinds == 1, words | exponent, words)
    return bytes(np.where(kinds == 2, words & ~words.dtype.type(exponent), words).astype(f"<u{width}").tobytes())


@pytest.fixture(params=["twins", "compiled"])
def _kernel(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "compiled" and not kernels.warm():
        pytest.skip("numba does not work here")
    if request.param == "twins":
        monkeypatch.setattr(kernels._loader, "chosen", kernels.reference)


def decoded(encoded: Encoded, element: Element, raw_bytes: int, base: bytes) -> bytes:
    out = memoryview(bytearray(raw_bytes))
    payload = memoryview(b"".join(map(bytes, encoded.payload)))
    assert len(payload) == encoded.size_bytes
    codes = encoded.transform, encoded.grouped, element
    used = memoryview(base) if encoded.uses_base else None
    codec.decode(*codes, payload, raw_bytes, used, out, viewed=encoded.viewed)
    return bytes(out)


@settings(max_examples=150, deadline=None)
@given(
    st.sampled_from(PAIRS),
    st.integers(0, 2**32),
    st.integers(1, 3000) | st.integers(33_000, 34_000),
    st.integers(0, 400),
    st.integers(0, 9),
    st.integers(0, 3),
)
def test_a_chunk_comes_back_from_any_window_of_any_base(
    pair: tuple[Element, Element], seed: int, count: int, first: int, behind_bytes: int, drift_bits: int
) -> None:
    held, element = pair
    base = patterns(seed, held, first + count) + bytes(behind_bytes)  # which need not hold whole words
    view, raw_bytes = View(held, first), count * element.width_bytes
    window = seen(memoryview(base), view, element, raw_bytes)
    assert bytes(window) == decode_pack.window(element, count, encode_view(view), base)
    words = np.frombuffer(bytes(window), f"<u{element.width_bytes}")
    drift = np.random.default_rng(seed).integers(0, 1 << drift_bits, count).astype(words.dtype)
    raw = (words + drift).tobytes()
    encoded = codec.encode(memoryview(raw), element, memoryview(base), None, view)
    assert encoded.viewed == encoded.uses_base
    assert encoded.size_bytes <= raw_bytes
    assert decoded(encoded, element, raw_bytes, base) == raw
    if not drift_bits and raw_bytes >= 1024:
        assert encoded.viewed
        assert encoded.size_bytes < 100


@pytest.mark.usefixtures("_kernel")
@pytest.mark.parametrize(("held", "element"), FLOATS, ids=lambda element: element.name)
def test_casts_are_what_the_document_says_word_by_word(held: Element, element: Element) -> None:
    words = np.arange(1 << 16, dtype="<u4")
    if held is Element.FP32:  # all that decides how a number rounds: its high half, and whether ties are met
        words = np.concatenate([(words << 16) + low for low in (0, 1, 0x0FFF, 0x1000, 0x1001, 0x7FFF, 0x8000, 0x8001)])
    base = words.astype(f"<u{held.width_bytes}").tobytes()
    found = seen(memoryview(base), View(held, 0), element, len(words) * element.width_bytes)
    assert bytes(found) == decode_pack.window(element, len(words), encode_view(View(held, 0)), base)


def test_what_is_seen_as_it_is_is_not_copied() -> None:
    base = memoryview(bytearray(range(100)))
    window = seen(base, View(Element.FP32, 3), Element.FP32, 20)
    base[12] = 255
    assert bytes(window) == bytes([255, *range(13, 32)])


VIEW = View(Element.FP32, 5)
RAW = np.arange(1000, dtype="<f4").tobytes()
BASE = np.arange(-5, 1010, dtype="<f4").tobytes()


@pytest.mark.parametrize(
    ("payload", "base"),
    {
        "no base": (encode_view(VIEW) + bytes(20), None),
        "a payload shorter than a view": (encode_view(VIEW)[:-1], BASE),
        "a base that ends too early": (encode_view(VIEW) + bytes(20), BASE[:4019]),
        "a first word far behind": (encode_view(View(Element.FP32, 2**32 - 1)) + bytes(20), BASE),
        "words that cannot be cast": (encode_view(View(Element.FP64, 0)) + bytes(20), BASE * 2),
        "integers": (encode_view(View(Element.INT32, 5)) + bytes(20), BASE),
        "words nobody knows": (b"\x09" + bytes(30), BASE),
        "what must be zero is not": (encode_view(VIEW)[:1] + b"\0\1\0" + encode_view(VIEW)[4:] + bytes(20), BASE),
        "nothing behind the view": (encode_view(VIEW), BASE),
    }.values(),
)
def test_what_is_no_view_of_this_base_is_refused(payload: bytes, base: bytes | None) -> None:
    out = memoryview(bytearray(len(RAW)))
    given = None if base is None else memoryview(base)
    with pytest.raises(Corrupt):
        codec.decode(Transform.DIFF, False, Element.FP32, memoryview(payload), len(RAW), given, out, viewed=True)
    assert bytes(out) == bytes(len(RAW))


@given(st.binary(max_size=40), st.sampled_from(list(Element)), st.integers(0, 64), st.binary(max_size=80))
def test_any_bytes_as_a_view(payload: bytes, element: Element, word_count: int, base: bytes) -> None:
    try:
        view, behind = split(memoryview(payload))
        window = seen(memoryview(base), view, element, word_count * element.width_bytes)
    except Corrupt:
        return
    assert (encode_view(view), bytes(behind)) == (payload[:VIEW_BYTES], payload[VIEW_BYTES:])
    assert len(window) == word_count * element.width_bytes


def test_a_base_that_does_not_hold_the_view_is_refused_before_anything_is_encoded() -> None:
    with pytest.raises(Corrupt, match="does not fit its base"):
        codec.encode(memoryview(RAW), Element.FP32, memoryview(BASE[:4000]), None, VIEW)


def test_a_delta_that_is_no_smaller_for_its_view_is_stored_otherwise() -> None:
    """The sample alone looks like the base: the delta is smaller than the chunk, but by less than a view takes."""
    random, found_count = np.random.default_rng(1), 0
    words, drift = (random.integers(0, 1 << 16, 131_072).astype("<u2") for _ in range(2))
    sampled = gathered(np.arange(len(words)))
    for share in range(190, 211):
        near = drift.copy()
        near[sampled[: len(sampled) * share // 1000]] = 0
        chunk, base = memoryview(words.tobytes()), memoryview((words ^ near).tobytes())
        plain = codec.encode(chunk, Element.INT16, base)
        if plain.uses_base and plain.size_bytes + VIEW_BYTES >= len(chunk):
            found_count += 1
            viewed = codec.encode(chunk, Element.INT16, base, None, View(Element.INT16, 0))
            assert viewed == codec.encode(chunk, Element.INT16)
            assert viewed.size_bytes == len(chunk)
    assert found_count > 0
