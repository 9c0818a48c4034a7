"""How compiled kernels read the four bit streams of a block of literals: RFC 8878, section 4.2.2.

Several bytes at a time: what the next eleven bits hold is looked up at once. Four streams in turns, because what comes
next in one of them depends on what came before.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return,assignment"

import numpy as np

from .framing import JUMP_BYTES
from .pointers import Pointer, bytes_in, inner, load_word, store_word, trailing_zeros, words_in
from .prefixes import MAX_BITS
from .scratch import CHOICES, LENGTHS_OF

_Four = tuple[int, int, int, int]

_WORD_BYTES = 8
_LOOKS = 5
"""Look-ups between two loads of 64 bits, of which one marks how many are used and seven may be."""

_LOOK_BYTES = 6
"""The most that one gives."""

_ROUND_BYTES = (_LOOKS - 1) * _LOOK_BYTES + _WORD_BYTES
"""How far a round may write: eight bytes, of which what belongs there is the first part."""

_FIRST_BITS = np.uint64(64 - MAX_BITS)
_ALL = np.uint64(1 << MAX_BITS)


@inner
def read_streams(source: Pointer, at: int, stop: int, out: Pointer, to: int, count: int, scratch: Pointer) -> bool:
    """Decode a block.

    Args:
        source: what is read. Eight bytes may be read that lie before ``at``.
        at: where the sizes of three streams begin, with the streams behind.
        stop: where the last stream ends.
        out: gets the bytes.
        to: where in it.
        count: how many, at least 64. Nothing is written behind, nor before.
        scratch: has the code.

    Returns:
        Whether there are just so many bytes in the streams.
    """
    first = at + JUMP_BYTES
    second, third, fourth = _starts(source, first, stop)
    if second < 0:
        return False
    choices = words_in(scratch, CHOICES)
    quarter = (count + 3) // 4
    end_0, end_1, end_2, end_3 = to + quarter, to + 2 * quarter, to + 3 * quarter, to + count
    to_0, to_1, to_2, to_3 = to, end_0, end_1, end_2
    at_0, at_1, at_2, at_3 = second - _WORD_BYTES, third - _WORD_BYTES, fourth - _WORD_BYTES, stop - _WORD_BYTES
    bits_0, bits_1 = _begun(source, at_0), _begun(source, at_1)
    bits_2, bits_3 = _begun(source, at_2), _begun(source, at_3)
    rounds = 1
    while rounds > 0:
        rounds = min(
            _rounds(at_0 - first, end_0 - to_0),
            _rounds(at_1 - second, end_1 - to_1),
            _rounds(at_2 - third, end_2 - to_2),
            _rounds(at_3 - fourth, end_3 - to_3),
        )
        for _ in range(rounds):
            for _ in range(_LOOKS):
                bits_0, to_0 = _look(choices, bits_0, out, to_0)
                bits_1, to_1 = _look(choices, bits_1, out, to_1)
                bits_2, to_2 = _look(choices, bits_2, out, to_2)
                bits_3, to_3 = _look(choices, bits_3, out, to_3)
            bits_0, at_0 = _refilled(source, bits_0, at_0)
            bits_1, at_1 = _refilled(source, bits_1, at_1)
            bits_2, at_2 = _refilled(source, bits_2, at_2)
            bits_3, at_3 = _refilled(source, bits_3, at_3)
    return _finish_all(
        source,
        (first, second, third, fourth),
        (bits_0, bits_1, bits_2, bits_3),
        (at_0, at_1, at_2, at_3),
        out,
        (to_0, to_1, to_2, to_3),
        (end_0, end_1, end_2, end_3),
        scratch,
    )


@inner
def _starts(source: Pointer, first: int, stop: int) -> tuple[int, int, int]:
    """Where the other streams begin; -1 if there are not four, each of which has an end."""
    if first >= stop:
        return -1, -1, -1
    sizes, mask = load_word(source, first - _WORD_BYTES) >> np.uint64(16), np.uint64(0xFFFF)
    second = first + np.int64(sizes & mask)
    third = second + np.int64((sizes >> np.uint64(16)) & mask)
    fourth = third + np.int64(sizes >> np.uint64(32))
    if not first < second < third < fourth < stop:
        return -1, -1, -1
    if source[second - 1] == 0 or source[third - 1] == 0 or source[fourth - 1] == 0 or source[stop - 1] == 0:
        return -1, -1, -1
    return second, third, fourth


@inner
def _rounds(left_bytes: int, room_bytes: int) -> int:
    """How many rounds a stream certainly has: each reads up to seven bytes."""
    return min(left_bytes // 7 + 1, room_bytes // _ROUND_BYTES) if left_bytes >= 0 else 0


@inner
def _begun(source: Pointer, at: int) -> int:
    """The last 64 bits of a stream, less those down to the one that marks its end; the lowest now marks how many."""
    marked, used = np.int64(source[at + _WORD_BYTES - 1]), np.uint64(8)
    while marked > 1:
        marked >>= 1
        used -= np.uint64(1)
    return (load_word(source, at) | np.uint64(1)) << used


@inner
def _look(choices: Pointer, bits: int, out: Pointer, to: int) -> tuple[int, int]:
    choice = choices[_ALL + (bits >> _FIRST_BITS)]
    store_word(out, to, choice >> np.uint64(16))
    return bits << (choice & np.uint64(63)), to + np.int64((choice >> np.uint64(8)) & np.uint64(255))


@inner
def _refilled(source: Pointer, bits: int, at: int) -> tuple[int, int]:
    used = trailing_zeros(bits)
    at -= np.int64(used >> np.uint64(3))
    return (load_word(source, at) | np.uint64(1)) << (used & np.uint64(7)), at


@inner
def _finish(source: Pointer, start: int, bits: int, at: int, out: Pointer, to: int, end: int, scratch: Pointer) -> bool:
    """Decode what is left of a stream, and say whether it ends where it should."""
    choices, lengths = words_in(scratch, CHOICES), bytes_in(scratch, LENGTHS_OF)
    rounds = 1
    while rounds > 0:
        rounds = _rounds(at - start, end - to)
        for _ in range(rounds):
            for _ in range(_LOOKS):
                bits, to = _look(choices, bits, out, to)
            bits, at = _refilled(source, bits, at)
    left = 8 * (at + _WORD_BYTES - start) - np.int64(trailing_zeros(bits))
    while left > 0 and to < end:
        stop = (left + 7) >> 3
        word = load_word(source, start + stop - _WORD_BYTES) << np.uint64(8 * stop - left)
        choice = choices[_ALL + (word >> _FIRST_BITS)]
        if left >= MAX_BITS and end - to >= _WORD_BYTES:
            store_word(out, to, choice >> np.uint64(16))
            to += np.int64((choice >> np.uint64(8)) & np.uint64(255))
            left -= np.int64(choice & np.uint64(63))
        else:
            symbol = np.int64((choice >> np.uint64(16)) & np.uint64(255))
            out[to] = np.uint8(symbol)
            to += 1
            left -= np.int64(lengths[symbol])
    return left == 0 and to == end


@inner
def _finish_all(
    source: Pointer,
    starts: _Four,
    bits: _Four,
    ats: _Four,
    out: Pointer,
    tos: _Four,
    ends: _Four,
    scratch: Pointer,
) -> bool:
    is_whole = True
    for number in range(4):  # one call in a loop: four would be compiled four times
        if number == 0:
            start, word, at, to, end = starts[0], bits[0], ats[0], tos[0], ends[0]
        elif number == 1:
            start, word, at, to, end = starts[1], bits[1], ats[1], tos[1], ends[1]
        elif number == 2:
            start, word, at, to, end = starts[2], bits[2], ats[2], tos[2], ends[2]
        else:
            start, word, at, to, end = starts[3], bits[3], ats[3], tos[3], ends[3]
        is_whole &= _finish(source, start, word, at, out, to, end, scratch)
    return is_whole
