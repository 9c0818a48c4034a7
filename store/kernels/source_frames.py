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
    JUMP_BYTES,
    LITERALS_HEAD_BYTES,
    MIN_CODED_BYTES,
    MIN_SAMPLED_BYTES,
    RAW_BLOCK,
    REPEATED_BLOCK,
    SLICE_BYTES,
    TREELESS_LITERALS,
)
from .pointers import Pointer, add_tables, clear_tables, count_bytes, inner, store_word, tally

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


def compress(
    plane: Pointer,
    plane_bytes: int,
    ends: Pointer,
    end_count: int,
    out: Pointer,
    tables: Pointer,
    counts: Pointer,
    keys: Pointer,
    depths: Pointer,
    codes: Pointer,
    description: Pointer,
    scratch: Pointer,
) -> int:
    """Twin: :func:`store.kernels.framing.compress`."""
    store_word(out, 0, np.uint64(FRAME_HEAD) | (np.uint64(plane_bytes) << np.uint64(40)))
    out[8] = np.uint8(plane_bytes >> 24)
    at, start = FRAME_HEAD_BYTES, 0
    for number in range(end_count):
        stop = ends[number]
        used, described = 0, 0
        ended = -1
        if stop - start >= MIN_SAMPLED_BYTES and _sample(plane, start, stop, counts, tables, scratch) > 1:
            used = _sort_symbols(counts, keys)
            described = _code(keys, used, depths, codes, description, scratch)
            ended = _write_stretch(plane, plane_bytes, start, stop, used, described, codes, description, out, at)
        if ended < 0:  # a byte without a code: count all of them
            count_bytes(plane, start, stop - start, counts, tables)
            used = _sort_symbols(counts, keys)
            described = _code(keys, used, depths, codes, description, scratch) if used > 1 else 0
            ended = _write_stretch(plane, plane_bytes, start, stop, used, described, codes, description, out, at)
        at, start = ended, stop
    return at


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
    plane: Pointer,
    plane_bytes: int,
    start: int,
    stop: int,
    used: int,
    described: int,
    codes: Pointer,
    description: Pointer,
    out: Pointer,
    at: int,
) -> int:
    literals = DESCRIBED_LITERALS
    while start < stop:
        count = min(BLOCK_BYTES, stop - start)
        kind, body = RAW_BLOCK, count
        if used == 1:
            kind, body = REPEATED_BLOCK, 1
            out[at + BLOCK_HEAD_BYTES] = plane[start]
        elif described > 0 and count >= MIN_CODED_BYTES:
            coded = _write_coded(plane, start, count, codes, literals, description, described, out, at)
            if coded < 0:
                return -1
            if coded < count:
                kind, body, literals = CODED_BLOCK, coded, TREELESS_LITERALS
        if kind == RAW_BLOCK:
            for i in range(count):
                out[at + BLOCK_HEAD_BYTES + i] = plane[start + i]
        size = count if kind == REPEATED_BLOCK else body
        _put_number(out, at, BLOCK_HEAD_BYTES, (start + count == plane_bytes) | (kind << 1) | (size << 3))
        at += BLOCK_HEAD_BYTES + body
        start += count
    return at


@inner
def _code(keys: Pointer, used: int, depths: Pointer, codes: Pointer, description: Pointer, scratch: Pointer) -> int:
    total = 0
    for i in range(used):
        total += keys[i] // prefixes.SYMBOLS
    _tree_depths(keys, used, 0, depths)
    if depths[0] > prefixes.MAX_BITS:
        _tree_depths(keys, used, total >> prefixes.MAX_BITS, depths)
    longest = _limit_depths(used, depths)
    if longest == 0 or _assign_codes(keys, used, depths, longest, codes, scratch) >= 8 * total:
        return 0
    last = _weigh_symbols(codes, longest, scratch)
    greatest = _share_states(last, scratch)
    if greatest == 0:
        return _describe_plainly(last, scratch, description)
    at = _write_shares(greatest, scratch, description)
    _deal_states(greatest, scratch)
    return _write_weights(last, at, scratch, description)


@inner
def _put_number(out: Pointer, at: int, size_bytes: int, number: int) -> None:
    for i in range(size_bytes):
        out[at + i] = np.uint8(number >> (8 * i))


@inner
def _write_coded(
    plane: Pointer,
    start: int,
    count: int,
    codes: Pointer,
    literals: int,
    description: Pointer,
    described: int,
    out: Pointer,
    block_at: int,
) -> int:
    body_at = block_at + BLOCK_HEAD_BYTES
    at = body_at + LITERALS_HEAD_BYTES
    if literals == DESCRIBED_LITERALS:
        for i in range(described):
            out[at + i] = np.uint8(description[i])
        at += described
    jumps_at = at
    at += JUMP_BYTES
    quarter = (count + 3) // 4
    for number in range(4):
        first = number * quarter
        ended = _write_stream(plane, start + first, min(quarter, count - first), codes, out, at)
        if ended < 0:
            return -1
        if number < 3:
            _put_number(out, jumps_at + 2 * number, 2, ended - at)
        at = ended
    content = at - body_at - LITERALS_HEAD_BYTES
    _put_number(out, body_at, LITERALS_HEAD_BYTES, literals | (count << 4) | (content << 22))
    out[at] = 0  # and no sequences
    return at + 1 - body_at


@inner
def _write_stream(plane: Pointer, start: int, count: int, codes: Pointer, out: Pointer, at: int) -> int:
    bits, bit_count, met = np.uint64(0), np.uint64(0), np.uint64(0)
    i = start + count - 1
    for _ in range(count % 5):
        entry = np.uint64(codes[np.int64(plane[i])])
        met |= entry
        bits |= (entry >> np.uint64(8)) << bit_count
        bit_count += entry & np.uint64(255)
        i -= 1
    # Five codes of eleven bits, and what is left of a byte, fit a word.
    for _ in range(count // 5):
        store_word(out, at, bits)
        at += np.int64(bit_count >> np.uint64(3))
        bits >>= bit_count & np.uint64(56)
        bit_count &= np.uint64(7)
        for ahead in range(5):
            entry = np.uint64(codes[np.int64(plane[i - ahead])])
            met |= entry
            bits |= (entry >> np.uint64(8)) << (bit_count & np.uint64(63))
            bit_count += entry  # its upper bits are in nobody's way until the last one is masked
        bit_count &= np.uint64(63)
        i -= 5
    store_word(out, at, bits)
    at += np.int64(bit_count >> np.uint64(3))
    bits >>= bit_count & np.uint64(56)
    bit_count &= np.uint64(7)
    store_word(out, at, bits | (np.uint64(1) << bit_count))
    return at + 1 if met < np.uint64(prefixes.NO_CODE) else -1
