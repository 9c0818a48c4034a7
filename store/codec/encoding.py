"""Words → payload: choose by sampling, then one pass of the kernel and one of zstd.

Sampling only chooses. That a plane is constant is proven by the full pass, and whatever does not come out smaller is
stored raw.

Spec: docs/format.md §5.
"""

from typing import Final

import numpy as np

from .. import kernels, whole
from ..dtypes import Element
from ..kernels.reference import Bytes, Counts, Words
from ..limits import DELTA_KEEP_RATIO, KIB, MAX_GROUPED_WIDTH_BYTES, MIN_GROUP_BYTES
from . import Encoded, Transform, encode_blob, frames
from .decoding import exponent_field, group_keys, starts
from .payload import Coding, Plane, mapping_of, pack
from .sampling import NO_KEY_FIELD, Candidate, PlanePlan, measure
from .words import NO_CURSORS, NO_KEYS, scratch_planes, spaced_planes, words_of

_MIN_PLANES_BYTES: Final = KIB
"""Below this choosing takes longer than anything else a save does with a chunk, and an object's header is as long as
what planes would save."""

_BLOB_SAMPLE_BYTES: Final = 16 * KIB
_BLOB_SAMPLES: Final = 4


def encode_words(raw: memoryview, element: Element, base: memoryview | None) -> Encoded | None:
    """Encode a chunk; ``None`` if nothing is smaller than ``raw``. See :func:`store.codec.encode`."""
    if len(raw) < _MIN_PLANES_BYTES or len(raw) % element.width_bytes:
        return _smaller(encode_blob(raw), raw)
    words = words_of(raw, element)
    base_words = words_of(base, element) if base is not None and len(base) == len(raw) else None
    candidate = _choose(words, element, base_words)
    if not element.is_float and _blob_bits(raw) < candidate.bits:
        return _smaller(encode_blob(raw), raw)
    return _smaller(_encode_planes(words, element, candidate, base_words), raw)


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


def _choose(words: Words, element: Element, base: Words | None) -> Candidate:
    plain = _candidate(Transform.PLANES, words, words, element)
    if base is None:
        return plain
    # Between floats a difference of ordered integers was smaller than XOR in every state measured.
    transforms = (Transform.DIFF,) if element.width_bytes > 1 and element.is_float else (Transform.DIFF, Transform.XOR)
    deltas = [_candidate(transform, words, base, element) for transform in transforms]
    delta = min(deltas, key=lambda candidate: candidate.bits)
    return delta if delta.bits <= DELTA_KEEP_RATIO * plain.bits else plain


def _candidate(transform: Transform, words: Words, base: Words, element: Element) -> Candidate:
    can_group = transform.needs_base and element.is_float and element.width_bytes <= MAX_GROUPED_WIDTH_BYTES
    # A chunk that fits one stretch has one code, however its words are ordered.
    is_worth_it = can_group and len(words) >= 2 * MIN_GROUP_BYTES
    key_field = exponent_field(element) if is_worth_it else NO_KEY_FIELD
    planes = measure(words, base, mapping_of(transform, element), key_field)
    return Candidate(transform, planes, sum(plane.bits for plane in planes))


def _encode_planes(words: Words, element: Element, candidate: Candidate, base: Words | None) -> Encoded:
    keys, cursors, grouped_planes = NO_KEYS, NO_CURSORS, candidate.grouped_planes
    ends = whole_plane = np.array([len(words)])
    if grouped_planes:
        keys, counts = group_keys(element, base, None, 0, len(words))
        cursors, ends = starts(counts), _stretch_ends(counts)
    planes = _room(candidate, len(words))
    mapping = mapping_of(candidate.transform, element)
    base_or_any = words if base is None else base
    kernel = kernels.current(words.nbytes)
    varying = kernel.split(words, base_or_any, mapping, keys, cursors, grouped_planes, planes)
    stored = [
        _plane(planes[number], plan, ends if plan.grouped else whole_plane, varies=bool(varying >> (8 * number) & 255))
        for number, plan in enumerate(candidate.planes)
    ]
    payload = pack(0, stored)
    size_bytes = sum(map(len, payload))
    grouped = any(plane.grouped for plane in stored)
    return Encoded(candidate.transform, grouped, payload, size_bytes, candidate.transform.needs_base)


def _room(candidate: Candidate, word_count: int) -> tuple[Bytes, ...]:
    """Where planes go: those to be compressed into scratch, those that stay raw into what will be the payload."""
    compressed_count = sum(plan.compressed for plan in candidate.planes)
    scratch = iter(scratch_planes(compressed_count, word_count))
    kept = iter(spaced_planes(len(candidate.planes) - compressed_count, word_count))
    return tuple(next(scratch if plan.compressed else kept) for plan in candidate.planes)


def _plane(plane: Bytes, plan: PlanePlan, ends: Counts, *, varies: bool) -> Plane:
    if not varies:
        return Plane(Coding.CONSTANT, False, (bytes(plane[:1]),))
    data = plane.data
    if plan.compressed:
        frame = frames.match(data) if plan.matched else frames.code(plane, ends)
        if len(frame) < len(data):
            return Plane(Coding.ZSTD, plan.grouped, (frame,))
        return Plane(Coding.RAW, plan.grouped, (bytes(data),))  # out of the scratch
    return Plane(Coding.RAW, False, (data,))


def _stretch_ends(counts: Counts) -> Counts:
    """Where groups end inside a plane, leaving out ends that would make a stretch too small to pay for its code."""
    group_ends = np.cumsum(counts)
    total = group_ends.item(-1)
    ends = [0]
    while ends[-1] <= total - 2 * MIN_GROUP_BYTES:
        following = np.searchsorted(group_ends, ends[-1] + MIN_GROUP_BYTES)
        ends.append(group_ends.item(int(following)))
    return np.array([*(end for end in ends[1:] if end <= total - MIN_GROUP_BYTES), total])
