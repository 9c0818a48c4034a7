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
from ..limits import DELTA_KEEP_RATIO, KIB, MIN_CONTEXT_GAIN, MIN_GROUP_BYTES
from . import Encoded, Transform, encode_blob, frames
from .context import Context, find_context, worth_grouping
from .decoding import exponent_field, group_keys, starts
from .payload import Coding, Plane, mapping_of, pack
from .sampling import Candidate, PlanePlan, Sampling, measure
from .words import NO_CURSORS, NO_KEYS, scratch_planes, spaced_planes, words_of

_MIN_PLANES_BYTES: Final = 64
"""Below this a table of planes costs more than it can gain."""

_CONTEXT_HOPE: Final = 0.9
"""Rows and columns never saved more than a tenth: a delta this much better is taken without looking at them."""

_BITS_PER_CODE: Final = 4.0
"""What a code of a row or column takes when compressed, about."""

_BLOB_SAMPLE_BYTES: Final = 16 * KIB
_BLOB_SAMPLES: Final = 4


def encode_words(raw: memoryview, element: Element, base: memoryview | None, columns: int) -> Encoded | None:
    """Encode a chunk; ``None`` if nothing is smaller than ``raw``. See :func:`store.codec.encode`."""
    if len(raw) < _MIN_PLANES_BYTES or len(raw) % element.width_bytes:
        return _smaller(encode_blob(raw), raw)
    words = words_of(raw, element)
    base_words = words_of(base, element) if base is not None and len(base) == len(raw) else None
    candidate = _choose(words, element, base_words, columns)
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


def _choose(words: Words, element: Element, base: Words | None, columns: int) -> Candidate:
    sampling = Sampling(len(words))
    sample = sampling.pick(words)
    plain_planes = measure(sample, sample, mapping_of(Transform.PLANES, element), NO_KEYS, len(words))
    plain = _candidate(Transform.PLANES, plain_planes)
    delta = _best_delta(sample, sampling.pick(base), element, len(words)) if base is not None else None
    if delta is not None and delta.bits <= _CONTEXT_HOPE * DELTA_KEEP_RATIO * plain.bits:
        return delta
    free = plain
    context = find_context(words, element, columns)
    if context is not None:
        keys = sampling.pick(context.keys)
        planes = measure(sample, sample, mapping_of(Transform.PLANES, element), keys, len(words))
        grouped = _candidate(Transform.PLANES, planes, context)
        if grouped.grouped_planes and grouped.bits < (1 - MIN_CONTEXT_GAIN) * plain.bits:
            free = grouped
    return delta if delta is not None and delta.bits <= DELTA_KEEP_RATIO * free.bits else free


def _best_delta(sample: Words, base: Words, element: Element, word_count: int) -> Candidate:
    keys = _base_keys(base, element) if worth_grouping(element, word_count) else NO_KEYS
    # Between floats a difference of ordered integers was smaller than XOR in every state measured.
    transforms = (Transform.DIFF,) if element.width_bytes > 1 and element.is_float else (Transform.DIFF, Transform.XOR)
    candidates = []
    for transform in transforms:
        planes = measure(sample, base, mapping_of(transform, element), keys, word_count)
        candidates.append(_candidate(transform, planes))
    return min(candidates, key=lambda candidate: candidate.bits)


def _candidate(transform: Transform, planes: list[PlanePlan], context: Context | None = None) -> Candidate:
    context_bits = _BITS_PER_CODE * len(context.codes) if context is not None else 0.0
    return Candidate(transform, context, planes, sum(plane.bits for plane in planes) + context_bits)


def _base_keys(base: Words, element: Element) -> Bytes:
    first_bit, mask = exponent_field(element)
    return np.asarray((base >> base.dtype.type(first_bit)) & base.dtype.type(mask), np.uint8)


def _encode_planes(words: Words, element: Element, candidate: Candidate, base: Words | None) -> Encoded:
    keys, counts, grouped_planes = NO_KEYS, NO_CURSORS, candidate.grouped_planes
    context = candidate.context
    if context is not None:
        keys, counts = context.keys, context.counts
    elif grouped_planes:
        keys, counts = group_keys(element, base, None, 0, len(words))
    planes = _room(candidate, len(words))
    mapping = mapping_of(candidate.transform, element)
    base_or_any = words if base is None else base
    kernel = kernels.current(words.nbytes)
    varying = kernel.split(words, base_or_any, mapping, keys, starts(counts), grouped_planes, planes)
    ends = _block_ends(counts) if grouped_planes else []
    stored = [
        _plane(planes[number], plan, ends, varies=bool(varying >> (8 * number) & 255))
        for number, plan in enumerate(candidate.planes)
    ]
    grouped = any(plane.grouped for plane in stored)
    columns = 0
    if grouped and context is not None:
        columns = context.columns
        stored.append(_codes_plane(context.codes))
    payload = pack(columns, stored)
    return Encoded(candidate.transform, grouped, payload, sum(map(len, payload)), candidate.transform.needs_base)


def _room(candidate: Candidate, word_count: int) -> tuple[Bytes, ...]:
    """Where planes go: those to be compressed into scratch, those that stay raw into what will be the payload."""
    compressed_count = sum(plan.compressed for plan in candidate.planes)
    scratch = iter(scratch_planes(compressed_count, word_count))
    kept = iter(spaced_planes(len(candidate.planes) - compressed_count, word_count))
    return tuple(next(scratch if plan.compressed else kept) for plan in candidate.planes)


def _plane(plane: Bytes, plan: PlanePlan, ends: list[int], *, varies: bool) -> Plane:
    if not varies:
        return Plane(Coding.CONSTANT, False, (bytes(plane[:1]),))
    data = plane.data
    if plan.compressed:
        body = frames.compress(data, ends if plan.blocks else ())
        if sum(map(len, body)) < len(data):
            return Plane(Coding.ZSTD, plan.grouped, body)
        return Plane(Coding.RAW, plan.grouped, (bytes(data),))  # out of the scratch
    return Plane(Coding.RAW, False, (data,))


def _block_ends(counts: Counts) -> list[int]:
    """Where groups end inside a plane, leaving out ends that would make a block too small to pay for its code table."""
    group_ends = np.cumsum(counts)
    total = group_ends.item(-1)
    ends = [0]
    while ends[-1] <= total - 2 * MIN_GROUP_BYTES:
        following = np.searchsorted(group_ends, ends[-1] + MIN_GROUP_BYTES)
        ends.append(group_ends.item(int(following)))
    return [end for end in ends[1:] if end <= total - MIN_GROUP_BYTES]


def _codes_plane(codes: Bytes) -> Plane:
    frame = whole.compress(codes.data)
    if len(frame) < len(codes):
        return Plane(Coding.ZSTD, False, (frame,))
    return Plane(Coding.RAW, False, (codes.data,))
