"""The kernel that decodes a chunk in one call: all that our kernels write, and never outside its memory."""

import ctypes
import mmap
import struct
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any, NamedTuple

import numpy as np
import pytest
import zstandard
from hypothesis import example, given, settings
from hypothesis import strategies as st

from store import codec, kernels
from store.codec import Transform
from store.errors import Corrupt
from store.format.dtypes import Element
from store.kernels import reference
from store.kernels.choosing import CODED, GROUPED, KEPT, MAPPING, MATCHED, PLAN_INTEGERS, PLANES
from store.kernels.estimating import NO_MAPPING, Candidates
from store.kernels.framing import BLOCK_BYTES
from store.kernels.mapping import COPY, DIFF, ORDERED_DIFF, ROTATE, XOR
from store.kernels.native import Native
from store.kernels.payloads import CODED_BODY, DECODED, ENTRY_BYTES, IS_GROUPED, UNKNOWN, payload_room
from store.kernels.scratch import ASIDE, BLOCK_WORDS, KINDS

WIDTHS = st.sampled_from([1, 2, 4, 8])
MAPPINGS = st.sampled_from([COPY, ROTATE, XOR, DIFF, ORDERED_DIFF])
CODES = st.sampled_from([KEPT, CODED, CODED, MATCHED, CODED | GROUPED, CODED | GROUPED, MATCHED | GROUPED])
EDGES = st.builds(lambda blocks, words: blocks * BLOCK_WORDS + words, st.integers(1, 4), st.integers(-1, 1))
COUNTS = (
    EDGES | st.integers(1, 400) | st.integers(1, 6000) | st.integers(60_000, 70_000) | st.integers(260_000, 270_000)
)
EXPONENT = 3, 15
GUARD = 0xA7
_NO_ACCESS = 0


@pytest.fixture(scope="module")
def compiled() -> Native:
    if not kernels.warm():
        pytest.skip("numba does not work here: nothing decodes at once")
    chosen = kernels.current(0)
    assert isinstance(chosen, Native)
    return chosen


class Chunk(NamedTuple):
    words: np.ndarray
    base: np.ndarray
    mapping: int
    payload: np.ndarray

    @property
    def grouped(self) -> bool:
        table = self.payload[: ENTRY_BYTES * self.words.itemsize : ENTRY_BYTES]
        return bool((table & IS_GROUPED).any())


