"""How compiled kernels find bytes that are in group order: for each key a cursor walks through its group.

Two stretches of words at a time, each with cursors of its own: words of one key in a row wait for each other's cursor.

Rules and reasons are those of :mod:`store.kernels.source_words`.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return"

import numpy as np

from .choosing import MAX_WIDTH_BYTES
from .pointers import Pointer, behind, bytes_in, cells_in, count_bytes, counts_in, inner, trailing_zeros
from .reference import KEYS
from .scratch import BLOCK_WORDS, CELLS, CURSORS, LATER_CURSORS, PARTS

_Stretches = tuple[int, int, int, int]
"""Where one begins and how many words it has; and the same of another one, which has at most as many."""


@inner
def exponent_keys_of(base: Pointer, word_count: int, first_bit: int, mask: int, keys: Pointer) -> None:
    """Group key of each word: some bits of it."""
    for i in range(word_count):
        keys[i] = np.uint8((np.uint64(base[i]) >> np.uint64(first_bit)) & np.uint64(mask))


@inner
def first_half(word_count: int) -> int:
    """How many words are walked through by the first cursors: whole blocks, unless these are all."""
    block_count = (word_count + BLOCK_WORDS - 1) // BLOCK_WORDS
    return min(word_count, (block_count + 1) // 2 * BLOCK_WORDS)


@inner
def stretches_from(start: int, first_count: int, word_count: int) -> tuple[int, int, int]:
    """How many words a block has from ``start`` on, and where that of the second half begins, and how many it has."""
    later_start = first_count + start
    return min(BLOCK_WORDS, first_count - start), later_start, max(0, min(BLOCK_WORDS, word_count - later_start))


@inner
def begin_halves(base: Pointer, word_count: int, first_bit: int, mask: int, keys: Pointer, scratch: Pointer) -> None:
    """Find each word's group, and where the first words of each are in it, and the first ones of the second half."""
    first_count = first_half(word_count)
    exponent_keys_of(base, word_count, first_bit, mask, keys)
    cursors, later, tables = counts_in(scratch, CURSORS), counts_in(scratch, LATER_CURSORS), cells_in(scratch, CELLS)
    count_bytes(keys, 0, first_count, cursors, tables)
    count_bytes(keys, first_count, word_count - first_count, later, tables)
    start = np.int64(0)
    for key in range(KEYS):
        middle = start + cursors[key]
        stop = middle + later[key]
        cursors[key] = start
        later[key] = middle
        start = stop


@inner
def _step(cursors: Pointer, key: int) -> int:
    """Where the next word of a group is."""
    position = cursors[np.int64(key)]
    cursors[np.int64(key)] = position + 1
    return position


@inner
def find_positions(keys: Pointer, stretches: _Stretches, cursors: tuple[Pointer, Pointer], positions: Pointer) -> None:
    """Where words are in group order; those of the second stretch from ``BLOCK_WORDS`` on."""
    start, count, later_start, later_count = stretches
    first, later = cursors
    for i in range(later_count):
        positions[i] = _step(first, keys[start + i])
        positions[BLOCK_WORDS + i] = _step(later, keys[later_start + i])
    for i in range(later_count, count):
        positions[i] = _step(first, keys[start + i])


@inner
def take_from_groups(
    planes: Pointer,
    keys: Pointer,
    stretches: _Stretches,
    cursors: tuple[Pointer, Pointer],
    grouped_planes: int,
    scratch: Pointer,
) -> None:
    """Take the bytes of two stretches of words, of each grouped plane, to where :func:`part_of` says."""
    parts, positions = bytes_in(scratch, PARTS), cells_in(scratch, CELLS)
    lowest = np.int64(trailing_zeros(np.uint64(grouped_planes)))
    others = grouped_planes & (grouped_planes - 1)
    next_lowest = np.int64(trailing_zeros(np.uint64(others | 1 << 63)))
    if others == 0:
        _take(planes[lowest], keys, stretches, cursors, behind(parts, part_of(lowest, 0)))
    elif others == 1 << next_lowest:
        two, parts_of_two = (planes[lowest], planes[next_lowest]), (part_of(lowest, 0), part_of(next_lowest, 0))
        _take_two(two, keys, stretches, cursors, behind(parts, parts_of_two[0]), behind(parts, parts_of_two[1]))
    else:
        find_positions(keys, stretches, cursors, positions)
        for number in range(lowest, MAX_WIDTH_BYTES):
            if grouped_planes >> number & 1:
                _take_at(planes[number], positions, stretches, behind(parts, part_of(number, 0)))


@inner
def part_of(number: int, which: int) -> int:
    """Where bytes of a plane are that were taken from their groups, of the first or the second of two stretches."""
    return (2 * number + which) * BLOCK_WORDS


@inner
def _take_at(plane: Pointer, positions: Pointer, stretches: _Stretches, part: Pointer) -> None:
    for i in range(stretches[1]):
        part[i] = plane[positions[i]]
    for i in range(BLOCK_WORDS, BLOCK_WORDS + stretches[3]):
        part[i] = plane[positions[i]]


@inner
def _take(
    plane: Pointer, keys: Pointer, stretches: _Stretches, cursors: tuple[Pointer, Pointer], part: Pointer
) -> None:
    """For one plane alone: positions need not be kept."""
    start, count, later_start, later_count = stretches
    first, later = cursors
    for i in range(later_count):
        position, later_position = _step(first, keys[start + i]), _step(later, keys[later_start + i])
        part[i] = plane[position]
        part[BLOCK_WORDS + i] = plane[later_position]
    for i in range(later_count, count):
        position = _step(first, keys[start + i])
        part[i] = plane[position]


@inner
def _take_two(
    planes: tuple[Pointer, Pointer],
    keys: Pointer,
    stretches: _Stretches,
    cursors: tuple[Pointer, Pointer],
    part: Pointer,
    other_part: Pointer,
) -> None:
    """For two planes alone: the same. More of them only other writers put in group order."""
    start, count, later_start, later_count = stretches
    first, later = cursors
    plane, other = planes
    for i in range(later_count):
        position, later_position = _step(first, keys[start + i]), _step(later, keys[later_start + i])
        part[i] = plane[position]
        other_part[i] = other[position]
        part[BLOCK_WORDS + i] = plane[later_position]
        other_part[BLOCK_WORDS + i] = other[later_position]
    for i in range(later_count, count):
        position = _step(first, keys[start + i])
        part[i] = plane[position]
        other_part[i] = other[position]
