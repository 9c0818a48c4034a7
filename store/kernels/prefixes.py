"""Prefix codes as zstd has them: from how often each byte occurs to the code of each byte and its description.

Plain Python on arrays of integers, in the part of the language that numba compiles as well: the compiled kernels and
their twins are made of these very functions, so that both build the same codes. What else could be wrong with them
shows when zstd decodes.

Spec: RFC 8878, sections 4.2.1 and 4.1.1.
"""

from typing import Any, Final

Integers = Any
"""Whatever holds integers by number: a list, an array, a pointer."""

SYMBOLS: Final = 256
MAX_BITS: Final = 11
"""Longest code that zstd allows."""

STATE_BITS: Final = 6
STATES: Final = 1 << STATE_BITS
"""States of the code for the code itself: as many as zstd allows."""

NO_CODE: Final = 1 << 40
"""Stands where a code would, so that it shows among the codes of many bytes."""

SAMPLED_SHARE: Final = 4
"""One byte in so many is counted where that is enough."""

_NEAR: Final = 4
_LONGEST_TAIL: Final = 16
"""How far from a byte that was seen another is expected, everywhere and at both ends. Each that does not come costs a
two-thousandth of a plane; one that comes and has no code costs coding it twice."""

MAX_DESCRIPTION_BYTES: Final = 128
_WEIGHTS, _SHARES, _DELTAS, _OFFSETS, _STARTS, _TABLE, _SPREAD = 0, 256, 272, 288, 304, 320, 384
SCRATCH_INTEGERS: Final = 448
"""Scratch of the functions below, and what lies where in it: passed from one to the next."""


def guess_rest(counts: Integers, lowest: int, highest: int, scratch: Integers) -> int:
    """From counts of a sample to counts that have room for what it may have missed: what lies near, and all of a tail.

    Args:
        counts: int[256], changed.
        lowest: the smallest byte of all, in the sample or not.
        highest: the greatest.
        scratch: int[``SCRATCH_INTEGERS``].

    Returns:
        How many different bytes were seen.
    """
    seen, least, most = 0, SYMBOLS, -1
    for symbol in range(SYMBOLS):
        if counts[symbol] > 0:
            seen += 1
            least = min(least, symbol)
            most = symbol
        scratch[symbol] = most  # the one before
    tail_end = least if least - lowest <= _LONGEST_TAIL else lowest
    tail_start = most if highest - most <= _LONGEST_TAIL else highest
    following = 2 * SYMBOLS
    for symbol in range(SYMBOLS - 1, -1, -1):
        before = scratch[symbol]
        following = symbol if before == symbol else following
        is_near = (before >= 0 and symbol - before <= _NEAR) or following - symbol <= _NEAR
        is_in_tail = symbol <= tail_end or tail_start <= symbol
        is_expected = lowest <= symbol <= highest and (is_near or is_in_tail)
        counts[symbol] = counts[symbol] * SAMPLED_SHARE + 1 if is_expected else 0
    return seen


def sort_symbols(counts: Integers, keys: Integers) -> int:
    """Symbols that occur, the rarest first.

    Args:
        counts: int[256].
        keys: int[256]; the first entries become ``count * 256 + symbol``.

    Returns:
        How many occur.
    """
    used = 0
    for symbol in range(SYMBOLS):
        if counts[symbol] > 0:
            keys[used] = counts[symbol] * SYMBOLS + symbol
            used += 1
    gap = 121
    while gap > 0:  # Shell's sort: hundreds of numbers, and nothing to allocate
        for i in range(gap, used):
            key = keys[i]
            j = i
            while j >= gap and keys[j - gap] > key:
                keys[j] = keys[j - gap]
                j -= gap
            keys[j] = key
        gap //= 3
    return used


