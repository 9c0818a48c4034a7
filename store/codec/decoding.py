"""Payload of planes → words: at once by a kernel that checks what it reads, or in steps by others that trust us.

Spec: docs/format.md §5.
"""

import struct
import threading
from collections.abc import Sequence

import numpy as np

from .. import kernels
from ..errors import Corrupt
from ..format.dtypes import Element
from ..kernels.choosing import MAX_WIDTH_BYTES
from ..kernels.mapping import Bytes, Counts, Words
from ..kernels.payloads import DECODED, ENTRY_BYTES, IS_GROUPED, RAW_BODY, UNKNOWN, entry_of
from ..kernels.reference import KEYS
from ..memory import Room, copy_bytes
from . import Transform, frames
from .payload import MIN_COLUMNS, Coding, Plane, mapping_of, row_count, unpack
from .words import NO_CURSORS, NO_KEYS, scratch_keys, scratch_planes, words_of


def decode_words(
    transform: Transform,
    grouped: bool,  # noqa: FBT001 - as in an object's header
    element: Element,
    payload: memoryview,
    base: memoryview | None,
    out: memoryview,
    *,
    streamed: bool = False,
) -> None:
    """Decode a payload of planes; see :func:`store.codec.decode`.

    Raises:
        Corrupt: the payload, or the base, does not fit.
    """
    word_count, rest = divmod(len(out), element.width_bytes)
    if rest or not word_count:
        raise Corrupt(f"{len(out)} bytes are no whole words of {element.width_bytes}")
    base_words = _base_words(transform, element, base, len(out))
    words, is_copy = _target(out, element)
    if not _decode_at_once(transform, grouped, element, payload, base_words, words, streamed=streamed):
        _decode_in_steps(transform, grouped, element, payload, base_words, words)
    if is_copy:
        out[:] = words.tobytes()


def _decode_at_once(
    transform: Transform,
    grouped: bool,  # noqa: FBT001 - as in an object's header
    element: Element,
    payload: memoryview,
    base: Words | None,
    words: Words,
    *,
    streamed: bool,
) -> bool:
    """Let a kernel do all of it but planes that it does not know: if it cannot, it has changed nothing."""
    if grouped and (base is None or not element.is_float):
        return False
    kernel, mapping = kernels.current(words.nbytes), mapping_of(transform, element)
    base_or_any, exponent = base if base is not None else words, exponent_field(element)
    for _ in range(element.width_bytes + 1):
        stored = np.frombuffer(payload, np.uint8)
        outcome = kernel.decode(stored, base_or_any, mapping, exponent, words, grouped=grouped, streamed=streamed)
        if outcome < UNKNOWN:
            return outcome == DECODED
        try:
            payload = _with_raw(payload, element.width_bytes, outcome - UNKNOWN, len(words))
        except Corrupt:
            return False  # whoever takes it apart in steps says what is wrong first
    return False


def _with_raw(payload: memoryview, width_bytes: int, number: int, word_count: int) -> memoryview:
    """A payload with one plane as it is in place of a frame of zstd, in this thread's scratch.

    Raises:
        Corrupt: it is no such frame.
    """
    entries = struct.unpack_from(f"<{width_bytes}I", payload)
    stop = len(payload) - sum(entry >> 3 for entry in entries[number + 1 :])
    start = stop - (entries[number] >> 3)
    plane_stop = start + word_count
    out = _thread.rooms[number].of(plane_stop + len(payload) - stop)
    copy_bytes(payload[:start], out[:start])
    frames.restore(payload[start:stop], np.frombuffer(out[start:plane_stop], np.uint8))
    copy_bytes(payload[stop:], out[plane_stop:])
    entry = entry_of(RAW_BODY, entries[number] & IS_GROUPED, word_count)
    struct.pack_into("<I", out, ENTRY_BYTES * number, entry)
    return out


class _Thread(threading.local):
    """Where a thread puts payloads with raw planes: one for each plane, as there may be several in one payload."""

    def __init__(self) -> None:
        self.rooms = [Room() for _ in range(MAX_WIDTH_BYTES)]


_thread = _Thread()


