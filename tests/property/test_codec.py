"""The codec gives back what it was given, never grows a chunk, and survives any payload."""

import struct
from contextlib import suppress
from pathlib import Path

import numpy as np
import pytest
import zstandard
from hypothesis import assume, given, settings
from hypothesis import strategies as st

from store import codec
from store.codec import Transform
from store.codec.payload import Coding, mapping_of
from store.codec.words import NO_CURSORS, NO_KEYS, words_of
from store.errors import Corrupt, Incompatible
from store.format.dtypes import Element
from store.format.whole import compress
from store.kernels import reference
from store.kernels.payloads import IS_GROUPED, entry_of
from store.memory import Room
from tests.vectors import plain_codec

ELEMENTS = st.sampled_from(list(Element))


def pack(columns: int, planes: list[tuple[Coding, bool, bytes]]) -> bytes:
    """A payload: how each plane is held, whether it is in group order, and its body."""
    entries = [entry_of(coding, IS_GROUPED if grouped else 0, len(body)) for coding, grouped, body in planes]
    head = struct.pack("<I", columns) if columns else b""
    return b"".join((head, struct.pack(f"<{len(entries)}I", *entries), *(body for _, _, body in planes)))


def round_trip(raw: bytes, element: Element, base: bytes | None = None) -> codec.Encoded:
    view = memoryview(raw)
    encoded = codec.encode(view, element, None if base is None else memoryview(base))
    payload = b"".join(encoded.payload)
    assert encoded.size_bytes == len(payload) <= len(raw)
    used = base if encoded.uses_base else None
    out = memoryview(bytearray(len(raw)))
    codec.decode(
        encoded.transform, encoded.grouped, element, memoryview(payload), len(raw), used and memoryview(used), out
    )
    assert bytes(out) == raw
    if len(raw) < 2500:  # it is slow
        assert plain_codec.decode(encoded.transform, encoded.grouped, element, payload, len(raw), used) == raw
    return encoded


