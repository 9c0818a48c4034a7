"""The kernels, compiled by numba: same arguments, same bytes as :mod:`store.kernels.reference`.

Importing this module imports numba and compiles nothing: a kernel is compiled, or read from numba's cache, when it is
first called. :mod:`store.kernels` sees to it that this never happens in a process that trains. Work goes in blocks
that fit the first-level cache, so that every inner loop does one simple thing and vectorises. No ``parallel=True``:
parallelism is over chunks.
"""

# Annotations say what a caller passes; between kernels numba has unsigned words where mypy sees ``int``.
# mypy: disable-error-code="import-untyped,arg-type,return-value,no-any-return"

from collections.abc import Callable
from typing import TypeVar, cast

import numba
import numpy as np
import numpy.typing as npt

from .reference import COPY, KEYS, ORDERED_DIFF, ROTATE, XOR, Bytes, Counts, Words

_Function = TypeVar("_Function", bound=Callable[..., object])
_BLOCK = 1024


def _kernel(function: _Function) -> _Function:
    return cast(_Function, numba.njit(nogil=True, cache=True, boundscheck=False)(function))


@_kernel
def exponent_keys(base: Words, first_bit: int, mask: int, keys: Bytes, counts: Counts) -> None:
    """Twin: :func:`store.kernels.reference.exponent_keys`."""
    for i in range(base.size):
        keys[i] = np.uint8((base[i] >> first_bit) & mask)
    _count(keys, counts)


@_kernel
def _count(keys: Bytes, counts: Counts) -> None:
    # Four tables: equal keys in a row would wait for each other's increment.
    tables = np.zeros((4, KEYS), np.int32)
    whole = keys.size & ~3
    for i in range(0, whole, 4):
        tables[0, keys[i]] += 1
        tables[1, keys[i + 1]] += 1
        tables[2, keys[i + 2]] += 1
        tables[3, keys[i + 3]] += 1
    for i in range(whole, keys.size):
        tables[0, keys[i]] += 1
    for key in range(KEYS):
        counts[key] = tables[0, key] + tables[1, key] + tables[2, key] + tables[3, key]


@_kernel
def context_keys(codes: Bytes, columns: int, keys: Bytes, counts: Counts) -> None:
    """Twin: :func:`store.kernels.reference.context_keys`."""
    row_count = codes.size - columns
    column_codes = codes[row_count:]
    for row in range(row_count):
        row_keys = keys[row * columns : (row + 1) * columns]
        row_code = np.uint16(codes[row])
        for column in range(row_keys.size):
            row_keys[column] = np.uint8((row_code + np.uint16(column_codes[column])) >> 1)
    _count(keys, counts)


@_kernel
def exponent_sums(words: Words, first_bit: int, mask: int, columns: int, row_sums: Counts, column_sums: Counts) -> None:
    """Twin: :func:`store.kernels.reference.exponent_sums`."""
    column_sums[:] = 0
    for row in range(row_sums.size):
        row_words = words[row * columns : (row + 1) * columns]
        total = np.int64(0)
        for column in range(row_words.size):
            exponent = np.int64((row_words[column] >> first_bit) & mask)
            total += exponent
            column_sums[column] += exponent
        row_sums[row] = total


@_kernel
def _map_block(words: Words, base: Words, mapping: int, mapped: Words) -> None:
    top = np.uint64(8 * words.itemsize - 1)
    one = np.uint64(1)
    if mapping == COPY:
        for i in range(words.size):
            mapped[i] = words[i]
    elif mapping == ROTATE:
        for i in range(words.size):
            mapped[i] = (words[i] << one) | (words[i] >> top)
    elif mapping == XOR:
        for i in range(words.size):
            mapped[i] = words[i] ^ base[i]
    else:
        # The order of floats less its constant, which cancels out: all bits but the sign are flipped below zero.
        flipped = ((one << top) - one) if mapping == ORDERED_DIFF else np.uint64(0)
        for i in range(words.size):
            word, old = np.uint64(words[i]), np.uint64(base[i])
            word ^= (np.uint64(0) - (word >> top)) & flipped
            old ^= (np.uint64(0) - (old >> top)) & flipped
            difference = word - old
            mapped[i] = (difference << one) ^ (np.uint64(0) - ((difference >> top) & one))


