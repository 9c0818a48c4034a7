"""Words → payload: choose by sampling, then one pass of the kernel, and one of zstd for planes that are mostly repeats.

Sampling only chooses. That a plane is constant is proven by the full pass, and whatever does not come out smaller is
stored raw.

Spec: docs/format.md §5.
"""

import struct
from collections.abc import Sequence
from functools import cache
from typing import Final

import numpy as np

from .. import kernels
from ..format import whole
from ..format.dtypes import Element
from ..ids import Buffer
from ..kernels.choosing import BITS, CODED, KEPT, MATCHED, PLAN_INTEGERS, PLANES
from ..kernels.estimating import NO_MAPPING, Candidates, Runs
from ..kernels.mapping import COPY, DIFF, ORDERED_DIFF, ROTATE, XOR, Words
from ..kernels.payloads import CODED_BODY, ENTRY_BYTES, IS_GROUPED, RAW_BODY, entry_of, payload_room
from ..limits import KIB, MAX_GROUPED_WIDTH_BYTES, MIN_GROUP_BYTES, SAMPLE_WORDS
from ..memory import Room
from . import Encoded, Transform, encode_blob, frames
from .decoding import exponent_field
from .payload import mapping_of
from .words import words_of

MIN_PLANES_BYTES: Final = KIB
"""Below this choosing takes longer than anything else a save does with a chunk, and an object's header is as long as
what planes would save."""

_RUN_WORDS: Final = 32
"""A run of neighbours: half a cache line for each byte of a word, so that sampling reads little more than it uses."""

_RUN_COUNT: Final = SAMPLE_WORDS // _RUN_WORDS

_MIN_GROUPED_WORDS: Final = 2 * MIN_GROUP_BYTES
"""A chunk that fits one stretch has one code, however its words are ordered."""

_SPARSE_SHARE: Final = 0.5
"""Chunks that come out larger are not looked at for long repeats: there cannot be enough of them."""

_BLOB_SAMPLE_BYTES: Final = 16 * KIB
_BLOB_SAMPLES: Final = 4


_TRANSFORMS: Final = {
    COPY: Transform.PLANES,
    ROTATE: Transform.PLANES,
    XOR: Transform.XOR,
    DIFF: Transform.DIFF,
    ORDERED_DIFF: Transform.DIFF,
}


def encode_words(raw: memoryview, element: Element, base: memoryview | None, room: Room) -> Encoded | None:
    """Encode a chunk; ``None`` if nothing is smaller than ``raw``. See :func:`store.codec.encode`."""
    if len(raw) < MIN_PLANES_BYTES or len(raw) % element.width_bytes:
        return _smaller(encode_blob(raw), raw)
    words = words_of(raw, element)
    base_words = words_of(base, element) if base is not None and len(base) == len(raw) else None
    candidates = _candidates(element, len(words) >= _MIN_GROUPED_WORDS)[base_words is not None]
    plan, kernel = np.empty(PLAN_INTEGERS, np.int64), kernels.current(len(raw))
    other = words if base_words is None else base_words
    kernel.choose(words, other, len(words), _runs(len(words)), candidates, plan)
    if plan[BITS] < _SPARSE_SHARE * 8 * len(raw) and _repeats(words, base_words):
        planes = plan[PLANES : PLANES + element.width_bytes]
        planes[planes != KEPT] = MATCHED
    mapping, bits, *codes = plan[: PLANES + element.width_bytes].tolist()
    if not element.is_float and _blob_bits(raw) < bits:
        return _smaller(encode_blob(raw), raw)
    if not any(codes):
        return None
    out = room.of(payload_room(len(raw)))
    size_bytes = kernel.encode(words, other, candidates, plan, np.frombuffer(out, np.uint8))
    return _smaller(_finished(_TRANSFORMS[mapping], out[:size_bytes], codes), raw)


def gathered(words: Words) -> Words:
    """The words of a chunk that choosing looks at, and no others."""
    runs = _runs(len(words))
    return np.concatenate(
        [words[start : start + runs.run_words] for start in range(0, runs.run_count * runs.stride, runs.stride)]
    )


def expected_bits(words: Words, base: Words | None, element: Element, word_count: int) -> int:
    """What a chunk would take, against a base or else by itself.

    Args:
        words: what was :func:`gathered` of it.
        base: what was gathered of its base.
        element: the words in it.
        word_count: how many it has.
    """
    plain, against_base = _candidates(element, word_count >= _MIN_GROUPED_WORDS)
    candidates = plain if base is None else against_base._replace(plain=NO_MAPPING)
    plan = np.empty(PLAN_INTEGERS, np.int64)
    runs = Runs(len(words), len(words), 1)
    kernels.current(0).choose(words, words if base is None else base, word_count, runs, candidates, plan)
    return plan.item(BITS)


