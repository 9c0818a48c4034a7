# ruff: noqa: ARG001 - twins take what the compiled kernels need, too
"""The kernels in NumPy: what the compiled ones must equal, byte for byte, and what runs where they are not ready.

Arrays are one-dimensional and C-contiguous; ``words`` are little-endian unsigned integers of 1, 2, 4 or 8 bytes.
Lengths are checked by the codec, never here: a kernel trusts its arguments.

Spec: docs/format.md §5.
"""

from typing import Any, Final

import numpy as np
import numpy.typing as npt

Words = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]

KEYS: Final = 256
"""A group key is one byte."""

COPY: Final = 0
ROTATE: Final = 1
XOR: Final = 2
DIFF: Final = 3
ORDERED_DIFF: Final = 4
"""Mappings of a word (and the base's word): the same numbers in every twin."""


def exponent_keys(base: Words, first_bit: int, mask: int, keys: Bytes, counts: Counts) -> None:
    """Group key of each word: the exponent of the base's word.

    Args:
        base: words[n].
        first_bit: lowest bit of the exponent.
        mask: at most 255; which bits above it count.
        keys: uint8[n], fully overwritten.
        counts: int64[256], fully overwritten with the number of words of each key.

    Cost: one pass.
    """
    np.bitwise_and(base >> base.dtype.type(first_bit), base.dtype.type(mask), out=keys, casting="unsafe")
    counts[:] = np.bincount(keys, minlength=KEYS)


def context_keys(codes: Bytes, columns: int, keys: Bytes, counts: Counts) -> None:
    """Group key of each word from the codes of its row and its column: half their sum, rounded down.

    Args:
        codes: uint8[rows + columns], rows first; the last row may be shorter than ``columns``.
        columns: words of a row.
        keys: uint8[n], fully overwritten.
        counts: int64[256], fully overwritten with the number of words of each key.

    Cost: one pass.
    """
    row_codes, column_codes = codes[:-columns].astype(np.uint16), codes[-columns:].astype(np.uint16)
    keys[:] = ((row_codes[:, None] + column_codes[None, :]) >> 1).reshape(-1)[: len(keys)]
    counts[:] = np.bincount(keys, minlength=KEYS)


def exponent_sums(words: Words, first_bit: int, mask: int, columns: int, row_sums: Counts, column_sums: Counts) -> None:
    """Sum of the exponents of each row and of each column.

    Args:
        words: words[n], seen as rows of ``columns`` words; the last row may be shorter.
        first_bit: lowest bit of the exponent.
        mask: at most 255.
        columns: words of a row.
        row_sums: int64[rows], fully overwritten.
        column_sums: int64[columns], fully overwritten.

    Cost: one pass.
    """
    exponents = ((words >> words.dtype.type(first_bit)) & words.dtype.type(mask)).astype(np.int64)
    whole_rows, rest = divmod(len(words), columns)
    matrix = exponents[: whole_rows * columns].reshape(whole_rows, columns)
    row_sums[:whole_rows] = matrix.sum(axis=1)
    column_sums[:] = matrix.sum(axis=0)
    if rest:
        row_sums[whole_rows] = exponents[-rest:].sum()
        column_sums[:rest] += exponents[-rest:]


def split(
    words: Words,
    base: Words,
    mapping: int,
    keys: Bytes,
    cursors: Counts,
    grouped_planes: int,
    planes: tuple[Bytes, ...],
) -> int:
    """Map every word and cut the results into byte planes, least significant first.

    Args:
        words: words[n], n > 0.
        base: words[n]; ignored by ``COPY`` and ``ROTATE``.
        mapping: ``COPY`` … ``ORDERED_DIFF``.
        keys: uint8[n] if any plane is grouped, else ignored.
        cursors: int64[256], where each key's group starts; destroyed.
        grouped_planes: bit p set: plane p is written in group order (stable), else in word order.
        planes: uint8[n] each, as many as a word has bytes, fully overwritten, alias neither each other nor an input.

    Returns:
        Bits that differ between any two mapped words: plane p is constant if byte p of this is 0.

    Cost: one pass, no allocation (compiled), releases the GIL.
    """
    mapped = apply(words, base, mapping)
    plain = mapped.view(np.uint8).reshape(len(mapped), mapped.itemsize).T
    order = np.argsort(keys, kind="stable") if grouped_planes else None
    for plane in range(mapped.itemsize):
        planes[plane][:] = plain[plane][order] if order is not None and grouped_planes >> plane & 1 else plain[plane]
    return int(np.bitwise_or.reduce(mapped ^ mapped[0]))