def tree_depths(keys: Integers, used: int, floor: int, depths: Integers) -> None:
    """Length of each symbol's code in a tree of minimum redundancy (Moffat and Katajainen, 1995, in place).

    Args:
        keys: of :func:`sort_symbols`.
        used: how many of them, at least 2.
        floor: what rarer symbols count as. A 2048th of all keeps codes as short as zstd wants them at the least cost,
            but for a bit here and there; it is wasted where they are short anyway.
        depths: int[256]; the first ``used`` are overwritten, in the order of ``keys``.
    """
    for i in range(used):
        depths[i] = max(keys[i] // SYMBOLS, floor)
    # Left to right: sums of pairs, and which node each belongs to.
    depths[0] += depths[1]
    root, leaf = 0, 2
    for parent in range(1, used - 1):
        if leaf >= used or depths[root] < depths[leaf]:
            depths[parent] = depths[root]
            depths[root] = parent
            root += 1
        else:
            depths[parent] = depths[leaf]
            leaf += 1
        if leaf >= used or (root < parent and depths[root] < depths[leaf]):
            depths[parent] += depths[root]
            depths[root] = parent
            root += 1
        else:
            depths[parent] += depths[leaf]
            leaf += 1
    # Right to left: depths of inner nodes, then of leaves.
    depths[used - 2] = 0
    for node in range(used - 3, -1, -1):
        depths[node] = depths[depths[node]] + 1
    free, taken, depth, inner, following = 1, 0, 0, used - 2, used - 1
    while free > 0:
        while inner >= 0 and depths[inner] == depth:
            taken += 1
            inner -= 1
        while free > taken:
            depths[following] = depth
            following -= 1
            free -= 1
        free = 2 * taken
        depth += 1
        taken = 0


def limit_depths(used: int, depths: Integers) -> int:
    """Shorten what is longer than zstd allows, and lengthen others as little as possible, so that no code is unused.

    Args:
        used: how many symbols there are.
        depths: of :func:`tree_depths`; changed.

    Returns:
        The longest length; 0 if there is no such code.
    """
    whole = 1 << MAX_BITS
    room = whole
    for i in range(used):
        depths[i] = min(depths[i], MAX_BITS)
        room -= whole >> depths[i]
    rarest = 0
    while room < 0 and rarest < used:
        if depths[rarest] >= MAX_BITS:
            rarest += 1
        else:
            depths[rarest] += 1
            room += whole >> depths[rarest]
    for i in range(used - 1, -1, -1):
        while depths[i] > 1 and whole >> depths[i] <= room:
            room -= whole >> depths[i]
            depths[i] -= 1
    longest = 0
    for i in range(used):
        longest = max(longest, depths[i])
    return longest if room == 0 else 0


def assign_codes(keys: Integers, used: int, depths: Integers, longest: int, codes: Integers, scratch: Integers) -> int:
    """Give every symbol its code: the longest codes first, among equals the smallest symbol.

    Args:
        keys: of :func:`sort_symbols`.
        used: how many of them.
        depths: of :func:`limit_depths`.
        longest: the longest of them.
        codes: int[256], fully overwritten: ``code * 256 + length``, or ``NO_CODE``.
        scratch: int[``SCRATCH_INTEGERS``].

    Returns:
        Bits that all symbols take together.
    """
    for symbol in range(SYMBOLS):
        codes[symbol] = NO_CODE
    for length in range(longest + 2):
        scratch[length] = 0
    bits = 0
    for i in range(used):
        codes[keys[i] % SYMBOLS] = depths[i]
        scratch[depths[i]] += 1
        bits += depths[i] * (keys[i] // SYMBOLS)
    code = 0
    for length in range(longest, 0, -1):
        count = scratch[length]
        scratch[length] = code
        code = (code + count) >> 1
    for symbol in range(SYMBOLS):
        length = codes[symbol] % SYMBOLS
        if length > 0:
            codes[symbol] = scratch[length] * SYMBOLS + length
            scratch[length] += 1
    return bits


def weigh(codes: Integers, longest: int, scratch: Integers) -> int:
    """Weights of all symbols but the last that occurs, whose weight follows from the others.

    Args:
        codes: of :func:`assign_codes`.
        longest: length of the longest code.
        scratch: int[``SCRATCH_INTEGERS``]; gets the weights, and how many symbols have each.

    Returns:
        The last symbol, which is how many weights there are.
    """
    last = SYMBOLS - 1
    while codes[last] % SYMBOLS == 0:
        last -= 1
    for weight in range(MAX_BITS + 1):
        scratch[_SHARES + weight] = 0
    for symbol in range(last):
        length = codes[symbol] % SYMBOLS
        weight = longest + 1 - length if length > 0 else 0
        scratch[_WEIGHTS + symbol] = weight
        scratch[_SHARES + weight] += 1
    return last


def share_states(last: int, scratch: Integers) -> int:
    """How many states each weight gets: its share, but at least one.

    Args:
        last: of :func:`weigh`.
        scratch: of :func:`weigh`; counts become shares.

    Returns:
        The greatest weight; 0 if there is nothing to tell apart, or too little.
    """
    left, commonest, kinds, greatest = STATES, 0, 0, 0
    for weight in range(MAX_BITS + 1):
        count = scratch[_SHARES + weight]
        if count > 0:
            scratch[_SHARES + weight] = max(1, count * STATES // last)
            left -= scratch[_SHARES + weight]
            kinds += 1
            greatest = weight
            if scratch[_SHARES + weight] > scratch[_SHARES + commonest]:
                commonest = weight
    # What is left or lacking after rounding: at most eleven states, and the commonest weight has more than it lacks.
    scratch[_SHARES + commonest] += left
    return greatest if kinds > 1 and last > 2 else 0


def describe_plainly(last: int, scratch: Integers, description: Integers) -> int:
    """Write weights as they are, two a byte: possible for the lower half of all symbols.

    Args:
        last: of :func:`weigh`.
        scratch: of :func:`weigh`.
        description: int[``MAX_DESCRIPTION_BYTES``], the bytes.

    Returns:
        How many bytes; 0 if it is not possible.
    """
    if last > SYMBOLS // 2:
        return 0
    description[0] = SYMBOLS // 2 - 1 + last
    scratch[_WEIGHTS + last] = 0
    for pair in range((last + 1) // 2):
        description[1 + pair] = scratch[_WEIGHTS + 2 * pair] * 16 + scratch[_WEIGHTS + 2 * pair + 1]
    return 1 + (last + 1) // 2


def write_shares(greatest: int, scratch: Integers, description: Integers) -> int:
    """Write how many states each weight has: a share takes as many bits as what is left to be shared asks for.

    Args:
        greatest: of :func:`share_states`.
        scratch: of :func:`share_states`.
        description: int[``MAX_DESCRIPTION_BYTES``], the bytes; the first is left free.

    Returns:
        Where the next byte belongs.
    """
    at, bits, bit_count = 1, STATE_BITS - 5, 4
    remaining, threshold, width = STATES + 1, STATES, STATE_BITS + 1
    weight = 0
    while weight <= greatest:
        share = scratch[_SHARES + weight]
        spare = 2 * threshold - 1 - remaining
        value = share + 1 if share + 1 < threshold else share + 1 + spare
        bits |= value << bit_count
        bit_count += width - 1 if value < spare else width
        remaining -= share
        while remaining < threshold:
            width -= 1
            threshold >>= 1
        weight += 1
        if share == 0:  # how many more have none, up to three at a time
            skipped = 0
            while scratch[_SHARES + weight] == 0:
                weight += 1
                skipped += 1
            while skipped >= 3:
                bits |= 3 << bit_count
                bit_count += 2
                skipped -= 3
            bits |= skipped << bit_count
            bit_count += 2
        while bit_count >= 8:
            description[at] = bits & 255
            at += 1
            bits >>= 8
            bit_count -= 8
    if bit_count > 0:
        description[at] = bits & 255
        at += 1
    return at


def deal_states(greatest: int, scratch: Integers) -> None:
    """Give states to weights, in steps that scatter each weight's over all of them, and tabulate where each leads.

    Args:
        greatest: of :func:`share_states`.
        scratch: of :func:`share_states`; gets the tables.
    """
    position, total = 0, 0
    for weight in range(greatest + 1):
        share = scratch[_SHARES + weight]
        for _ in range(share):
            scratch[_SPREAD + position] = weight
            position = (position + STATES // 2 + STATES // 8 + 3) % STATES
        out_bits = STATE_BITS
        while (share - 1) >> (STATE_BITS - out_bits + 1) > 0:
            out_bits -= 1
        scratch[_DELTAS + weight] = (out_bits << 16) - (share << out_bits)
        scratch[_OFFSETS + weight] = total - share
        scratch[_STARTS + weight] = total
        total += share
    for state in range(STATES):
        weight = scratch[_SPREAD + state]
        scratch[_TABLE + scratch[_STARTS + weight]] = STATES + state
        scratch[_STARTS + weight] += 1


def write_weights(last: int, at: int, scratch: Integers, description: Integers) -> int:
    """Write the weights, the last one first, through two states in turns.

    Args:
        last: of :func:`weigh`.
        at: of :func:`write_shares`.
        scratch: of :func:`deal_states`.
        description: int[``MAX_DESCRIPTION_BYTES``], the bytes.

    Returns:
        How many bytes the description has; 0 if it would be too long.
    """
    bits, bit_count, state, other_state = 0, 0, 0, 0
    for symbol in range(last - 1, -1, -1):
        weight = scratch[_WEIGHTS + symbol]
        delta = scratch[_DELTAS + weight]
        if state == 0:
            out_bits = (delta + (1 << 15)) >> 16
            state = (out_bits << 16) - delta
        else:
            out_bits = (state + delta) >> 16
            bits |= (state & ((1 << out_bits) - 1)) << bit_count
            bit_count += out_bits
        following = scratch[_TABLE + (state >> out_bits) + scratch[_OFFSETS + weight]]
        state, other_state = other_state, following
        if symbol == 0:  # the states themselves, that of even symbols last, and a bit to mark the end
            closing = (state - STATES) | ((other_state - STATES) << STATE_BITS) | (1 << (2 * STATE_BITS))
            bits |= closing << bit_count
            bit_count += 2 * STATE_BITS + 8  # whatever is begun is written
        while bit_count >= 8:
            if at >= MAX_DESCRIPTION_BYTES:
                return 0
            description[at] = bits & 255
            at += 1
            bits >>= 8
            bit_count -= 8
    description[0] = at - 1
    return at
