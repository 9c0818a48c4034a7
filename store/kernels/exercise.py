"""Call every kernel with every kind of argument the codec will ever give it, so that twins can be compared."""

from collections.abc import Iterator
from typing import TYPE_CHECKING

import numpy as np

from . import casting
from .choosing import CODED, GROUPED, KEPT, MAPPING, MATCHED, PLAN_INTEGERS, PLANES
from .estimating import NO_MAPPING, Candidates, Runs
from .interface import WIDTHS
from .mapping import COPY, DIFF, ORDERED_DIFF, ROTATE, XOR, Counts, Words
from .payloads import DECODED, ENTRY_BYTES, IS_GROUPED, payload_room
from .reference import KEYS, STREAM_LINE_BYTES

if TYPE_CHECKING:
    from . import Kernels

_WORD_COUNT = 2600
"""More than two blocks of the compiled kernels, the last one short."""

_COLUMNS = 48
_RUNS = Runs(stride=131, run_words=31, run_count=19)


def exercise(kernels: "Kernels") -> Iterator[Words]:
    """Run every kernel on a fixed input; what each gives is the same for all twins.

    One result at a time: 3 MB in all, and what a thread has once had from its allocator it keeps.
    """
    for width_bytes in WIDTHS:
        yield from _exercise_width(kernels, width_bytes)
    yield from _exercise_stretches(kernels)
    yield _exercise_stream(kernels)
    yield from _exercise_casts(kernels)


def _exercise_width(kernels: "Kernels", width_bytes: int) -> Iterator[Words]:
    words, base = _words(width_bytes, 1), _words(width_bytes, 2)
    keys, counts = np.empty(_WORD_COUNT, np.uint8), np.empty(KEYS, np.int64)
    codes = (np.arange(-(-_WORD_COUNT // _COLUMNS) + _COLUMNS) % 251).astype(np.uint8)
    kernels.context_keys(codes, _COLUMNS, keys, counts)
    yield from (keys, counts)
    kernels.exponent_keys(base, 1, 15, keys, counts)
    yield from (keys, counts)
    planes = tuple(_words(1, 5 + number) for number in range(width_bytes))
    plan = np.zeros(PLAN_INTEGERS, np.int64)
    for mapping in (COPY, ROTATE, XOR, DIFF, ORDERED_DIFF):
        candidates = Candidates(ROTATE, (mapping, NO_MAPPING), 1, 15)
        for grouped_planes in (0, 1 << (width_bytes - 1)):
            back = np.empty(_WORD_COUNT, words.dtype)
            kernels.join(planes, base, mapping, keys, np.cumsum(counts) - counts, grouped_planes, back)
            yield back
        kernels.choose(words, base, _WORD_COUNT, _RUNS, candidates, plan)
        yield plan[: PLANES + width_bytes]
        for code in (KEPT, MATCHED | GROUPED):
            plan[MAPPING], plan[PLANES : PLANES + width_bytes] = mapping, code
            yield from _coded(kernels, words, base, candidates, plan)
    # Once, and one plane: twins take a millisecond for each code.
    plan[PLANES : PLANES + width_bytes] = [CODED, *[KEPT] * (width_bytes - 1)]
    candidates = Candidates(ROTATE, (NO_MAPPING, NO_MAPPING), 0, 0)
    yield from _coded(kernels, words, base, candidates, plan)


def _exercise_stretches(kernels: "Kernels") -> Iterator[Words]:
    """Skewed bytes, bytes in steps, one byte and noise, enough to be coded from a sample, in a row and in groups."""
    noise = _words(1, 3, 20_000)
    plane = np.concatenate(
        (noise & (noise >> 1) & (noise >> 2), noise >> 5, np.full(9990, 7, np.uint8), noise, noise >> 3)
    )
    base, plan = np.arange(plane.size).astype(np.uint8), np.zeros(PLAN_INTEGERS, np.int64)
    candidates = Candidates(COPY, (XOR, DIFF), 6, 3)
    kernels.choose(plane, base, plane.size, _RUNS, candidates, plan)
    yield plan[: PLANES + 1]
    for code in (CODED, CODED | GROUPED):
        plan[MAPPING], plan[PLANES] = COPY, code
        yield from _coded(kernels, plane, base, candidates, plan)


def _coded(kernels: "Kernels", words: Words, base: Words, candidates: Candidates, plan: Counts) -> Iterator[Words]:
    """A payload, and what becomes of it, which a twin need not be able to tell."""
    out = np.empty(payload_room(words.nbytes), np.uint8)
    payload = out[: kernels.encode(words, base, candidates, plan, out)]
    exponent, mapping = (candidates.first_bit, candidates.mask), plan.item(MAPPING)
    grouped = bool((payload[: ENTRY_BYTES * words.itemsize : ENTRY_BYTES] & IS_GROUPED).any())
    yield payload
    for streamed in (False, True):
        room = np.zeros(words.nbytes + STREAM_LINE_BYTES, np.uint8)
        head = -room.ctypes.data % STREAM_LINE_BYTES
        back = room[head : head + words.nbytes].view(words.dtype)
        outcome = kernels.decode(payload, base, mapping, exponent, back, grouped=grouped, streamed=streamed)
        yield back if outcome == DECODED else words


def _exercise_stream(kernels: "Kernels") -> Words:
    """From an address that is a multiple of nothing, to one that is of a line; no byte more."""
    source = _words(1, 4)
    target = np.zeros(source.size + STREAM_LINE_BYTES, np.uint8)
    head = -target.ctypes.data % STREAM_LINE_BYTES
    kernels.stream(target.ctypes.data + head, source.ctypes.data + 1, source.size // 128 * STREAM_LINE_BYTES)
    return target[head : head + source.size]


def _exercise_casts(kernels: "Kernels") -> Iterator[Words]:
    """From each format to each other, also in rows of which the first was begun before and the last does not end."""
    rows = _WORD_COUNT // _COLUMNS + 2
    factors = np.ldexp(1.0, np.arange(rows, dtype=np.int32) % 60 - 30)
    for source_format, source_bytes in enumerate(casting.ITEM_BYTES):
        source = _words(source_bytes, 11)
        for target_format, target_bytes in enumerate(casting.ITEM_BYTES):
            for some in (factors[:0], factors):
                target = np.empty(_WORD_COUNT, f"<u{target_bytes}")
                kernels.cast(source, source_format, target, target_format, some, _COLUMNS, 7)
                yield target
        limit = (1 << (8 * source_bytes - 1)) - (1 << max(0, 8 * source_bytes - 9))
        yield np.array([kernels.largest(source, limit)], np.uint64)


def _words(width_bytes: int, seed: int, count: int = _WORD_COUNT) -> Words:
    mixed = np.arange(1, count + 1, dtype=np.uint64) * np.uint64(0x9E3779B97F4A7C15 * seed % 2**64)
    return (mixed >> np.uint64(64 - 8 * width_bytes)).astype(f"<u{width_bytes}")
