"""The kernel that decodes a whole chunk, as numba compiles it, if its payload is one that this program's kernels write.

One call that never needs the interpreter: threads that decode small parts in many calls wait for each other's.

Rules and reasons are those of :mod:`store.kernels.source_words`; the payload is untrusted besides.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return,assignment"

import numpy as np

from .payloads import CODED_BODY, CONSTANT_BODY, DECODED, ENTRY_BYTES, IS_GROUPED, RAW_BODY, REFUSED, UNKNOWN
from .pointers import (
    Pointer,
    behind,
    bytes_at,
    bytes_in,
    copy,
    counts_in,
    eights_at,
    fence,
    fill,
    fours_at,
    inner,
    like_in,
    load_cell,
    pairs_at,
    stream_line,
    width_of,
)
from .reference import STREAM_LINE_BYTES
from .scratch import ASIDE, BLOCK, BLOCK_WORDS, CURSORS, LATER_CURSORS, PARTS, SAMPLE
from .source_decode_frames import read_frame
from .source_groups import begin_halves, first_half, stretches_from, take_from_groups
from .source_words import join_block, unmap_block

_UNKNOWN = -2


def decode(
    payload: Pointer,
    payload_bytes: int,
    base: Pointer,
    width_bytes: int,
    word_count: int,
    mapping: int,
    grouped: int,
    first_bit: int,
    mask: int,
    streamed: int,
    words: Pointer,
    keys: Pointer,
    planes: Pointer,
    scratch: Pointer,
) -> int:
    """Twin: :func:`store.kernels.reference.decode`. For words of any width: most of it knows none, and is large."""
    grouped_planes = _read_planes(width_bytes, payload, payload_bytes, word_count, planes, scratch)
    if grouped_planes <= _UNKNOWN:
        return np.uint64(UNKNOWN + _UNKNOWN - grouped_planes)
    if grouped_planes < 0 or (grouped_planes > 0) != (grouped > 0):
        return np.uint64(REFUSED)
    how = (word_count, mapping, first_bit, mask, grouped_planes, streamed)
    if width_bytes == 1:
        _put_together(planes, base, how, words, keys, scratch)
    elif width_bytes == 2:
        _put_together(planes, pairs_at(base), how, pairs_at(words), keys, scratch)
    elif width_bytes == 4:
        _put_together(planes, fours_at(base), how, fours_at(words), keys, scratch)
    else:
        _put_together(planes, eights_at(base), how, eights_at(words), keys, scratch)
    return np.uint64(DECODED)


@inner
def _put_together(
    planes: Pointer,
    base: Pointer,
    how: tuple[int, int, int, int, int, int],
    words: Pointer,
    keys: Pointer,
    scratch: Pointer,
) -> None:
    """Planes to words, past the caches if wanted: blocks are made where they stay in the cache, and then copied."""
    word_count, mapping, first_bit, mask, grouped_planes, streamed = how
    cursors = counts_in(scratch, CURSORS), counts_in(scratch, LATER_CURSORS)
    first_count = word_count
    if grouped_planes:
        first_count = first_half(word_count)
        begin_halves(base, word_count, first_bit, mask, keys, scratch)
    block, parts = like_in(scratch, BLOCK, words), bytes_in(scratch, PARTS)
    width, target, made = width_of(words), bytes_at(words), like_in(scratch, SAMPLE, words)
    for start in range(0, first_count, BLOCK_WORDS):
        count, later_start, later_count = stretches_from(start, first_count, word_count)
        if grouped_planes:
            stretches = (start, count, later_start, later_count)
            take_from_groups(planes, keys, stretches, cursors, grouped_planes, scratch)
        for which in range(2 if later_count else 1):  # one call in a loop: two would be compiled twice
            at, size = (later_start, later_count) if which else (start, count)
            join_block(planes, at, size, grouped_planes, parts, which, block)
            if streamed:
                unmap_block(block, base, at, size, mapping, behind(made, -at))
                _put_past_caches(bytes_at(made), width * size, behind(target, width * at))
            else:
                unmap_block(block, base, at, size, mapping, words)
    if streamed:
        fence()


@inner
def _put_past_caches(source: Pointer, size_bytes: int, target: Pointer) -> None:
    whole = size_bytes & ~(STREAM_LINE_BYTES - 1)
    for at in range(0, whole, STREAM_LINE_BYTES):
        stream_line(target, source, at)
    copy(source, whole, size_bytes - whole, target, whole)


@inner
def _read_planes(
    width: int, payload: Pointer, payload_bytes: int, word_count: int, planes: Pointer, scratch: Pointer
) -> int:
    """Find or decode all planes; return which are in group order, or -1 if the payload is refused.

    From the last on: what is a delta has the longest repeats there, and so a body that is not known, and then nothing
    was decoded in vain. The number of such a plane is taken from -2.
    """
    grouped_planes, stop = 0, payload_bytes
    if payload_bytes < ENTRY_BYTES * width:
        return -1
    for back in range(1, width + 1):
        number = width - back
        entry = np.int64(load_cell(payload, ENTRY_BYTES * number))
        coding, is_grouped, start = entry & 3, entry & IS_GROUPED, stop - (entry >> 3)
        if start < ENTRY_BYTES * width:
            return -1
        plane = planes[number] = planes[ASIDE + number]
        if coding == CONSTANT_BODY:
            if is_grouped or stop - start != 1:
                return -1
            fill(plane, 0, word_count, payload[start])
        elif coding == RAW_BODY:
            if stop - start != word_count:
                return -1
            planes[number] = behind(payload, start)
        elif coding != CODED_BODY:
            return -1
        elif not read_frame(payload, start, stop, plane, word_count, scratch):
            return _UNKNOWN - number
        grouped_planes |= np.int64(is_grouped > 0) << number
        stop = start
    return grouped_planes if stop == ENTRY_BYTES * width else -1
