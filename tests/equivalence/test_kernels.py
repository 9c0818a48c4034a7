"""Compiled kernels and their NumPy twins: same results for the same arguments, and the same encodings with them."""

import struct
import tracemalloc
from typing import Any

import numpy as np
import pytest
import zstandard
from hypothesis import given, settings
from hypothesis import strategies as st

from store import codec, kernels
from store.codec import decoding, frames
from store.codec.payload import Coding, unpack
from store.errors import Corrupt
from store.format.dtypes import Element
from store.kernels import exercise, reference
from store.kernels.choosing import CODED, GROUPED, KEPT, MAPPING, MATCHED, PLAN_INTEGERS, PLANES
from store.kernels.estimating import NO_MAPPING, Candidates, Runs
from store.kernels.framing import BLOCK_BYTES, compress, frame_room
from store.kernels.mapping import COPY, DIFF, ORDERED_DIFF, ROTATE, XOR
from store.kernels.payloads import CODED_BODY, ENTRY_BYTES, IS_GROUPED, entry_of, payload_room

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
    return values.astype(f"<u{width}")


def results_of(
    kernel: kernels.Kernels, width: int, count: int, mapping: int, grouped: int, columns: int
) -> list[bytes]:
    base = words(width, count, 2)
    keys, counts = np.empty(count, np.uint8), np.empty(256, np.int64)
    codes = words(1, -(-count // columns) + columns, 3)
    kernel.context_keys(codes, columns, keys, counts)
    results = [keys.copy(), counts.copy()]
    kernel.exponent_keys(base, 8 * width - 7, 31, keys, counts)
    planes, back = tuple(words(1, count, 4 + number) for number in range(width)), np.empty(count, base.dtype)
    kernel.join(planes, base, mapping, keys, np.cumsum(counts) - counts, grouped, back)
    return [result.tobytes() for result in (*results, keys, counts, back)]


@settings(max_examples=120, deadline=None)
@given(WIDTHS, st.integers(1, 3000), MAPPINGS, st.integers(0, 255), st.integers(1, 400))
def test_kernels_that_decode_equal_their_twins(
    compiled: kernels.Kernels, width: int, count: int, mapping: int, grouped: int, columns: int
) -> None:
    arguments = (width, count, mapping, grouped % (1 << width), min(columns, count))
    assert results_of(compiled, *arguments) == results_of(reference, *arguments)


def chosen(
    kernel: kernels.Kernels, current: np.ndarray, base: np.ndarray, candidates: Candidates, spacing: int
) -> list[int]:
    run_words = min(current.size, 40)
    runs = Runs(run_words + spacing, run_words, min(100, (current.size - run_words) // (run_words + spacing) + 1))
    plan = np.zeros(PLAN_INTEGERS, np.int64)
    kernel.choose(current, base, 3 * current.size, runs, candidates, plan)
    return plan[: PLANES + current.itemsize].tolist()


@settings(max_examples=120, deadline=None)
@given(
    WIDTHS,
    st.integers(1, 50_000),
    st.integers(0, 2**32),
    st.sampled_from([COPY, ROTATE, NO_MAPPING]),
    st.tuples(st.sampled_from([DIFF, ORDERED_DIFF]), st.sampled_from([XOR, NO_MAPPING])),
    st.sampled_from([0, 7, 31]),
    st.integers(1, 400),
)
def test_choices_equal_their_twins(
    compiled: kernels.Kernels,
    width: int,
    count: int,
    seed: int,
    plain: int,
    deltas: tuple[int, int],
    mask: int,
    spacing: int,
) -> None:
    base = words(width, count, seed)
    current = base + words(width, count, seed + 1) % base.dtype.type(1 + seed % 200)
    arguments = (current, base, Candidates(plain, deltas, 8 * width - 7, mask), spacing)
    assert chosen(compiled, *arguments) == chosen(reference, *arguments)


def test_there_are_inputs_that_make_each_choice() -> None:
    base = words(2, 40_000, 1)
    near, far = (
        base ^ words(2, 40_000, 2) % np.uint16(3),
        np.random.default_rng(3).integers(0, 2**16, 40_000, np.uint16),
    )
    candidates = Candidates(ROTATE, (DIFF, XOR), 9, 31)
    plans = [chosen(reference, current, base, candidates, 300) for current in (near, base + np.uint16(2), far)]
    assert {plan[0] for plan in plans} == {XOR, DIFF, ROTATE}
    assert {CODED, MATCHED, KEPT} <= {code & ~GROUPED for plan in plans for code in plan[PLANES:]}


def encoded(
    kernel: kernels.Kernels, current: np.ndarray, base: np.ndarray, mapping: int, codes: list[int], mask: int
) -> bytes:
    candidates = Candidates(mapping, (NO_MAPPING, NO_MAPPING), 8 * current.itemsize - 7, mask)
    plan = np.zeros(PLAN_INTEGERS, np.int64)
    plan[MAPPING], plan[PLANES : PLANES + current.itemsize] = mapping, codes
    room = np.full(payload_room(current.nbytes) + 8, 0xAA, np.uint8)
    size_bytes = kernel.encode(current, base, candidates, plan, room[:-8])
    assert (room[-8:] == 0xAA).all()
    return room[:size_bytes].tobytes()


CODES = st.sampled_from([KEPT, CODED, MATCHED, CODED | GROUPED, MATCHED | GROUPED])


@settings(max_examples=150, deadline=None)
@given(
    WIDTHS,
    st.integers(1, 3000) | st.integers(30_000, 70_000),
    st.integers(0, 2**32),
    MAPPINGS,
    st.lists(CODES, min_size=8, max_size=8),
    st.sampled_from([1, 7, 31]),
)
def test_payloads_equal_their_twins(
    compiled: kernels.Kernels, width: int, count: int, seed: int, mapping: int, codes: list[int], mask: int
) -> None:
    current, base = words(width, count, seed), words(width, count, seed + 1)
    if seed % 3 == 0:
        current[:] = current[0]  # planes that turn out constant, whatever was planned
    arguments = (current, base, mapping, codes[:width], mask)
    assert encoded(compiled, *arguments) == encoded(reference, *arguments)


class Shared(np.ndarray):
    """Words of which another target has a part, decoded already: whoever writes them anew must not alter them."""

    def __setitem__(self, where: Any, value: Any) -> None:
        before = self.tobytes()
        super().__setitem__(where, value)
        assert self.tobytes() == before


@pytest.mark.parametrize("mapping", [COPY, ROTATE, XOR, DIFF, ORDERED_DIFF])
def test_twins_write_only_final_words_for_targets_may_overlap(mapping: int) -> None:
    current, base = words(4, 40_000, 1), words(4, 40_000, 2)
    keys, counts = np.empty(len(current), np.uint8), np.empty(256, np.int64)
    reference.exponent_keys(base, 25, 31, keys, counts)
    starts = np.cumsum(counts) - counts
    planes = tuple(np.empty((4, len(current)), np.uint8))
    reference.split(current, base, mapping, keys, starts.copy(), 0b1001, planes)
    reference.join(planes, base, mapping, keys, starts, 0b1001, current.copy().view(Shared))


def skewed(kind: int, count: int, seed: int) -> np.ndarray:
    """Bytes of many distributions: bells, tails, steps, mostly one, words of text."""
    random = np.random.default_rng(seed)
    numbers = {
        0: lambda: random.normal(random.integers(0, 256), 2 ** random.uniform(-2, 6), count),
        1: lambda: random.geometric(2 ** -random.uniform(0, 6), count),
        2: lambda: random.integers(0, random.integers(1, 257), count),
        3: lambda: np.where(random.random(count) < 2 ** -random.uniform(0, 12), random.integers(0, 256, count), 7),
        4: lambda: np.minimum(random.zipf(1 + random.uniform(0.1, 3), count), 255),
        5: lambda: np.minimum(2.0 ** random.integers(0, 12, count), 255),
    }[kind]()
    return (np.asarray(numbers).astype(np.int64) % 256).astype(np.uint8)


@settings(max_examples=150, deadline=None)
@given(
    st.integers(0, 5),
    st.integers(1, 5000) | st.integers(BLOCK_BYTES - 100, BLOCK_BYTES + 100) | st.integers(1, 4 * BLOCK_BYTES),
    st.integers(0, 2**32),
    st.lists(st.integers(0, 3), min_size=1, max_size=8),
)
def test_frames_equal_their_twins_and_any_zstd_reads_them(
    compiled: kernels.Kernels, kind: int, count: int, seed: int, groups: list[int]
) -> None:
    plane = skewed(kind, count, seed)
    base = np.resize(np.array(groups, np.uint8) << 1, count)  # the key is above the lowest bit
    for code in (CODED, CODED | GROUPED):
        payload = encoded(compiled, plane, base, COPY, [code], 3)
        assert payload == encoded(reference, plane, base, COPY, [code], 3)
        (entry,), body = struct.unpack_from("<I", payload), payload[ENTRY_BYTES:]
        assert entry >> 3 == len(body) <= count
        if entry & 3 == CODED_BODY:
            order = np.argsort(base, kind="stable") if code & GROUPED else np.arange(count)
            plain = zstandard.ZstdDecompressor().decompress(body, allow_extra_data=False)
            assert plain == plane[order].tobytes()
            assert zstandard.frame_content_size(body) == count


@pytest.mark.parametrize("spread", [1, 3, 10, 30])
def test_frames_are_as_small_as_zstds_own(spread: float) -> None:
    plane = np.random.default_rng(1).normal(100, spread, 100_000).astype(np.uint8)
    theirs = zstandard.ZstdCompressor(level=1).compress(plane.tobytes())
    room = np.empty(frame_room(plane.size), np.uint8)
    assert compress(plane, np.array([plane.size]), room) <= 1.003 * len(theirs)


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
        encodings.append(codec.encode(raw, element, base if has_base else None))
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


@pytest.mark.parametrize("offset", [0, 1], ids=["aligned", "odd address"])
def test_memory_at_any_address_comes_back(compiled: kernels.Kernels, offset: int) -> None:
    for element in Element:
        raw, base = drifting(element, 128 * 1024 * element.width_bytes, 8)
        raw, base = memoryview(b"x" * offset + raw)[offset:], memoryview(bytearray(b"x" * offset + base))[offset:]
        for other in (base, None):
            encoded = codec.encode(raw, element, other)
            out = memoryview(bytearray(offset + len(raw)))[offset:]
            payload = memoryview(bytearray(b"".join(encoded.payload)))
            used = other if encoded.uses_base else None
            codec.decode(encoded.transform, encoded.grouped, element, payload, len(raw), used, out)
            assert out == raw


def with_frames_of_zstd(payload: bytes, planes: list[bytes], others: set[int]) -> bytes:
    """A payload in which zstd compressed some of the planes."""
    entries = list(struct.unpack_from(f"<{len(planes)}I", payload))
    at, bodies = ENTRY_BYTES * len(planes), []
    for number, entry in enumerate(entries):
        body, at = payload[at : at + (entry >> 3)], at + (entry >> 3)
        if number in others:
            body = zstandard.ZstdCompressor(level=3).compress(planes[number])
            entries[number] = entry_of(CODED_BODY, entry & IS_GROUPED, len(body))
        bodies.append(body)
    return struct.pack(f"<{len(planes)}I", *entries) + b"".join(bodies)


def raw_planes(payload: bytes, width: int, count: int) -> list[bytes]:
    _, stored = unpack(memoryview(payload), width, has_context=False)
    found = []
    for plane in stored:
        room = np.zeros(count, np.uint8)
        if plane.coding == Coding.ZSTD:
            frames.restore(memoryview(plane.body[0]), room)
        else:
            room[:] = np.frombuffer(plane.body[0], np.uint8)
        found.append(room.tobytes())
    return found


@pytest.mark.parametrize("element", [Element.FP16, Element.FP32, Element.FP64], ids=lambda element: element.name)
def test_planes_that_zstd_compressed_are_restored_and_all_else_is_decoded_at_once(
    compiled: kernels.Kernels, element: Element, monkeypatch: pytest.MonkeyPatch
) -> None:
    """One with long repeats comes beside one that a kernel coded, in most deltas of bfloat16."""
    width, raw, base = element.width_bytes, *drifting(element, 64 * 1024 * element.width_bytes, 9)
    monkeypatch.setattr(kernels._loader, "chosen", compiled)
    monkeypatch.delattr(decoding, "_decode_in_steps")
    encoded = codec.encode(raw, element, base)
    assert encoded.uses_base
    payload = b"".join(encoded.payload)
    planes = raw_planes(payload, width, len(raw) // width)
    for others in (set[int](), {0}, {width - 1}, {0, width - 1}, set(range(width))):
        other = with_frames_of_zstd(payload, planes, others)
        assert (other != payload) == bool(others)
        out = memoryview(bytearray(len(raw)))
        codec.decode(encoded.transform, encoded.grouped, element, memoryview(other), len(raw), base, out)
        assert out == raw


def test_a_plane_of_zstd_that_is_damaged_is_refused_and_nothing_is_written(compiled: kernels.Kernels) -> None:
    raw, base = drifting(Element.FP32, 256 * 1024, 10)
    encoded = codec.encode(raw, Element.FP32, base)
    payload = b"".join(encoded.payload)
    planes = raw_planes(payload, 4, len(raw) // 4)
    for damaged in (planes[3][:-1], planes[3] + b"\0"):
        other = with_frames_of_zstd(payload, [*planes[:3], damaged], {3})
        out = memoryview(bytearray(len(raw)))
        with pytest.raises(Corrupt, match="byte plane"):
            codec.decode(encoded.transform, encoded.grouped, Element.FP32, memoryview(other), len(raw), base, out)
        assert out == bytes(len(raw))


def test_exercise_reaches_every_mapping_and_width() -> None:
    assert sum(result.nbytes for result in exercise.exercise(reference)) > 2600 * sum((1, 2, 4, 8)) * 5 * 4


def test_exercise_holds_no_more_than_a_result_at_a_time() -> None:
    tracemalloc.start()
    try:
        total_bytes = sum(result.nbytes for result in exercise.exercise(reference))
        _, peak_bytes = tracemalloc.get_traced_memory()
    finally:
        tracemalloc.stop()
    assert peak_bytes < total_bytes
