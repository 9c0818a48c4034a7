"""The kernels that see words, as numba compiles them: the same bytes as :mod:`store.kernels.reference`.

Imported by :mod:`store.kernels.building` alone, in a process of its own: everybody else loads what that made. Arguments
are those of the twins, with arrays as pointers followed by their lengths, and scratch memory at the end: nothing here
allocates or raises, so that the object code needs nothing of numba's. Work goes in blocks that fit the first-level
cache, so that every inner loop does one simple thing and vectorises.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return"

import numpy as np

from .mapping import COPY, ORDERED_DIFF, ROTATE, XOR
from .pointers import (
    Pointer,
    behind,
    bytes_in,
    cells_in,
    count_bytes,
    counts_in,
    fence,
    inner,
    like_in,
    narrow,
    stream_line,
    width_of,
)
from .reference import KEYS, STREAM_LINE_BYTES
from .scratch import BLOCK, BLOCK_WORDS, CELLS, COSTS, CURSORS, HISTOGRAM, LATER_CURSORS, PARTS, SAMPLE, SAMPLE_KEYS
from .source_groups import exponent_keys_of, find_positions, first_half, part_of, stretches_from, take_from_groups


def stream(target: Pointer, source: Pointer, size_bytes: int) -> None:
    """Twin: :func:`store.kernels.reference.stream`."""
    for at in range(0, size_bytes, STREAM_LINE_BYTES):
        stream_line(target, source, at)
    fence()


def exponent_keys(
    base: Pointer, word_count: int, first_bit: int, mask: int, keys: Pointer, counts: Pointer, tables: Pointer
) -> None:
    """Twin: :func:`store.kernels.reference.exponent_keys`."""
    exponent_keys_of(base, word_count, first_bit, mask, keys)
    count_bytes(keys, 0, word_count, counts, tables)


def context_keys(
    codes: Pointer, row_count: int, columns: int, keys: Pointer, key_count: int, counts: Pointer, tables: Pointer
) -> None:
    """Twin: :func:`store.kernels.reference.context_keys`."""
    for row in range(row_count):
        start = row * columns
        row_code = np.uint16(codes[row])
        for column in range(min(columns, key_count - start)):
            keys[start + column] = np.uint8((row_code + np.uint16(codes[row_count + column])) >> 1)
    count_bytes(keys, 0, key_count, counts, tables)


@inner
def _map_block(words: Pointer, base: Pointer, start: int, count: int, mapping: int, mapped: Pointer, at: int) -> None:
    top = np.uint64(8 * width_of(words) - 1)
    one = np.uint64(1)
    if mapping == COPY:
        for i in range(count):
            mapped[at + i] = words[start + i]
    elif mapping == ROTATE:
        for i in range(count):
            word = np.uint64(words[start + i])
            mapped[at + i] = (word << one) | (word >> top)
    elif mapping == XOR:
        for i in range(count):
            mapped[at + i] = words[start + i] ^ base[start + i]
    else:
        # The order of floats less its constant, which cancels out: all bits but the sign are flipped below zero.
        flipped = narrow(words, ((one << top) - one) if mapping == ORDERED_DIFF else np.uint64(0))
        for i in range(count):
            word, old = words[start + i], base[start + i]
            word ^= narrow(words, np.uint64(0) - (word >> top)) & flipped
            old ^= narrow(words, np.uint64(0) - (old >> top)) & flipped
            difference = narrow(words, word - old)
            mapped[at + i] = narrow(words, difference << one) ^ narrow(words, np.uint64(0) - (difference >> top))


@inner
def unmap_block(mapped: Pointer, base: Pointer, start: int, count: int, mapping: int, words: Pointer) -> None:
    """Map a block of words back, to any place, also its own."""
    top = np.uint64(8 * width_of(words) - 1)
    one = np.uint64(1)
    if mapping == COPY:
        for i in range(count):
            words[start + i] = mapped[i]
    elif mapping == ROTATE:
        for i in range(count):
            rotated = np.uint64(mapped[i])
            words[start + i] = (rotated >> one) | (rotated << top)
    elif mapping == XOR:
        for i in range(count):
            words[start + i] = mapped[i] ^ base[start + i]
    else:
        flipped = narrow(words, ((one << top) - one) if mapping == ORDERED_DIFF else np.uint64(0))
        for i in range(count):
            zigzag, word = mapped[i], base[start + i]
            word ^= narrow(words, np.uint64(0) - (word >> top)) & flipped
            word = narrow(words, word + ((zigzag >> one) ^ narrow(words, np.uint64(0) - (zigzag & one))))
            words[start + i] = word ^ (narrow(words, np.uint64(0) - (word >> top)) & flipped)


# Shifts by constants: by a variable, four planes take twice as long.


@inner
def _take_plane(block: Pointer, count: int, number: int, plane: Pointer, start: int) -> None:
    if number == 0:
        for i in range(count):
            plane[start + i] = np.uint8(block[i])
    elif number == 1:
        for i in range(count):
            plane[start + i] = np.uint8(np.uint64(block[i]) >> np.uint64(8))
    elif number == 2:
        for i in range(count):
            plane[start + i] = np.uint8(np.uint64(block[i]) >> np.uint64(16))
    elif number == 3:
        for i in range(count):
            plane[start + i] = np.uint8(np.uint64(block[i]) >> np.uint64(24))
    else:
        shift = np.uint64(8 * number)
        for i in range(count):
            plane[start + i] = np.uint8(np.uint64(block[i]) >> shift)


@inner
def _put_plane(plane: Pointer, start: int, number: int, block: Pointer, count: int) -> None:
    if number == 0:
        for i in range(count):
            block[i] = plane[start + i]
    elif number == 1:
        for i in range(count):
            block[i] |= np.uint64(plane[start + i]) << np.uint64(8)
    elif number == 2:
        for i in range(count):
            block[i] |= np.uint64(plane[start + i]) << np.uint64(16)
    elif number == 3:
        for i in range(count):
            block[i] |= np.uint64(plane[start + i]) << np.uint64(24)
    else:
        shift = np.uint64(8 * number)
        for i in range(count):
            block[i] |= np.uint64(plane[start + i]) << shift


@inner
def _differing_bits(block: Pointer, count: int, first: int) -> int:
    varying = np.uint64(0)
    for i in range(count):
        varying |= np.uint64(block[i]) ^ first
    return varying


@inner
def split(
    words: Pointer,
    base: Pointer,
    word_count: int,
    mapping: int,
    keys: Pointer,
    grouped_planes: int,
    planes: Pointer,
    scratch: Pointer,
) -> int:
    """Twin: :func:`store.kernels.reference.split`, with the cursors of both halves in the scratch."""
    block, positions = like_in(scratch, BLOCK, words), cells_in(scratch, CELLS)
    cursors = counts_in(scratch, CURSORS), counts_in(scratch, LATER_CURSORS)
    _map_block(words, base, 0, 1, mapping, block, 0)
    first = np.uint64(block[0])
    varying = np.uint64(0)
    first_count = first_half(word_count) if grouped_planes else word_count
    for start in range(0, first_count, BLOCK_WORDS):
        count, later_start, later_count = stretches_from(start, first_count, word_count)
        if grouped_planes:
            find_positions(keys, (start, count, later_start, later_count), cursors, positions)
        for which in range(2 if later_count else 1):  # one call in a loop: two would be compiled twice
            at, size = (later_start, later_count) if which else (start, count)
            _map_block(words, base, at, size, mapping, block, 0)
            varying |= _differing_bits(block, size, first)
            _take_planes(block, size, at, grouped_planes, behind(positions, which * BLOCK_WORDS), planes)
    return varying


@inner
def _take_planes(
    block: Pointer, count: int, start: int, grouped_planes: int, positions: Pointer, planes: Pointer
) -> None:
    for number in range(width_of(block)):
        plane = planes[number]
        if grouped_planes >> number & 1:
            shift = np.uint64(8 * number)
            for i in range(count):
                plane[positions[i]] = np.uint8(np.uint64(block[i]) >> shift)
        else:
            _take_plane(block, count, number, plane, start)


@inner
def join_block(
    planes: Pointer, start: int, count: int, grouped_planes: int, parts: Pointer, first_part: int, block: Pointer
) -> None:
    """Put words together that are yet to be mapped back, those of grouped planes from where they were taken to."""
    for number in range(width_of(block)):
        if grouped_planes >> number & 1:
            _put_plane(parts, part_of(number, first_part), number, block, count)
        else:
            _put_plane(planes[number], start, number, block, count)


def join(
    planes: Pointer,
    base: Pointer,
    word_count: int,
    mapping: int,
    keys: Pointer,
    cursors: Pointer,
    grouped_planes: int,
    words: Pointer,
    scratch: Pointer,
) -> None:
    """Twin: :func:`store.kernels.reference.join`."""
    block, parts = like_in(scratch, BLOCK, words), bytes_in(scratch, PARTS)
    for start in range(0, word_count, BLOCK_WORDS):
        count = min(BLOCK_WORDS, word_count - start)
        if grouped_planes:
            take_from_groups(planes, keys, (start, count, 0, 0), (cursors, cursors), grouped_planes, scratch)
        join_block(planes, start, count, grouped_planes, parts, 0, block)
        unmap_block(block, base, start, count, mapping, words)


@inner
def order_costs(
    words: Pointer,
    base: Pointer,
    stride: int,
    run_words: int,
    run_count: int,
    mapping: int,
    first_bit: int,
    mask: int,
    min_weight: int,
    weights: Pointer,
    scratch: Pointer,
) -> None:
    """Twin: :func:`store.kernels.estimating.order_costs`."""
    cells, out = cells_in(scratch, HISTOGRAM), counts_in(scratch, COSTS)
    sample, keys = like_in(scratch, SAMPLE, words), bytes_in(scratch, SAMPLE_KEYS)
    width, count = width_of(words), run_words * run_count
    for number in range(4 * (width + 1)):
        out[number] = 0
    for run in range(run_count):
        _map_block(words, base, run * stride, run_words, mapping, sample, run * run_words)
    # All planes in one loop, and two tables for each: equal bytes in a row wait for each other's increment.
    for i in range(count):
        word, table = np.uint64(sample[i]), np.uint64(KEYS * (i & 1))
        for number in range(width):
            byte = (word >> np.uint64(8 * number)) & np.uint64(255)
            cells[np.uint64(2 * KEYS * number) + table + byte] += 1
    for number in range(width):
        for cell in range(2 * KEYS * number, 2 * KEYS * number + KEYS):
            cells[cell] += cells[cell + KEYS]
            cells[cell + KEYS] = 0
        _weigh(cells, 2 * KEYS * number, weights, out, 4 * number)
    if mask == 0:
        return
    for run in range(run_count):
        for i in range(run_words):
            key = np.uint8((np.uint64(base[run * stride + i]) >> np.uint64(first_bit)) & np.uint64(mask))
            keys[run * run_words + i] = key
            cells[np.int64(key)] += 1
    _weigh(cells, 0, weights, out, 4 * width)
    for number in range(width):
        if out[4 * number] > min_weight:
            _weigh_by_key(sample, count, np.uint64(8 * number), keys, weights, cells, out, 4 * number + 2)


@inner
def _weigh(cells: Pointer, start: int, weights: Pointer, out: Pointer, at: int) -> None:
    weight, distinct = np.int64(0), np.int64(0)
    for cell in range(start, start + KEYS):
        weight += weights[cells[cell]]
        distinct += cells[cell] > 0
        cells[cell] = 0
    out[at] = weight
    out[at + 1] = distinct


@inner
def _weigh_by_key(
    words: Pointer,
    word_count: int,
    shift: int,
    keys: Pointer,
    weights: Pointer,
    cells: Pointer,
    out: Pointer,
    at: int,
) -> None:
    # Only cells that were touched are read and zeroed: the table is far larger than the sample.
    weight, distinct = np.int64(0), np.int64(0)
    for i in range(word_count):
        cells[(np.int64(keys[i]) << 8) | np.int64((np.uint64(words[i]) >> shift) & np.uint64(255))] += 1
    for i in range(word_count):
        cell = (np.int64(keys[i]) << 8) | np.int64((np.uint64(words[i]) >> shift) & np.uint64(255))
        weight += weights[cells[cell]]
        distinct += cells[cell] > 0
        cells[cell] = 0
    out[at] = weight
    out[at + 1] = distinct