@_kernel
def _unmap_block(mapped: Words, base: Words, mapping: int, words: Words) -> None:
    top = np.uint64(8 * words.itemsize - 1)
    one = np.uint64(1)
    if mapping == COPY:
        for i in range(words.size):
            words[i] = mapped[i]
    elif mapping == ROTATE:
        for i in range(words.size):
            words[i] = (mapped[i] >> one) | (mapped[i] << top)
    elif mapping == XOR:
        for i in range(words.size):
            words[i] = mapped[i] ^ base[i]
    else:
        flipped = ((one << top) - one) if mapping == ORDERED_DIFF else np.uint64(0)
        for i in range(words.size):
            zigzag, word = np.uint64(mapped[i]), np.uint64(base[i])
            word ^= (np.uint64(0) - (word >> top)) & flipped
            word += (zigzag >> one) ^ (np.uint64(0) - (zigzag & one))
            words[i] = word ^ ((np.uint64(0) - ((word >> top) & one)) & flipped)


@_kernel
def _positions(keys: Bytes, cursors: Counts, positions: npt.NDArray[np.uint32]) -> None:
    for i in range(keys.size):
        key = keys[i]
        positions[i] = cursors[key]
        cursors[key] += 1


@_kernel
def _scatter(keys: Bytes, cursors: Counts, block: Words, shift: int, plane: Bytes) -> None:
    for i in range(keys.size):
        key = keys[i]
        position = cursors[key]
        cursors[key] = position + 1
        plane[position] = np.uint8(block[i] >> shift)


@_kernel
def _gather(keys: Bytes, cursors: Counts, plane: Bytes, part: Bytes) -> None:
    for i in range(keys.size):
        key = keys[i]
        position = cursors[key]
        cursors[key] = position + 1
        part[i] = plane[position]


# Shifts by constants: by a variable, four planes take twice as long.


@_kernel
def _take_plane(block: Words, number: int, part: Bytes) -> None:
    if number == 0:
        for i in range(part.size):
            part[i] = np.uint8(block[i])
    elif number == 1:
        for i in range(part.size):
            part[i] = np.uint8(block[i] >> 8)
    elif number == 2:
        for i in range(part.size):
            part[i] = np.uint8(block[i] >> 16)
    elif number == 3:
        for i in range(part.size):
            part[i] = np.uint8(block[i] >> 24)
    else:
        shift = np.uint64(8 * number)
        for i in range(part.size):
            part[i] = np.uint8(block[i] >> shift)


@_kernel
def _put_plane(part: Bytes, number: int, block: Words) -> None:
    if number == 0:
        for i in range(block.size):
            block[i] = part[i]
    elif number == 1:
        for i in range(block.size):
            block[i] |= np.uint64(part[i]) << 8
    elif number == 2:
        for i in range(block.size):
            block[i] |= np.uint64(part[i]) << 16
    elif number == 3:
        for i in range(block.size):
            block[i] |= np.uint64(part[i]) << 24
    else:
        shift = np.uint64(8 * number)
        for i in range(block.size):
            block[i] |= np.uint64(part[i]) << shift


@_kernel
def _differing_bits(block: Words, first: int) -> int:
    varying = first ^ first
    for i in range(block.size):
        varying |= block[i] ^ first
    return varying


