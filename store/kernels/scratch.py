"""What kernels write to between two passes: kept for each thread, because it is in the cache then.

Shared by the two sides, the one that compiles and the one that loads, so that they cannot drift apart.
"""

from typing import Final

from ..limits import SAMPLE_WORDS
from .choosing import COST_INTEGERS, MAX_WIDTH_BYTES, PLAN_INTEGERS
from .framing import BLOCK_BYTES
from .prefixes import MAX_BITS, MAX_DESCRIPTION_BYTES, SCRATCH_INTEGERS, SYMBOLS

BLOCK_WORDS: Final = 1024
"""Words, or bytes, that kernels work on at a time: what that takes stays in the first-level cache."""

COUNT_TABLES: Final = 8

ASIDE: Final = MAX_WIDTH_BYTES
"""Of the planes of a chunk that is encoded, there are two pointers each: where it goes, and from here on where there is
room for it aside."""

_STREAM_BYTES: Final = BLOCK_BYTES // 4 * MAX_BITS // 8 + 64

BLOCK, CELLS, PARTS, SAMPLE, SAMPLE_KEYS, HISTOGRAM, COSTS, RIVAL, PLANE_BITS = range(9)
COUNTS, CURSORS, ENDS, SORTED, DEPTHS, CODES, DESCRIPTION, NUMBERS = range(9, 17)
TABLES, FOUND, VALUES, LENGTHS, STREAM, WHOLE = range(17, 23)
CHOICES, LENGTHS_OF, ORDER, LATER_CURSORS = range(23, 27)
"""Where a kernel finds what it writes to, among the pointers that it is given."""

KINDS: Final = {
    BLOCK: ("u8", BLOCK_WORDS),
    CELLS: ("i4", max(2 * BLOCK_WORDS, COUNT_TABLES * SYMBOLS)),
    PARTS: ("u1", 2 * MAX_WIDTH_BYTES * BLOCK_WORDS),
    SAMPLE: ("u8", SAMPLE_WORDS),
    SAMPLE_KEYS: ("u1", SAMPLE_WORDS),
    HISTOGRAM: ("i4", SYMBOLS * SYMBOLS),
    COSTS: ("i8", COST_INTEGERS),
    RIVAL: ("i8", PLAN_INTEGERS),
    PLANE_BITS: ("f8", 2 * MAX_WIDTH_BYTES),
    COUNTS: ("i8", SYMBOLS),
    CURSORS: ("i8", SYMBOLS),
    ENDS: ("i8", SYMBOLS + 1),
    SORTED: ("i8", SYMBOLS),
    DEPTHS: ("i8", SYMBOLS),
    CODES: ("i8", SYMBOLS),
    DESCRIPTION: ("i8", MAX_DESCRIPTION_BYTES),
    NUMBERS: ("i8", SCRATCH_INTEGERS),
    TABLES: ("u1", 3 * SYMBOLS),
    FOUND: ("u1", 3 * BLOCK_WORDS),
    VALUES: ("u8", 2 * BLOCK_WORDS // 4),
    LENGTHS: ("u8", 2 * BLOCK_WORDS // 4),
    STREAM: ("u1", _STREAM_BYTES),
    WHOLE: ("i8", 1),
    CHOICES: ("u8", 2 << MAX_BITS),
    LENGTHS_OF: ("u1", SYMBOLS),
    ORDER: ("u1", SYMBOLS),
    LATER_CURSORS: ("i8", SYMBOLS),
}
"""NumPy's name of their numbers, and how many. All are zero at first; ``HISTOGRAM`` is again when a kernel returns."""
