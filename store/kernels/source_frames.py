"""The kernel that compresses byte planes, as numba compiles it: the same bytes as :mod:`store.kernels.framing`.

Rules and reasons are those of :mod:`store.kernels.source_words`.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return,assignment"

import numpy as np

from . import prefixes
from .framing import (
    BLOCK_BYTES,
    BLOCK_HEAD_BYTES,
    CODED_BLOCK,
    DESCRIBED_LITERALS,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    LITERALS_HEAD_BYTES,
    MIN_CODED_BYTES,
    MIN_SAMPLED_BYTES,
    RAW_BLOCK,
    REPEATED_BLOCK,
    SLICE_BYTES,
    TREELESS_LITERALS,
)
from .pointers import (
    Pointer,
    add_tables,
    cells_in,
    clear_tables,
    copy,
    count_bytes,
    counts_in,
    inner,
    put_number,
    store_word,
    tally,
)
from .scratch import CELLS, CODES, COUNTS, DEPTHS, DESCRIPTION, NUMBERS, SORTED
from .source_streams import fill_tables, write_streams

_guess_rest = inner(prefixes.guess_rest)
_sort_symbols = inner(prefixes.sort_symbols)
_tree_depths = inner(prefixes.tree_depths)
_limit_depths = inner(prefixes.limit_depths)
_assign_codes = inner(prefixes.assign_codes)
_weigh_symbols = inner(prefixes.weigh)
_share_states = inner(prefixes.share_states)
_describe_plainly = inner(prefixes.describe_plainly)
_write_shares = inner(prefixes.write_shares)
_deal_states = inner(prefixes.deal_states)
_write_weights = inner(prefixes.write_weights)


@inner
def compress(
    plane: Pointer, plane_bytes: int, ends: Pointer, end_count: int, out: Pointer, at: int, scratch: Pointer
) -> int:
    """Twin: :func:`store.kernels.framing.compress`, but writes to any place, and says where the frame ends."""
    counts, tables, numbers = counts_in(scratch, COUNTS), cells_in(scratch, CELLS), counts_in(scratch, NUMBERS)
    store_word(out, at, np.uint64(FRAME_HEAD) | (np.uint64(plane_bytes) << np.uint64(40)))
    out[at + 8] = np.uint8(plane_bytes >> 24)
    at += FRAME_HEAD_BYTES
    start = 0
    for number in range(end_count):
        stop = ends[number]
        ended = -1
        for counts_all in range(stop - start < MIN_SAMPLED_BYTES, 2):
            # All of them also where a byte has turned up that has no code. One call: two would be compiled twice.
            if ended < 0 and _count(plane, start, stop, counts_all, counts, tables, numbers):
                ended = _write_stretch(plane, plane_bytes, start, stop, out, at, scratch)
        at, start = ended, stop
    return at


@inner
def _count(
    plane: Pointer, start: int, stop: int, counts_all: int, counts: Pointer, tables: Pointer, numbers: Pointer
) -> bool:
    """Count bytes, and say whether that will do."""
    if counts_all:
        count_bytes(plane, start, stop - start, counts, tables)
        return True
    return _sample(plane, start, stop, counts, tables, numbers) > 1


@inner
def _sample(plane: Pointer, start: int, stop: int, counts: Pointer, tables: Pointer, scratch: Pointer) -> int:
    clear_tables(tables)
    for slice_start in range(start, stop, SLICE_BYTES * prefixes.SAMPLED_SHARE):
        tally(plane, slice_start, min(SLICE_BYTES, stop - slice_start), tables)
    add_tables(tables, counts)
    lowest, highest = np.uint8(255), np.uint8(0)
    for i in range(start, stop):
        lowest, highest = min(lowest, plane[i]), max(highest, plane[i])
    return _guess_rest(counts, np.int64(lowest), np.int64(highest), scratch)


@inner
def _write_stretch(
    plane: Pointer, plane_bytes: int, start: int, stop: int, out: Pointer, at: int, scratch: Pointer
) -> int:
    used, described = _code(scratch)
    literals = DESCRIBED_LITERALS
    while start < stop:
        count = min(BLOCK_BYTES, stop - start)
        kind, body = RAW_BLOCK, count
        if used == 1:
            kind, body = REPEATED_BLOCK, 1
            out[at + BLOCK_HEAD_BYTES] = plane[start]
        elif described > 0 and count >= MIN_CODED_BYTES:
            coded = _write_coded(plane, start, count, literals, described, out, at, scratch)
            if coded < 0:
                return -1
            if coded < count:
                kind, body, literals = CODED_BLOCK, coded, TREELESS_LITERALS
        if kind == RAW_BLOCK:
            copy(plane, start, count, out, at + BLOCK_HEAD_BYTES)
        size = count if kind == REPEATED_BLOCK else body
        put_number(out, at, BLOCK_HEAD_BYTES, (start + count == plane_bytes) | (kind << 1) | (size << 3))
        at += BLOCK_HEAD_BYTES + body
        start += count
    return at


@inner
def _code(scratch: Pointer) -> tuple[int, int]:
    """A code for what was counted: how many bytes have one, and bytes of its description, 0 if nothing is gained."""
    keys, depths, codes = counts_in(scratch, SORTED), counts_in(scratch, DEPTHS), counts_in(scratch, CODES)
    numbers = counts_in(scratch, NUMBERS)
    used = _sort_symbols(counts_in(scratch, COUNTS), keys)
    if used < 2:
        return used, 0
    total = 0
    for i in range(used):
        total += keys[i] // prefixes.SYMBOLS
    _tree_depths(keys, used, 0, depths)
    if depths[0] > prefixes.MAX_BITS:
        _tree_depths(keys, used, total >> prefixes.MAX_BITS, depths)
    longest = _limit_depths(used, depths)
    if longest == 0 or _assign_codes(keys, used, depths, longest, codes, numbers) >= 8 * total:
        return used, 0
    fill_tables(codes, scratch)
    return used, _describe(codes, longest, counts_in(scratch, DESCRIPTION), numbers)


@inner
def _describe(codes: Pointer, longest: int, description: Pointer, numbers: Pointer) -> int:
    last = _weigh_symbols(codes, longest, numbers)
    greatest = _share_states(last, numbers)
    if greatest == 0:
        return _describe_plainly(last, numbers, description)
    at = _write_shares(greatest, numbers, description)
    _deal_states(greatest, numbers)
    return _write_weights(last, at, numbers, description)


@inner
def _write_coded(
    plane: Pointer, start: int, count: int, literals: int, described: int, out: Pointer, block_at: int, scratch: Pointer
) -> int:
    body_at = block_at + BLOCK_HEAD_BYTES
    content_at = at = body_at + LITERALS_HEAD_BYTES
    if literals == DESCRIBED_LITERALS:
        description = counts_in(scratch, DESCRIPTION)
        for i in range(described):
            out[at + i] = np.uint8(description[i])
        at += described
    at = write_streams(plane, start, count, counts_in(scratch, CODES), out, at, scratch)
    if at < 0:
        return -1
    put_number(out, body_at, LITERALS_HEAD_BYTES, literals | (count << 4) | ((at - content_at) << 22))
    out[at] = 0  # and no sequences
    return at + 1 - body_at