def _decode_in_steps(
    transform: Transform,
    grouped: bool,  # noqa: FBT001 - as in an object's header
    element: Element,
    payload: memoryview,
    base: Words | None,
    words: Words,
) -> None:
    """Decode whatever the format allows; what is damaged is found here, by zstd itself and by what planes say."""
    word_count, has_context = len(words), grouped and base is None
    columns, stored = unpack(payload, element.width_bytes, has_context=has_context)
    codes = _codes(stored.pop(), columns, word_count) if has_context else None
    grouped_planes = sum(1 << number for number, plane in enumerate(stored) if plane.grouped)
    if grouped != (grouped_planes != 0):
        raise Corrupt("header and planes disagree on whether there are groups")
    keys, cursors = NO_KEYS, NO_CURSORS
    if grouped:
        keys, counts = group_keys(element, base, codes, columns, word_count)
        cursors = starts(counts)
    planes = _planes(stored, word_count)
    kernel, base_or_any = kernels.current(words.nbytes), base if base is not None else words
    kernel.join(planes, base_or_any, mapping_of(transform, element), keys, cursors, grouped_planes, words)


def group_keys(
    element: Element, base: Words | None, codes: Bytes | None, columns: int, word_count: int
) -> tuple[Bytes, Counts]:
    """Keys of every word, from the base or else from the context's codes, and how many words have each key.

    The keys live in the thread's scratch.

    Raises:
        Corrupt: integers, which are never grouped.
    """
    if not element.is_float:
        raise Corrupt("integers are never grouped")
    keys, counts = scratch_keys(word_count), np.empty(KEYS, np.int64)
    kernel = kernels.current(word_count)
    if codes is not None:
        kernel.context_keys(codes, columns, keys, counts)
    elif base is not None:
        first_bit, mask = exponent_field(element)
        kernel.exponent_keys(base, first_bit, mask, keys, counts)
    return keys, counts


def exponent_field(element: Element) -> tuple[int, int]:
    """Lowest bit of the exponent in a word, and the mask of the bits from there."""
    first_bit, last_bit = element.exponent_bits
    return first_bit, (1 << (last_bit - first_bit + 1)) - 1


def starts(counts: Counts) -> Counts:
    """Where each key's group starts."""
    return np.asarray(np.cumsum(counts) - counts)


def _base_words(transform: Transform, element: Element, base: memoryview | None, raw_bytes: int) -> Words | None:
    if not transform.needs_base:
        if base is not None:
            raise Corrupt("an encoding without a base was given one")
        return None
    if base is None or len(base) != raw_bytes:
        raise Corrupt(f"base of {0 if base is None else len(base)} bytes for a chunk of {raw_bytes}")
    return words_of(base, element)


def _codes(plane: Plane, columns: int, word_count: int) -> Bytes:
    if not MIN_COLUMNS <= columns <= word_count:
        raise Corrupt(f"a context of {columns} columns for {word_count} words")
    if plane.grouped:
        raise Corrupt("context codes have no groups")
    codes = np.empty(row_count(word_count, columns) + columns, np.uint8)
    return _content(plane, codes)


def _planes(stored: Sequence[Plane], word_count: int) -> tuple[Bytes, ...]:
    room = scratch_planes(len(stored), word_count)
    return tuple(_content(plane, room[number]) for number, plane in enumerate(stored))


def _content(plane: Plane, room: Bytes) -> Bytes:
    """A plane's bytes: in ``room``, which is as long as it has to be, or a view of the payload where that is raw."""
    body = memoryview(plane.body[0])
    if plane.coding == Coding.RAW:
        if len(body) != room.size:
            raise Corrupt(f"raw plane of {len(body)} bytes where {room.size} belong")
        return np.frombuffer(body, np.uint8)
    if plane.coding == Coding.CONSTANT:
        room[:] = body[0]
    else:
        frames.restore(body, room)
    return room


def _target(out: memoryview, element: Element) -> tuple[Words, bool]:
    """Words to decode into, and whether they must be copied to ``out`` (which is not aligned)."""
    words = np.frombuffer(out, np.dtype(f"<u{element.width_bytes}"))
    if words.flags.aligned:
        return words, False
    return np.empty(len(words), words.dtype), True
