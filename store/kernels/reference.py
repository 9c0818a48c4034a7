# ruff: noqa: ARG001 - twins take what the compiled kernels need, too
"""The kernels in NumPy: what the compiled ones must equal, byte for byte, and what runs where they are not ready.

Arrays are one-dimensional and C-contiguous; ``words`` are little-endian unsigned integers of 1, 2, 4 or 8 bytes.
Lengths are checked by the codec, never here: a kernel trusts its arguments.

Spec: docs/format.md §5.
"""

import ctypes
from collections.abc import Iterator
from typing import Any, Final, NamedTuple

import numpy as np
import numpy.typing as npt

from ..limits import SAMPLE_WORDS
from .framing import compress as compress  # noqa: PLC0414 - one of the twins

Words = npt.NDArray[Any]
Bytes = npt.NDArray[np.uint8]
Counts = npt.NDArray[np.int64]


class Runs(NamedTuple):
    """Words of a sample: stretches of neighbours, equally far apart. The first begins at the first word.

    Attributes:
        stride: words from one run's beginning to the next's.
        run_words: words of a run.
        run_count: how many there are.
    """

    stride: int
    run_words: int
    run_count: int


KEYS: Final = 256
"""A group key is one byte."""

_BLOCK_BYTES: Final = 64 * 1024
"""What is worked on at a time: fits the second-level cache, and is long enough for NumPy to get going."""

WEIGHT_OF_ONE_BIT: Final = 1 << 16


def _weights() -> Counts:
    counts = np.arange(1, SAMPLE_WORDS + 1)
    return np.concatenate(([0], np.rint(counts * np.log2(counts) * WEIGHT_OF_ONE_BIT))).astype(np.int64)


WEIGHTS: Final = _weights()
"""``c·log2(c)`` for each count ``c`` of a sample, in fixed point: integers, so that every twin agrees."""

COPY: Final = 0
ROTATE: Final = 1
XOR: Final = 2
DIFF: Final = 3
ORDERED_DIFF: Final = 4
"""Mappings of a word (and the base's word): the same numbers in every twin."""


STREAM_LINE_BYTES: Final = 64
"""What is streamed at a time: a cache line, written whole, need not be read first."""


def stream(target_at: int, source_at: int, size_bytes: int) -> None:
    """Copy bytes past the caches, for a target that is not read soon.

    Args:
        target_at: address, a multiple of ``STREAM_LINE_BYTES``.
        source_at: address; what lies there does not overlap the target.
        size_bytes: a multiple of ``STREAM_LINE_BYTES``.

    Cost: one pass, a third shorter than one through the caches, which reads the target before it is written.
    """
    ctypes.memmove(target_at, source_at, size_bytes)


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
    first, varying = _apply(words[:1], base[:1], mapping), 0
    for block in _blocks(words):
        mapped = _apply(words[block], base[block], mapping)
        varying |= int(np.bitwise_or.reduce(mapped ^ first))
        for number, plane in enumerate(planes):
            plane[block] = mapped >> words.dtype.type(8 * number)
    if grouped_planes:
        order = np.argsort(keys, kind="stable")
        for number, plane in enumerate(planes):
            if grouped_planes >> number & 1:
                plane[:] = plane[order]
    return varying


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
        words: words[n], fully overwritten, with final values only; aliases no input.

    Cost: one pass, no allocation (compiled), releases the GIL.
    """
    plain = list(planes)
    if grouped_planes:
        order = np.argsort(keys, kind="stable")
        for number, plane in enumerate(planes):
            if grouped_planes >> number & 1:
                plain[number] = np.empty_like(plane)
                plain[number][order] = plane
    for block in _blocks(words):
        # Aside: others may be reading these words, where two targets overlap that hold the same.
        mapped = np.empty(len(words[block]), words.dtype)
        matrix = mapped.view(np.uint8).reshape(-1, words.itemsize)
        for number, plane in enumerate(plain):
            matrix[:, number] = plane[block]
        words[block] = _revert(mapped, base[block], mapping)


def _blocks(words: Words) -> Iterator[slice]:
    """The words in pieces that stay in the cache while every plane is made of them."""
    block_words = _BLOCK_BYTES // words.itemsize
    return (slice(start, start + block_words) for start in range(0, len(words), block_words))


def order_costs(
    words: Words,
    base: Words,
    runs: Runs,
    mapping: int,
    key_field: tuple[int, int],
    min_weight: int,
) -> list[list[int]]:
    """Statistics of a sample, from which the entropy of each byte plane follows, alone and given the key.

    Args:
        words: words[n].
        base: words[n]; ignored by ``COPY`` and ``ROTATE`` unless there are keys.
        runs: which words are looked at, ``SAMPLE_WORDS`` at most.
        mapping: ``COPY`` … ``ORDERED_DIFF``.
        key_field: lowest bit and mask of the base's exponent, as in :func:`exponent_keys`; mask 0 for no keys.
        min_weight: planes of no more weight than this are taken for noise, whatever the key.

    Returns:
        Four numbers a plane: the sum of ``WEIGHTS`` over its histogram, its distinct bytes, and both over its
        histogram by key (0 if that was not looked at). Then the sum of ``WEIGHTS`` over the histogram of the keys,
        how many keys there are, 0 and 0.

    Cost: a few passes over the sample.
    """
    sample, old = _picked(words, runs), _picked(base, runs)
    mapped = _apply(sample, old, mapping)
    first_bit, mask = (words.dtype.type(number) for number in key_field)
    keys = ((old >> first_bit) & mask).astype(np.int64) if mask else None
    costs = []
    for plane in range(words.itemsize):
        symbols = mapped.view(np.uint8).reshape(len(mapped), mapped.itemsize)[:, plane].astype(np.int64)
        alone, by_key = _weigh(symbols), [0, 0]
        if keys is not None and alone[0] > min_weight:
            by_key = _weigh(keys * KEYS + symbols)
        costs.append(alone + by_key)
    return [*costs, (_weigh(keys) if keys is not None else [0, 0]) + [0, 0]]


def _picked(words: Words, runs: Runs) -> Words:
    starts = runs.stride * np.arange(runs.run_count)
    return np.asarray(words[(starts[:, None] + np.arange(runs.run_words)).reshape(-1)])


def _weigh(symbols: npt.NDArray[Any]) -> list[int]:
    counts = np.bincount(symbols)
    counts = counts[counts > 0]
    return [int(WEIGHTS[counts].sum()), len(counts)]


def _apply(words: Words, base: Words, mapping: int) -> Words:
    """The mapping alone. Always a new array."""
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
    """Inverse of :func:`_apply` in the first argument."""
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
