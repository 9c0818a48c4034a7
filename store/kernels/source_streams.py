"""How compiled kernels write the four bit streams of a block of literals: RFC 8878, section 4.2.2.

Codes of four bytes are put together first, many at a time, and then into the stream, for two streams in turns: what
comes next in one of them depends on what came before.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return,assignment"

import numpy as np

from . import prefixes
from .framing import JUMP_BYTES
from .pointers import Pointer, bytes_in, inner, load_cell, look_up, put_number, store_word, words_in
from .scratch import BLOCK_WORDS, FOUND, LENGTHS, STREAM, TABLES, VALUES

_SYMBOLS = prefixes.SYMBOLS
_GROUPS = BLOCK_WORDS // 4
"""Groups of four bytes in what is looked up at a time."""

_UNCODED = 128
"""Marks, in the upper half of a code, that there is none."""


@inner
def fill_tables(codes: Pointer, scratch: Pointer) -> None:
    """Put lengths of codes, and their lower and upper halves, into tables of bytes."""
    tables = bytes_in(scratch, TABLES)
    for symbol in range(_SYMBOLS):
        entry = codes[symbol]
        is_coded = entry != prefixes.NO_CODE
        tables[symbol] = np.uint8(entry if is_coded else 0)
        tables[_SYMBOLS + symbol] = np.uint8(entry >> 8 if is_coded else 0)
        tables[2 * _SYMBOLS + symbol] = np.uint8(entry >> 16 if is_coded else _UNCODED)


@inner
def write_streams(
    plane: Pointer, start: int, count: int, codes: Pointer, out: Pointer, at: int, scratch: Pointer
) -> int:
    """Write the sizes of three streams, and four streams.

    Returns:
        Where they end; -1 if a byte has no code.
    """
    quarter = (count + 3) // 4
    jumps_at = at
    at += JUMP_BYTES
    for pair in range(2):
        first = start + 2 * pair * quarter
        ended, other_bytes = _write_pair(
            plane, first, quarter, min(quarter, start + count - first - quarter), codes, out, at, scratch
        )
        if ended < 0:
            return -1
        put_number(out, jumps_at + 4 * pair, 2, ended - at)
        if pair == 0:
            put_number(out, jumps_at + 2, 2, other_bytes)
        stream = bytes_in(scratch, STREAM)
        for i in range(other_bytes):
            out[ended + i] = stream[i]
        at = ended + other_bytes
    return at


@inner
def _write_pair(
    plane: Pointer, start: int, count: int, other_count: int, codes: Pointer, out: Pointer, at: int, scratch: Pointer
) -> tuple[int, int]:
    """Write two streams, the other one aside: where it will begin shows when the first ends."""
    other, stream = start + count, bytes_in(scratch, STREAM)
    values, lengths = words_in(scratch, VALUES), words_in(scratch, LENGTHS)
    left = min(count, other_count) // 4
    at, bits, bit_count, met = _begin(plane, start + 4 * left, count - 4 * left, codes, out, at)
    other_at, other_bits, other_bit_count, other_met = _begin(
        plane, other + 4 * left, other_count - 4 * left, codes, stream, 0
    )
    met |= other_met
    while left > 0:
        groups = min(left, _GROUPS)
        left -= groups
        met |= _gather(plane, start + 4 * left, groups, values, lengths, 0, scratch)
        met |= _gather(plane, other + 4 * left, groups, values, lengths, _GROUPS, scratch)
        for group in range(groups - 1, -1, -1):
            bits |= values[group] << bit_count
            other_bits |= values[_GROUPS + group] << other_bit_count
            bit_count += lengths[group]
            other_bit_count += lengths[_GROUPS + group]
            at, bits, bit_count = _flush(out, at, bits, bit_count)
            other_at, other_bits, other_bit_count = _flush(stream, other_at, other_bits, other_bit_count)
    if met:
        return -1, 0
    store_word(out, at, bits | (np.uint64(1) << bit_count))
    store_word(stream, other_at, other_bits | (np.uint64(1) << other_bit_count))
    return at + 1, other_at + 1


@inner
def _begin(plane: Pointer, start: int, count: int, codes: Pointer, out: Pointer, at: int) -> tuple[int, int, int, int]:
    """Write the first codes of a stream, those of its last bytes, of which there are few."""
    bits, bit_count, met = np.uint64(0), np.uint64(0), np.uint64(0)
    for i in range(start + count - 1, start - 1, -1):
        entry = np.uint64(codes[np.int64(plane[i])])
        met |= entry >> np.uint64(40)
        bits |= ((entry >> np.uint64(8)) & np.uint64(0xFFFF)) << bit_count
        at, bits, bit_count = _flush(out, at, bits, bit_count + (entry & np.uint64(255)))
    return at, bits, bit_count, met


@inner
def _flush(out: Pointer, at: int, bits: int, bit_count: int) -> tuple[int, int, int]:
    """Write whole bytes, and keep what is left of one."""
    store_word(out, at, bits)
    return at + np.int64(bit_count >> np.uint64(3)), bits >> (bit_count & np.uint64(56)), bit_count & np.uint64(7)


@inner
def _gather(
    plane: Pointer, start: int, groups: int, values: Pointer, lengths: Pointer, to: int, scratch: Pointer
) -> int:
    """Codes of four bytes at a time, the last byte's lowest, and how long they are together."""
    tables, found = bytes_in(scratch, TABLES), bytes_in(scratch, FOUND)
    for number in range(3):
        look_up(plane, start, 4 * groups, tables, number * _SYMBOLS, found, number * BLOCK_WORDS)
    byte, upper, met = np.uint64(255), np.uint64(0xFF00), np.uint64(0)
    for group in range(groups):
        sizes = load_cell(found, 4 * group)
        lows = load_cell(found, BLOCK_WORDS + 4 * group)
        highs = load_cell(found, 2 * BLOCK_WORDS + 4 * group)
        met |= highs
        size_1, size_2, size_3 = (
            (sizes >> np.uint64(8)) & byte,
            (sizes >> np.uint64(16)) & byte,
            sizes >> np.uint64(24),
        )
        code_0 = (lows & byte) | ((highs << np.uint64(8)) & upper)
        code_1 = ((lows >> np.uint64(8)) & byte) | (highs & upper)
        code_2 = ((lows >> np.uint64(16)) & byte) | ((highs >> np.uint64(8)) & upper)
        code_3 = (lows >> np.uint64(24)) | ((highs >> np.uint64(16)) & upper)
        last, first = code_3 | (code_2 << size_3), code_1 | (code_0 << size_1)
        values[to + group] = last | (first << (size_2 + size_3))
        lengths[to + group] = (sizes & byte) + size_1 + size_2 + size_3
    return met & np.uint64(0x80808080)