def _repeats(words: Words, base: Words | None) -> bool:
    """Whether most of a chunk is long stretches as in its base or, without one, of one word.

    How often bytes occur does not tell: where few rows of a table have changed, a code takes a bit for each byte of
    all the others, and matching next to nothing.
    """
    if len(words) <= SAMPLE_WORDS:
        return False  # codes save a small chunk's planes at once, and there may be tens of thousands
    sample = gathered(words).reshape(-1, _RUN_WORDS)
    like = sample[:, :1] if base is None else gathered(base).reshape(-1, _RUN_WORDS)
    return bool((sample == like).all(1).mean() >= _SPARSE_SHARE)


def _smaller(encoded: Encoded, raw: memoryview) -> Encoded | None:
    return encoded if encoded.size_bytes < len(raw) else None


def _blob_bits(raw: memoryview) -> float:
    """Expected bits of one zstd frame, from a few spread-out stretches."""
    if len(raw) <= _BLOB_SAMPLES * _BLOB_SAMPLE_BYTES:
        return 8.0 * len(whole.compress(raw))
    stride = (len(raw) - _BLOB_SAMPLE_BYTES) // (_BLOB_SAMPLES - 1)
    stretches = (raw[i * stride : i * stride + _BLOB_SAMPLE_BYTES] for i in range(_BLOB_SAMPLES))
    sampled_bytes = sum(len(whole.compress(stretch)) for stretch in stretches)
    return 8.0 * len(raw) * sampled_bytes / (_BLOB_SAMPLES * _BLOB_SAMPLE_BYTES)


@cache
def _candidates(element: Element, can_group: bool) -> tuple[Candidates, Candidates]:  # noqa: FBT001 - caches are fast for arguments by position
    """What a chunk without a base is chosen from, and one with a base."""
    delta, other_delta = mapping_of(Transform.DIFF, element), mapping_of(Transform.XOR, element)
    if element.is_float and element.width_bytes > 1:
        # A difference of ordered integers was smaller than XOR in every state measured.
        other_delta = NO_MAPPING
    is_grouped = can_group and element.is_float and element.width_bytes <= MAX_GROUPED_WIDTH_BYTES
    key_field = exponent_field(element) if is_grouped else (0, 0)
    plain = Candidates(mapping_of(Transform.PLANES, element), (NO_MAPPING, NO_MAPPING), 0, 0)
    return plain, Candidates(plain.plain, (delta, other_delta), *key_field)


@cache
def _runs(word_count: int) -> Runs:
    """Which words of a chunk are looked at: runs of neighbours, everything if there is little."""
    if word_count <= SAMPLE_WORDS:
        return Runs(word_count, word_count, 1)
    # Odd, so that runs begin in ever other columns of a matrix.
    stride = max(word_count // _RUN_COUNT - 1, _RUN_WORDS) | 1
    return Runs(stride, _RUN_WORDS, min(_RUN_COUNT, word_count // stride))


def _finished(transform: Transform, payload: memoryview, codes: Sequence[int]) -> Encoded:
    """The payload, once planes of long repeats are compressed that the kernel left as they are."""
    parts: tuple[Buffer, ...] = (payload,)
    grouped = False
    if max(codes) > CODED:
        entries = list(struct.unpack_from(f"<{len(codes)}I", payload))
        parts = _matched(payload, codes, entries)
        grouped = any(entry & IS_GROUPED for entry in entries)
    return Encoded(transform, grouped, parts, sum(map(len, parts)), transform.needs_base)


def _matched(payload: memoryview, codes: Sequence[int], entries: list[int]) -> tuple[Buffer, ...]:
    """The payload's parts with such planes compressed; their entries are changed."""
    parts: list[Buffer] = []
    start = end = len(codes) * ENTRY_BYTES
    for number, (code, entry) in enumerate(zip(codes, entries, strict=True)):
        begin, end = end, end + (entry >> 3)
        if code & MATCHED and entry & 3 == RAW_BODY:
            frame = frames.match(payload[begin:end])
            if len(frame) < end - begin:
                entries[number] = entry_of(CODED_BODY, entry & IS_GROUPED, len(frame))
                parts += [payload[start:begin], frame]
                start = end
    return (struct.pack(f"<{len(entries)}I", *entries), *parts, payload[start:])
