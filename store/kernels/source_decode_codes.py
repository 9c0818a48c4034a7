"""How compiled kernels read the description of a prefix code, and tabulate what every run of bits decodes to.

Descriptions are untrusted. Whatever this program's own writer does not make is refused, which costs nothing but time:
zstd itself then looks at it. Nothing is read before ``at`` or from ``stop`` on.

Spec: RFC 8878, sections 4.2.1 and 4.1.1.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return,assignment"

import numpy as np

from .pointers import Pointer, bytes_in, counts_in, inner, load_cell, words_in
from .prefixes import MAX_BITS, STATE_BITS, STATES, SYMBOLS
from .scratch import CHOICES, COUNTS, LENGTHS_OF, NUMBERS, ORDER

_WEIGHT_OF, _BITS_OF, _NEXT_OF = SYMBOLS, SYMBOLS + STATES, SYMBOLS + 2 * STATES
"""Where among the numbers, behind the weights of symbols, is what states mean: all of ``SCRATCH_INTEGERS``."""

_MOST_BEHIND = 5
"""Symbols beside the first one that an entry has room for."""


@inner
def read_description(source: Pointer, at: int, stop: int, scratch: Pointer) -> int:
    """Read a description, and tabulate the code.

    Args:
        source: what is read.
        at: where the description begins.
        stop: how far may be read; four bytes at least lie behind the description.
        scratch: gets the code.

    Returns:
        Where the description ends; -1 if it is none of ours.
    """
    if at + 1 > stop:
        return -1
    size = np.int64(source[at])
    at += 1
    weights = counts_in(scratch, NUMBERS)
    if size >= SYMBOLS // 2:
        used = size - (SYMBOLS // 2 - 1)
        end = at + (used + 1) // 2
        if end + 4 > stop:
            return -1
        for pair in range((used + 1) // 2):
            weights[2 * pair] = np.int64(source[at + pair]) >> 4
            weights[2 * pair + 1] = np.int64(source[at + pair]) & 15
    else:
        end = at + size
        used = 0
        if size < 2 or end + 4 > stop:
            return -1
        shares = counts_in(scratch, COUNTS)
        states_at = _read_shares(source, at, end, shares)
        if states_at < 0 or states_at >= end:
            return -1
        _deal_states(shares, weights)
        used = _read_weights(source, states_at, end, weights)
    if used < 1 or not _complete(weights, used, scratch):
        return -1
    _tabulate(scratch)
    return end


@inner
def _read_shares(source: Pointer, at: int, end: int, shares: Pointer) -> int:
    """Read how many states each weight has; return where that ends, or -1."""
    for weight in range(MAX_BITS + 4):
        shares[weight] = 0
    bit = 8 * at
    if _bits_at(source, bit, 4) != STATE_BITS - 5:
        return -1
    bit += 4
    remaining, threshold, width, weight = STATES + 1, STATES, STATE_BITS + 1, 0
    while remaining > 1:
        if weight > MAX_BITS or bit + width > 8 * end:
            return -1
        spare = 2 * threshold - 1 - remaining
        value = _bits_at(source, bit, width)
        if value & (threshold - 1) < spare:
            value &= threshold - 1
            bit += width - 1
        else:
            value -= spare if value >= threshold else 0
            bit += width
        share = value - 1
        if share < 0 or share >= remaining:
            return -1
        shares[weight] = share
        weight += 1
        remaining -= share
        while remaining < threshold:
            width -= 1
            threshold >>= 1
        skipped = 3 if share == 0 else 0
        while skipped == 3:
            if weight > MAX_BITS or bit + 2 > 8 * end:
                return -1
            skipped = _bits_at(source, bit, 2)
            bit += 2
            weight += skipped
    return (bit + 7) >> 3


@inner
def _deal_states(shares: Pointer, numbers: Pointer) -> None:
    """Tabulate what each state means: a weight, and the state that follows, less some bits that are to be read."""
    position = 0
    for weight in range(MAX_BITS + 1):
        for _ in range(shares[weight]):
            numbers[_WEIGHT_OF + position] = weight
            position = (position + STATES // 2 + STATES // 8 + 3) % STATES
    for state in range(STATES):
        weight = numbers[_WEIGHT_OF + state]
        following = shares[weight]
        shares[weight] += 1
        bits = 0
        while following << bits < STATES:
            bits += 1
        numbers[_BITS_OF + state] = bits
        numbers[_NEXT_OF + state] = (following << bits) - STATES


@inner
def _read_weights(source: Pointer, at: int, end: int, numbers: Pointer) -> int:
    """Read weights through two states in turns; return how many, or -1."""
    marked = np.int64(source[end - 1])
    if marked == 0:
        return -1
    bit = 8 * (end - 1)
    while marked > 1:
        marked >>= 1
        bit += 1
    start = 8 * at
    bit -= 2 * STATE_BITS
    if bit < start:
        return -1
    other, state = _bits_at(source, bit, STATE_BITS), _bits_at(source, bit + STATE_BITS, STATE_BITS)
    for used in range(SYMBOLS - 2):
        numbers[used] = numbers[_WEIGHT_OF + state]
        bit -= numbers[_BITS_OF + state]
        if bit < start:
            numbers[used + 1] = numbers[_WEIGHT_OF + other]
            return used + 2
        following = numbers[_NEXT_OF + state] + _bits_at(source, bit, numbers[_BITS_OF + state])
        state, other = other, following
    return -1


@inner
def _bits_at(source: Pointer, bit: int, count: int) -> int:
    """Up to 25 bits."""
    word = load_cell(source, bit >> 3) >> np.uint64(bit & 7)
    return np.int64(word & ((np.uint64(1) << np.uint64(count)) - np.uint64(1)))


@inner
def _complete(weights: Pointer, used: int, scratch: Pointer) -> bool:
    """Find the last symbol's weight, and put symbols in the order of their codes, the longest first."""
    firsts, lengths, order = counts_in(scratch, COUNTS), bytes_in(scratch, LENGTHS_OF), bytes_in(scratch, ORDER)
    for weight in range(MAX_BITS + 2):
        firsts[weight] = 0
    total = 0
    for symbol in range(used):
        weight = weights[symbol]
        if weight > MAX_BITS:
            return False
        total += (1 << weight) >> 1
        firsts[weight] += 1
    longest = 0
    while total >> longest > 0:
        longest += 1
    last, rest = 1, (1 << longest) - total
    while 1 << (last - 1) < rest:
        last += 1
    if total == 0 or longest > MAX_BITS or 1 << (last - 1) != rest:
        return False
    weights[used] = last
    firsts[last] += 1
    if firsts[1] < 2 or firsts[1] & 1:
        return False
    first = 0
    for weight in range(1, MAX_BITS + 1):
        count = firsts[weight]
        firsts[weight] = first
        first += count
    firsts[0] = first
    for symbol in range(used + 1):
        weight = weights[symbol]
        if weight > 0:
            order[firsts[weight]] = np.uint8(symbol)
            lengths[symbol] = np.uint8(longest + 1 - weight)
            firsts[weight] += 1
    return True