@_kernel
def split(
    words: Words,
    base: Words,
    mapping: int,
    keys: Bytes,
    cursors: Counts,
    grouped_planes: int,
    planes: tuple[Bytes, ...],
) -> int:
    """Twin: :func:`store.kernels.reference.split`."""
    mapped = np.empty(_BLOCK, words.dtype)
    positions = np.empty(_BLOCK, np.uint32)
    _map_block(words[:1], base[:1], mapping, mapped)
    first = mapped[0]
    varying = first ^ first
    one_grouped = grouped_planes & (grouped_planes - 1) == 0
    for start in range(0, words.size, _BLOCK):
        stop = min(start + _BLOCK, words.size)
        block = mapped[: stop - start]
        _map_block(words[start:stop], base[start:stop], mapping, block)
        varying |= _differing_bits(block, first)
        if not one_grouped:
            _positions(keys[start:stop], cursors, positions)
        for plane in range(words.itemsize):
            shift = np.uint64(8 * plane)
            whole = planes[plane]
            if not grouped_planes >> plane & 1:
                _take_plane(block, plane, whole[start:stop])
            elif one_grouped:
                _scatter(keys[start:stop], cursors, block, shift, whole)
            else:
                for i in range(block.size):
                    whole[positions[i]] = np.uint8(block[i] >> shift)
    return varying


@_kernel
def join(
    planes: tuple[Bytes, ...],
    base: Words,
    mapping: int,
    keys: Bytes,
    cursors: Counts,
    grouped_planes: int,
    words: Words,
) -> None:
    """Twin: :func:`store.kernels.reference.join`."""
    mapped = np.empty(_BLOCK, words.dtype)
    positions = np.empty(_BLOCK, np.uint32)
    row = np.empty(_BLOCK, np.uint8)
    one_grouped = grouped_planes & (grouped_planes - 1) == 0
    for start in range(0, words.size, _BLOCK):
        stop = min(start + _BLOCK, words.size)
        block = mapped[: stop - start]
        if not one_grouped:
            _positions(keys[start:stop], cursors, positions)
        for plane in range(words.itemsize):
            whole = planes[plane]
            if not grouped_planes >> plane & 1:
                _put_plane(whole[start:stop], plane, block)
                continue
            part = row[: stop - start]
            if one_grouped:
                _gather(keys[start:stop], cursors, whole, part)
            else:
                for i in range(part.size):
                    part[i] = whole[positions[i]]
            _put_plane(part, plane, block)
        _unmap_block(block, base[start:stop], mapping, words[start:stop])


@_kernel
def order_costs(
    words: Words,
    base: Words,
    mapping: int,
    keys: Bytes,
    min_weight: int,
    weights: Counts,
    cells: npt.NDArray[np.int32],
    out: Counts,
) -> None:
    """Twin: :func:`store.kernels.reference.order_costs`."""
    mapped = np.empty(words.size, words.dtype)
    _map_block(words, base, mapping, mapped)
    out[:] = 0
    # All planes in one loop: equal bytes in a row wait for each other's increment, and planes do not.
    for i in range(mapped.size):
        word = np.uint64(mapped[i])
        for plane in range(words.itemsize):
            cells[plane * KEYS + (word >> np.uint64(8 * plane)) % KEYS] += 1
    for plane in range(words.itemsize):
        _weigh(cells[plane * KEYS : (plane + 1) * KEYS], weights, out[plane])
    if keys.size == 0:
        return
    for i in range(keys.size):
        cells[keys[i]] += 1
    _weigh(cells[:KEYS], weights, out[words.itemsize])
    for plane in range(words.itemsize):
        if out[plane, 0] > min_weight:
            _weigh_by_key(mapped, np.uint64(8 * plane), keys, weights, cells, out[plane, 2:])


@_kernel
def _weigh(cells: npt.NDArray[np.int32], weights: Counts, out: Counts) -> None:
    for symbol in range(cells.size):
        count = cells[symbol]
        cells[symbol] = 0
        out[0] += weights[count]
        out[1] += count > 0


@_kernel
def _weigh_by_key(
    words: Words, shift: int, keys: Bytes, weights: Counts, cells: npt.NDArray[np.int32], out: Counts
) -> None:
    # Only cells that were touched are read and zeroed: the table is far larger than the sample.
    weight, distinct = np.int64(0), np.int64(0)
    for i in range(words.size):
        cells[(np.uint32(keys[i]) << 8) | np.uint8(words[i] >> shift)] += 1
    for i in range(words.size):
        cell = (np.uint32(keys[i]) << 8) | np.uint8(words[i] >> shift)
        weight += weights[cells[cell]]
        distinct += cells[cell] > 0
        cells[cell] = 0
    out[0] = weight
    out[1] = distinct
