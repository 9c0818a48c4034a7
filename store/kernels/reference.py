# ruff: noqa: ARG001 - twins take what the compiled kernels need, too
"""The kernels in NumPy: what the compiled ones must equal, byte for byte, and what runs where they are not ready.

Arrays are one-dimensional and C-contiguous; ``words`` are little-endian unsigned integers of 1, 2, 4 or 8 bytes.
Lengths are checked by the codec, never here: a kernel trusts its arguments.

Spec: docs/format.md §5.
"""

import ctypes
import struct
from collections.abc import Iterator
from typing import Final

import numpy as np

from . import choosing
from .casting import cast as cast  # noqa: PLC0414 - two of the twins
from .casting import largest as largest  # noqa: PLC0414
from .choosing import CODED, GROUPED, MAPPING, PLANES
from .estimating import Candidates
from .estimating import choose as choose  # noqa: PLC0414 - one of the twins
from .framing import compress, frame_room
from .mapping import Bytes, Counts, Words, apply, revert
from .payloads import CODED_BODY, CONSTANT_BODY, IS_GROUPED, RAW_BODY, REFUSED, entry_of

KEYS: Final = 256
"""A group key is one byte."""

_BLOCK_BYTES: Final = 64 * 1024
"""What is worked on at a time: fits the second-level cache, and is long enough for NumPy to get going."""

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
    first, varying = apply(words[:1], base[:1], mapping), 0
    for block in _blocks(words):
        mapped = apply(words[block], base[block], mapping)
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
        grouped_planes: bit p set: plane p is in group order. No bit of a plane that there is not.
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
        words[block] = revert(mapped, base[block], mapping)


def encode(words: Words, base: Words, candidates: Candidates, plan: Counts, out: Bytes) -> int:
    """Encode a chunk as planned.

    Args:
        words: words[n], n > 0.
        base: words[n]; ignored by ``COPY`` and ``ROTATE``.
        candidates: what was chosen from.
        plan: as :func:`choose` made it. Planes to be matched stay as they are: the kernels do not look for repeats.
        out: uint8 of :func:`store.kernels.payloads.payload_room` bytes; the first are overwritten with the payload.

    Returns:
        Bytes of the payload. It may be a little longer than the chunk, if nothing is gained.

    Cost: 0.3–0.5 ns a byte of a large chunk (compiled), no allocation beyond scratch for each thread, releases the GIL.
    """
    codes = plan[PLANES : PLANES + words.itemsize].tolist()
    grouped_planes = sum(1 << number for number, code in enumerate(codes) if code & GROUPED)
    keys, counts, ends = np.empty(len(words), np.uint8), np.zeros(KEYS, np.int64), [0] * (KEYS + 1)
    if grouped_planes:
        exponent_keys(base, candidates.first_bit, candidates.mask, keys, counts)
        del ends[choosing.stretch_ends(counts.tolist(), ends) :]
    cursors, stretches = np.cumsum(counts) - counts, np.array(ends)
    planes = np.empty((words.itemsize, len(words)), np.uint8)
    varying = split(words, base, plan.item(MAPPING), keys, cursors, grouped_planes, tuple(planes))
    entries, bodies = [], []
    for number, (plane, code) in enumerate(zip(planes, codes, strict=True)):
        coding, body = (
            _body(plane, code, stretches) if varying >> (8 * number) & 255 else (CONSTANT_BODY, plane[:1].tobytes())
        )
        grouped = IS_GROUPED if code & GROUPED and coding != CONSTANT_BODY else 0
        entries.append(entry_of(coding, grouped, len(body)))
        bodies.append(body)
    payload = b"".join([struct.pack(f"<{len(entries)}I", *entries), *bodies])
    out[: len(payload)] = np.frombuffer(payload, np.uint8)
    return len(payload)


def decode(
    payload: Bytes,
    base: Words,
    mapping: int,
    exponent: tuple[int, int],
    words: Words,
    *,
    grouped: bool,
    streamed: bool,
) -> int:
    """Decode a whole payload, if it is one that the kernels write: compiled ones spare much, and this never does it.

    Args:
        payload: uint8[…], untrusted.
        base: words[n]; ignored by ``COPY`` and ``ROTATE``, unless planes are grouped.
        mapping: ``COPY`` … ``ORDERED_DIFF``.
        exponent: lowest bit of the exponent in a word of the base, and the mask of the bits from there.
        words: words[n], n > 0; fully overwritten, with final values only; aliases no input.
        grouped: whether any plane must be in group order.
        streamed: write past the caches, because the words are not read soon.

    Returns:
        ``DECODED`` if it did. If not, ``words`` are as they were, and the payload may be valid or not:
        :mod:`store.codec.decoding` decodes it in steps, and is the twin. ``UNKNOWN`` and the number of a plane if that
        has a body of another writer, or was compressed by its repeats: it may be given again with that plane raw.

    Cost: 0.3 ns a byte of a large chunk (compiled), no allocation beyond scratch for each thread, one release of the
    GIL.
    """
    return REFUSED


def _body(plane: Bytes, code: int, ends: Counts) -> tuple[int, bytes]:
    """How a plane is stored that is not constant."""
    if code & CODED:
        room = np.empty(frame_room(plane.size), np.uint8)
        size_bytes = compress(plane, ends if code & GROUPED else np.array([plane.size]), room)
        if size_bytes < plane.size:
            return CODED_BODY, room[:size_bytes].tobytes()
    return RAW_BODY, plane.tobytes()


def _blocks(words: Words) -> Iterator[slice]:
    """The words in pieces that stay in the cache while every plane is made of them."""
    block_words = _BLOCK_BYTES // words.itemsize
    return (slice(start, start + block_words) for start in range(0, len(words), block_words))