def join(
    planes: tuple[Bytes, ...],
    base: Words,
    mapping: int,
    keys: Bytes,
    cursors: Counts,
    grouped_planes: int,
    words: Words,
) -> None:
    """Inverse of :func:`split`.

    Args:
        planes: uint8[n] each, as many as a word has bytes.
        base: words[n]; ignored by ``COPY`` and ``ROTATE``.
        mapping: ``COPY`` … ``ORDERED_DIFF``.
        keys: uint8[n] if any plane is grouped, else ignored.
        cursors: int64[256], where each key's group starts; destroyed.
        grouped_planes: bit p set: plane p is in group order.
        words: words[n], fully overwritten, aliases no input.

    Cost: one pass, no allocation (compiled), releases the GIL.
    """
    matrix = words.view(np.uint8).reshape(len(words), words.itemsize)
    order = np.argsort(keys, kind="stable") if grouped_planes else None
    for plane, data in enumerate(planes):
        if order is not None and grouped_planes >> plane & 1:
            matrix[order, plane] = data
        else:
            matrix[:, plane] = data
    words[:] = _revert(words, base, mapping)


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
    """Statistics from which the entropy of each byte plane follows, alone and given the key.

    Args:
        words: words[n] of a sample.
        base: words[n]; ignored by ``COPY`` and ``ROTATE``.
        mapping: ``COPY`` … ``ORDERED_DIFF``.
        keys: uint8[n], or uint8[0] for no grouping.
        min_weight: planes of no more weight than this are taken for noise, whatever the key.
        weights: int64[n + 1], ``c·log2(c)`` in fixed point at ``weights[c]``: integers, so that every twin agrees.
        cells: int32[65536], all zero, and all zero again on return.
        out: int64[width + 1, 4], fully overwritten. A row a plane: sum of weights over its histogram, its distinct
            bytes, and both over its histogram by key (0 if that was not looked at). The last row: sum of weights over
            the histogram of the keys, distinct keys, 0, 0.

    Cost: a few passes over the sample.
    """
    mapped = apply(words, base, mapping)
    out[:] = 0
    for plane in range(words.itemsize):
        symbols = mapped.view(np.uint8).reshape(len(mapped), mapped.itemsize)[:, plane].astype(np.int64)
        out[plane, :2] = _weigh(symbols, weights)
        if len(keys) and out[plane, 0] > min_weight:
            out[plane, 2:] = _weigh(keys.astype(np.int64) * KEYS + symbols, weights)
    if len(keys):
        out[words.itemsize, :2] = _weigh(keys, weights)


def _weigh(symbols: npt.NDArray[Any], weights: Counts) -> tuple[int, int]:
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return int(weights[counts].sum()), len(counts)


def apply(words: Words, base: Words, mapping: int) -> Words:
    """The mapping alone, on whole arrays. Always a new array."""
    if mapping == COPY:
        return words.copy()
    one, top = _one_and_top(words)
    mapped: Words
    if mapping == ROTATE:
        mapped = (words << one) | (words >> top)
    elif mapping == XOR:
        mapped = words ^ base
    else:
        ordered = mapping == ORDERED_DIFF
        difference = (_float_order(words) - _float_order(base)) if ordered else words - base
        mapped = (difference << one) ^ _filled(difference >> top)
    return mapped


def _revert(mapped: Words, base: Words, mapping: int) -> Words:
    """Inverse of :func:`apply` in the first argument."""
    if mapping == COPY:
        return mapped
    one, top = _one_and_top(mapped)
    words: Words
    if mapping == ROTATE:
        words = (mapped >> one) | (mapped << top)
    elif mapping == XOR:
        words = mapped ^ base
    else:
        difference = (mapped >> one) ^ _filled(mapped & one)
        ordered = mapping == ORDERED_DIFF
        words = _float_pattern(_float_order(base) + difference) if ordered else base + difference
    return words


def _one_and_top(words: Words) -> tuple[Any, Any]:
    """1 and the number of the top bit, in the words' own type: any other would widen the result."""
    return words.dtype.type(1), words.dtype.type(8 * words.itemsize - 1)


def _filled(bits: Words) -> Words:
    """All ones where the bit is 1, else 0."""
    return np.asarray(np.zeros_like(bits) - bits)


def _float_order(words: Words) -> Words:
    """Integers in the order of the floats: negatives are complemented, the rest get the top bit."""
    one, top = _one_and_top(words)
    return np.asarray(words ^ (_filled(words >> top) | (one << top)))


def _float_pattern(ordered: Words) -> Words:
    """Inverse of :func:`_float_order`."""
    one, top = _one_and_top(ordered)
    return np.asarray(ordered ^ (_filled((ordered >> top) ^ one) | (one << top)))