@settings(max_examples=150, deadline=None)
@given(st.binary(max_size=600), st.sampled_from([1, 3, 8]), ELEMENTS, st.binary(max_size=600), st.booleans())
def test_any_bytes_come_back(raw: bytes, times: int, element: Element, base: bytes, same_length: bool) -> None:
    raw *= times
    if same_length:
        base = (base * (len(raw) // max(1, len(base)) + 1))[: len(raw)] if base else bytes(len(raw))
    round_trip(raw, element, base)


def matrix(element: Element, random: np.random.Generator, rows: int, columns: int) -> np.ndarray:
    scale = np.exp2(random.integers(-12, 0, rows))[:, None] * np.exp2(random.integers(-12, 0, columns))
    bits = (random.standard_normal((rows, columns)) * scale).astype("<f4").view("<u4").astype(np.uint64).ravel()
    width = element.width_bytes
    return (bits >> np.uint64(8 * max(0, 4 - width)) << np.uint64(8 * max(0, width - 4))).astype(f"<u{width}")


@settings(max_examples=25, deadline=None)
@given(ELEMENTS, st.integers(0, 2**32), st.integers(50, 200), st.integers(250, 400), st.integers(0, 3))
def test_matrices_come_back(element: Element, seed: int, rows: int, columns: int, drift_bits: int) -> None:
    random = np.random.default_rng(seed)
    base = matrix(element, random, rows, columns)
    drift = random.integers(0, 1 << drift_bits, base.size).astype(base.dtype)
    round_trip((base + drift).tobytes(), element, base.tobytes() if drift_bits else None)


@pytest.mark.parametrize("element", [Element.FP32, Element.BF16], ids=lambda element: element.name)
@pytest.mark.parametrize("share", [0.01, 0.05, 0.1, 0.3])
@pytest.mark.parametrize("has_base", [True, False])
def test_few_rows_of_a_table_take_what_these_rows_take(element: Element, share: float, has_base: bool) -> None:
    """A code would take a bit for each byte of all others: an eighth of the chunk, however few rows have changed."""
    random, columns = np.random.default_rng(0), 512 // element.width_bytes
    base = random.integers(0, 1 << 8 * element.width_bytes, (2000, columns)).astype(f"<u{element.width_bytes}")
    if not has_base:
        base[:] = 0
    table, changed = base.copy(), random.permutation(len(base))[: int(share * len(base))]
    table[changed] ^= random.integers(0, 1 << 8 * element.width_bytes, (len(changed), columns)).astype(base.dtype)
    encoded = round_trip(table.tobytes(), element, base.tobytes() if has_base else None)
    assert encoded.size_bytes <= (1.05 * share + 0.002) * table.nbytes


@pytest.mark.parametrize("element", [Element.BF16, Element.FP16], ids=lambda element: element.name)
@pytest.mark.parametrize("base_kind", ["none", "same values moved", "reversed", "zero"])
def test_a10_every_16_bit_pattern_is_bit_identical(element: Element, base_kind: str) -> None:
    patterns = np.arange(65536, dtype="<u2")
    base = {
        "none": None,
        "same values moved": (patterns + np.uint16(3)).tobytes(),
        "reversed": patterns[::-1].tobytes(),
        "zero": bytes(131072),
    }[base_kind]
    for order in (patterns, np.random.default_rng(0).permutation(patterns)):
        round_trip(order.tobytes(), element, base)


SPECIAL = {
    Element.FP32: [
        0x7F800001,
        0xFFBFFFFF,
        0x7FC00000,
        0x80000000,
        0,
        1,
        0x807FFFFF,
        0x7F800000,
        0xFF800000,
        0x3F800000,
    ],
    Element.FP64: [0x7FF0000000000001, 0xFFF7FFFFFFFFFFFF, 1 << 63, 0, 1, 0x800FFFFFFFFFFFFF, 0x7FF << 52, 0xFFF << 52],
}


@pytest.mark.parametrize("element", list(SPECIAL), ids=lambda element: element.name)
@pytest.mark.parametrize("transform", [Transform.PLANES, Transform.XOR, Transform.DIFF], ids=lambda code: code.name)
def test_a10_signalling_nans_negative_zero_and_denormals(element: Element, transform: Transform) -> None:
    values = np.array(SPECIAL[element] * 40, f"<u{element.width_bytes}")
    base = np.random.default_rng(1).permutation(values)
    raw = values.tobytes()
    round_trip(raw, element)
    encoded = forced(transform, element, raw, base.tobytes())
    out = memoryview(bytearray(len(raw)))
    used = memoryview(base.tobytes()) if transform.needs_base else None
    codec.decode(transform, False, element, memoryview(encoded), len(raw), used, out)
    assert bytes(out) == raw


def forced(transform: Transform, element: Element, raw: bytes, base: bytes) -> bytes:
    """A payload of raw planes under a transform that sampling might not have chosen."""
    words, base_words = words_of(raw, element), words_of(base, element)
    planes = tuple(np.empty((element.width_bytes, len(words)), np.uint8))
    reference.split(words, base_words, mapping_of(transform, element), NO_KEYS, NO_CURSORS, 0, planes)
    return pack(0, [(Coding.RAW, False, plane.tobytes()) for plane in planes])


@settings(max_examples=300, deadline=None)
@given(
    st.integers(0, 6), st.booleans(), ELEMENTS, st.binary(max_size=200), st.integers(0, 64), st.booleans(), st.data()
)
def test_hostile_payloads_raise_only_our_errors(
    transform: int, grouped: bool, element: Element, payload: bytes, raw_bytes: int, has_base: bool, data: st.DataObject
) -> None:
    base = memoryview(data.draw(st.binary(min_size=raw_bytes, max_size=raw_bytes))) if has_base else None
    out = memoryview(bytearray(raw_bytes))
    with suppress(Corrupt, Incompatible):
        codec.decode(transform, grouped, element, memoryview(payload), raw_bytes, base, out)


@settings(max_examples=200, deadline=None)
@given(st.data())
def test_damaged_payloads_raise_only_our_errors(data: st.DataObject) -> None:
    element, has_base = data.draw(ELEMENTS), data.draw(st.booleans())
    random = np.random.default_rng(3)
    base = matrix(element, random, 160, 256).tobytes()
    raw = (np.frombuffer(base, f"<u{element.width_bytes}") + np.array(1, f"<u{element.width_bytes}")).tobytes()
    encoded = codec.encode(memoryview(raw), element, memoryview(base) if has_base else None)
    payload = bytearray(b"".join(encoded.payload))
    assume(payload)
    for _ in range(data.draw(st.integers(1, 3))):
        payload[data.draw(st.one_of(st.integers(0, 40), st.integers(0, len(payload) - 1))) % len(payload)] ^= 1 << (
            data.draw(st.integers(0, 7))
        )
    out = memoryview(bytearray(len(raw)))
    used = memoryview(base) if encoded.uses_base else None
    with suppress(Corrupt, Incompatible):
        codec.decode(encoded.transform, encoded.grouped, element, memoryview(payload), len(raw), used, out)


def test_a_room_is_used_again_and_memory_of_its_own_is_not() -> None:
    random = np.random.default_rng(8)
    chunks = [memoryview(as_words(random.standard_normal(9000), Element.FP32)) for _ in range(2)]
    room = Room()
    payloads = [codec.encode(chunk, Element.FP32, room=room).payload for chunk in chunks]
    alone = [b"".join(codec.encode(chunk, Element.FP32).payload) for chunk in chunks]
    assert b"".join(payloads[1]) == alone[1]
    assert b"".join(payloads[0]) != alone[0]
    kept = [codec.encode(chunk, Element.FP32).payload for chunk in chunks]
    assert [b"".join(payload) for payload in kept] == alone


def test_text_is_matched_and_noise_stays_raw() -> None:
    text = Path(__file__).read_bytes() * 20
    assert round_trip(text, Element.INT8).transform == Transform.ZSTD
    noise = np.random.default_rng(0).bytes(100_000)
    encoded = codec.encode(memoryview(noise), Element.FP32)
    assert encoded.transform == Transform.RAW
    assert encoded.payload[0].obj is noise


@pytest.mark.parametrize("element", list(Element), ids=lambda element: element.name)
def test_constants_cost_next_to_nothing(element: Element) -> None:
    word = bytes(range(1, element.width_bytes + 1))
    assert round_trip(word * 50_000, element).size_bytes <= 64


def test_one_word_that_differs_is_never_lost_to_sampling() -> None:
    words = np.zeros(300_000, "<u4")
    words[123_457] = 0xDEADBEEF
    assert round_trip(words.tobytes(), Element.FP32).size_bytes < 500


def as_words(values: np.ndarray, element: Element) -> bytes:
    """FP32 values cut down to the element's upper bytes."""
    return (
        (values.astype("<f4").view("<u4") >> (32 - 8 * element.width_bytes))
        .astype(f"<u{element.width_bytes}")
        .tobytes()
    )


@pytest.mark.parametrize(("element", "is_grouped"), [(Element.BF16, True), (Element.FP32, False)])
def test_small_steps_are_stored_as_differences_and_those_of_short_words_grouped(
    element: Element, is_grouped: bool
) -> None:
    random = np.random.default_rng(5)
    base = random.standard_normal(200_000)
    moved = as_words(base + 1e-3 * random.standard_normal(base.size), element)
    encoded = round_trip(moved, element, as_words(base, element))
    assert (encoded.transform, encoded.grouped) == (Transform.DIFF, is_grouped)
    assert encoded.size_bytes < 0.8 * len(moved)
    unrelated = as_words(random.standard_normal(base.size), element)
    assert not round_trip(unrelated, element, as_words(base, element)).uses_base


@pytest.mark.parametrize("element", [Element.FP8, Element.BF16], ids=lambda element: element.name)
def test_a_decoder_written_from_the_document_reads_groups(element: Element) -> None:
    random = np.random.default_rng(4)
    old = matrix(element, random, 600, 440)
    first_bit = element.exponent_bits[0] + 1
    moves = (old >> old.dtype.type(first_bit)) & 1  # some groups of the base move, others do not
    new = old + moves.astype(old.dtype) * random.integers(0, 200, old.size).astype(old.dtype)
    base = old.tobytes()
    encoded = codec.encode(memoryview(new.tobytes()), element, memoryview(base))
    assert (encoded.grouped, encoded.uses_base) == (True, True)
    payload = b"".join(encoded.payload)
    decoded = plain_codec.decode(encoded.transform, True, element, payload, new.nbytes, base)
    assert decoded == new.tobytes()


@pytest.mark.parametrize("element", [Element.BF16, Element.FP32], ids=lambda element: element.name)
def test_groups_by_row_and_column_are_read_though_no_longer_written(element: Element) -> None:
    columns = 300
    words = matrix(element, np.random.default_rng(6), 400, columns)
    codes = np.random.default_rng(7).integers(0, 250, 400 + columns).astype(np.uint8)
    keys, counts = np.empty(words.size, np.uint8), np.empty(256, np.int64)
    reference.context_keys(codes, columns, keys, counts)
    planes = tuple(np.empty((element.width_bytes, words.size), np.uint8))
    grouped = 1 << (element.width_bytes - 1)
    mapping = mapping_of(Transform.PLANES, element)
    reference.split(words, words, mapping, keys, np.cumsum(counts) - counts, grouped, planes)
    bodies = [(Coding.ZSTD, number == len(planes) - 1, compress(plane.data)) for number, plane in enumerate(planes)]
    payload = pack(columns, [*bodies, (Coding.RAW, False, codes.tobytes())])
    out = memoryview(bytearray(words.nbytes))
    codec.decode(Transform.PLANES, True, element, memoryview(payload), words.nbytes, None, out)
    assert bytes(out) == words.tobytes()


@pytest.mark.parametrize("fault", ["longer", "cut short", "bytes behind", "another frame behind", "no last block"])
def test_a_plane_is_one_whole_frame_of_its_length(fault: str) -> None:
    plane = bytes(range(16)) * 100
    frame = compress(plane)
    stream = zstandard.ZstdCompressor().compressobj(size=len(plane))
    unfinished = stream.compress(plane) + stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK)
    damaged = {
        "longer": compress(plane + b"x"),
        "cut short": frame[:-3],
        "bytes behind": frame + b"x",
        "another frame behind": frame + compress(b""),
        "no last block": unfinished,
    }[fault]
    payload = pack(0, [(Coding.ZSTD, False, damaged)])
    with pytest.raises(Corrupt):
        codec.decode(
            Transform.PLANES, False, Element.INT8, memoryview(payload), 1600, None, memoryview(bytearray(1600))
        )