def skewed(random: np.random.Generator, count: int) -> np.ndarray:
    """Bytes of which some are far more frequent than others, how much so drawn, in steps here and there."""
    symbols = int(random.choice([1, 2, 3, 9, 40, 129, 256]))
    shares = random.random(symbols) ** random.choice([0, 1, 8, 40, 150]) + 1e-9
    drawn = random.choice(symbols, count, p=shares / shares.sum()).astype(np.uint8)
    drawn[: count // 3] >>= np.uint8(random.integers(0, 8))
    return drawn + np.uint8(random.choice([0, random.integers(0, 257 - symbols)]))


def chunk_of(kernel: Native, width: int, count: int, seed: int, mapping: int, codes: list[int]) -> Chunk:
    random = np.random.default_rng(seed)
    planes = [skewed(random, count) for _ in range(width)]
    base = np.stack([skewed(random, count) for _ in range(width)], 1).copy().view(f"<u{width}").ravel()
    words = np.empty(count, base.dtype)
    keys, counts = np.empty(count, np.uint8), np.empty(256, np.int64)
    reference.exponent_keys(base, *EXPONENT, keys, counts)
    grouped = sum(1 << number for number in range(width) if codes[number] & GROUPED)
    # What is split again by the same mapping gives just those planes, so that they are as skewed as they are drawn.
    reference.join(tuple(planes), base, mapping, keys, np.cumsum(counts) - counts, grouped, words)
    plan = np.zeros(PLAN_INTEGERS, np.int64)
    plan[MAPPING], plan[PLANES : PLANES + width] = mapping, codes[:width]
    room = np.empty(payload_room(words.nbytes), np.uint8)
    size_bytes = kernel.encode(words, base, Candidates(mapping, (NO_MAPPING, NO_MAPPING), *EXPONENT), plan, room)
    return Chunk(words, base, mapping, room[:size_bytes])


def frames_in(payload: np.ndarray, width: int) -> Iterator[tuple[int, bytes]]:
    """Where frames lie, and what they are."""
    at = ENTRY_BYTES * width
    for (entry,) in struct.iter_unpack("<I", payload[:at].tobytes()):
        if entry & 3 == CODED_BODY:
            yield at, payload[at : at + (entry >> 3)].tobytes()
        at += entry >> 3


@settings(max_examples=100, deadline=None)
@given(WIDTHS, COUNTS, st.integers(0, 2**32), MAPPINGS, st.lists(CODES, min_size=8, max_size=8))
def test_whatever_our_kernels_write_is_decoded_at_once(
    compiled: Native, width: int, count: int, seed: int, mapping: int, codes: list[int]
) -> None:
    chunk = chunk_of(compiled, width, count, seed, mapping, codes)
    room = np.full(chunk.words.nbytes + 128, GUARD, np.uint8)
    head = 64 - room.ctypes.data % 64
    back = room[head : head + chunk.words.nbytes].view(chunk.words.dtype)
    for streamed in (False, True):
        back[:] = 0
        how = {"grouped": chunk.grouped, "streamed": streamed}
        assert compiled.decode(chunk.payload, chunk.base, mapping, EXPONENT, back, **how) == DECODED
        assert (back == chunk.words).all()
        assert (room[:head] == GUARD).all()
        assert (room[head + back.nbytes :] == GUARD).all()


def test_frames_of_every_kind_are_among_them(compiled: Native) -> None:
    blocks, descriptions = set(), set()
    for seed in range(60):
        chunk = chunk_of(compiled, 1, 2 * BLOCK_BYTES + 999, seed, COPY, [CODED | GROUPED if seed % 2 else CODED])
        for _, frame in frames_in(chunk.payload, 1):
            at, is_last = 9, 0
            while not is_last:
                head = int.from_bytes(frame[at : at + 3], "little")
                is_last, kind, size = head & 1, head >> 1 & 3, head >> 3
                literals = frame[at + 3] & 3 if kind == 2 else None
                blocks.add((kind, literals))
                if literals == 2:
                    descriptions.add(frame[at + 8] >= 128)
                at += 3 + (1 if kind == 1 else size)
    assert blocks == {(0, None), (1, None), (2, 2), (2, 3)}
    assert descriptions == {False, True}


# --- damage ---------------------------------------------------------------------------------------------------------


@contextmanager
def using(kernel: Any) -> Iterator[None]:
    before, kernels._loader.chosen = kernels._loader.chosen, kernel
    try:
        yield
    finally:
        kernels._loader.chosen = before


def outcome(kernel: Any, transform: Transform, grouped: bool, chunk: Chunk, payload: bytes) -> object:
    out = memoryview(bytearray(chunk.words.nbytes))
    element = {1: Element.FP8, 2: Element.BF16, 4: Element.FP32, 8: Element.FP64}[chunk.words.itemsize]
    base = memoryview(chunk.base.tobytes()) if transform.needs_base else None
    try:
        with using(kernel):
            codec.decode(transform, grouped, element, memoryview(payload), len(out), base, out)
    except Corrupt as error:
        return str(error)
    return bytes(out)


DAMAGE = st.lists(st.tuples(st.floats(0, 1, exclude_max=True), st.integers(1, 255)), min_size=0, max_size=3)


def damaged(payload: np.ndarray, width: int, flips: list[tuple[float, int]], kept: float, heads_only: bool) -> bytes:
    """Some bytes altered, near where the table or a frame begins if wanted; and the end cut off."""
    whole = bytearray(payload.tobytes())
    starts = [0, *(at for at, _ in frames_in(payload, width))]
    for place, change in flips:
        at = int(place * len(whole))
        if heads_only:
            at = min(len(whole) - 1, starts[at % len(starts)] + int(place * 1000) % 40)
        whole[at] ^= change
    return bytes(whole[: max(1, int(kept * len(whole)))])


@settings(max_examples=200, deadline=None)
@given(
    WIDTHS,
    st.integers(1, 400) | st.integers(60_000, 70_000),
    st.integers(0, 2**32),
    st.sampled_from([Transform.PLANES, Transform.XOR, Transform.DIFF]),
    st.lists(CODES, min_size=8, max_size=8),
    DAMAGE,
    st.sampled_from([1.0, 1.0, 1.0, 0.99, 0.5]),
    st.booleans(),
)
@example(1, 300, 1, Transform.PLANES, [CODED] * 8, [], 1.0, False)
def test_damage_has_the_same_outcome_as_in_steps(
    compiled: Native,
    width: int,
    count: int,
    seed: int,
    transform: Transform,
    codes: list[int],
    flips: list[tuple[float, int]],
    kept: float,
    heads_only: bool,
) -> None:
    mapping = {Transform.PLANES: ROTATE, Transform.XOR: XOR, Transform.DIFF: ORDERED_DIFF}[transform]
    if not transform.needs_base:
        codes = [code & ~GROUPED for code in codes]
    chunk = chunk_of(compiled, width, count, seed, mapping, codes)
    payload = damaged(chunk.payload, width, flips, kept, heads_only)
    arguments = (transform, chunk.grouped, chunk, payload)
    assert outcome(compiled, *arguments) == outcome(reference, *arguments)


class Fenced:
    """Memory with pages before and behind it that nobody may touch."""

    def __init__(self, size_bytes: int) -> None:
        page = mmap.PAGESIZE
        self._room_bytes = -(-max(1, size_bytes) // page) * page
        self._map = mmap.mmap(-1, self._room_bytes + 2 * page)
        self._start = ctypes.addressof(ctypes.c_char.from_buffer(self._map)) + page
        protect = ctypes.CDLL(None, use_errno=True).mprotect
        for fence in (self._start - page, self._start + self._room_bytes):
            assert protect(ctypes.c_void_p(fence), ctypes.c_size_t(page), _NO_ACCESS) == 0

    def filled(self, data: bytes, *, at_end: bool) -> int:
        """Put data at one end, and say where it begins."""
        at = self._start + (self._room_bytes - len(data) if at_end else 0)
        ctypes.memmove(at, data, len(data))
        return at


@settings(max_examples=150, deadline=None)
@given(
    WIDTHS,
    EDGES | st.integers(1, 400) | st.integers(60_000, 70_000),
    st.integers(0, 2**32),
    st.lists(CODES, min_size=8, max_size=8),
    DAMAGE,
    st.sampled_from([1.0, 1.0, 0.99, 0.5]),
    st.booleans(),
    st.booleans(),
)
def test_nothing_outside_is_read_or_written(
    compiled: Native,
    width: int,
    count: int,
    seed: int,
    codes: list[int],
    flips: list[tuple[float, int]],
    kept: float,
    heads_only: bool,
    at_end: bool,
) -> None:
    chunk = chunk_of(compiled, width, count, seed, XOR, codes)
    payload = damaged(chunk.payload, width, flips, kept, heads_only)
    fenced = Fenced(len(payload))
    at = fenced.filled(payload, at_end=at_end)
    out, keys = np.full(width * count + 64, GUARD, np.uint8), np.full(count + 64, GUARD, np.uint8)
    planes = np.full((width, count + 128), GUARD, np.uint8)
    scratch = {number: np.zeros(size + 64, kind) for number, (kind, size) in KINDS.items()}
    for array in scratch.values():
        array[-64:] = 77
    places = (ctypes.c_void_p * len(KINDS))(*(scratch[number].ctypes.data for number in range(len(KINDS))))
    rooms = (ctypes.c_void_p * 16)()
    for number, plane in enumerate(planes):
        rooms[ASIDE + number] = plane.ctypes.data + 64
    call = compiled._functions["decode", 1]
    done = call(
        at,
        len(payload),
        chunk.base.ctypes.data,
        width,
        count,
        XOR,
        chunk.grouped,
        *EXPONENT,
        0,
        out.ctypes.data,
        keys.ctypes.data,
        rooms,
        places,
    )
    assert (planes[:, :64] == GUARD).all()
    assert (planes[:, -64:] == GUARD).all()
    assert (out[width * count :] == GUARD).all()
    assert (keys[count:] == GUARD).all()
    assert all((array[-64:] == 77).all() for array in scratch.values())
    if done != DECODED:
        assert (out == GUARD).all()
    elif not flips and kept == 1:
        assert out[: width * count].tobytes() == chunk.words.tobytes()


# --- what others write ----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("is_checked", [False, True], ids=["matched", "with a checksum"])
def test_frames_of_others_are_left_to_others(compiled: Native, is_checked: bool) -> None:
    plane = np.random.default_rng(1).choice([1, 2, 3, 200], 5000).astype(np.uint8)
    frame = zstandard.ZstdCompressor(level=3, write_checksum=is_checked).compress(plane.tobytes())
    payload = struct.pack("<I", CODED_BODY | len(frame) << 3) + frame
    out = np.full(plane.size, GUARD, np.uint8)
    stored = np.frombuffer(payload, np.uint8)
    assert compiled.decode(stored, plane, COPY, (0, 0), out, grouped=False, streamed=False) == UNKNOWN
    assert (out == GUARD).all()
    assert outcome(compiled, Transform.PLANES, False, Chunk(plane, plane, ROTATE, plane), payload) == bytes(
        (plane >> 1) | (plane << 7)
    )