@inner
def _tabulate(scratch: Pointer) -> None:
    """For every run of up to ``MAX_BITS`` bits: the symbols it holds, how many, and how many bits those take.

    The runs of a length lie one behind the other, from two to the power of it on. An entry is made of a symbol and of
    the entry of the bits behind it, which is in a shorter table.
    """
    choices, lengths, order = words_in(scratch, CHOICES), bytes_in(scratch, LENGTHS_OF), bytes_in(scratch, ORDER)
    used = counts_in(scratch, COUNTS)[0]
    shortest = np.int64(lengths[np.int64(order[used - 1])])
    for run_bits in range(MAX_BITS + 1):
        if MAX_BITS - shortest < run_bits < MAX_BITS:
            continue  # nobody looks there
        begin, stop = 1 << run_bits, 2 << run_bits
        number = used - 1
        while stop > begin and number >= 0 and np.int64(lengths[np.int64(order[number])]) <= run_bits:
            symbol = np.int64(order[number])
            length = np.int64(lengths[symbol])
            rest_bits = run_bits - length
            seen_bits = min(rest_bits, _MOST_BEHIND * shortest)
            stop -= 1 << rest_bits
            alone = np.uint64((symbol << 16) | (1 << 8) | length)
            _fill(choices, stop, 1 << rest_bits, 1 << seen_bits, rest_bits - seen_bits, alone)
            number -= 1
        for at in range(begin, stop):
            choices[at] = np.uint64(0)


@inner
def _fill(choices: Pointer, to: int, count: int, behind: int, unseen_bits: int, alone: int) -> None:
    low, high = np.uint64(0xFFFF), np.uint64(24)
    if unseen_bits == 0:
        for at in range(count):
            rest = choices[behind + at]
            choices[to + at] = alone + (rest & low) + (rest >> np.uint64(16) << high)
    else:
        for at in range(count):
            rest = choices[behind + (at >> unseen_bits)]
            choices[to + at] = alone + (rest & low) + (rest >> np.uint64(16) << high)
