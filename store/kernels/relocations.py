"""What object files leave open, and how it is filled in, for each processor whose code we link.

A relocation says: this 32-bit word depends on how far away something is. Only distances within one image are known
here, and only the kinds that LLVM uses for such code: whoever meets another kind refuses the code.

Sources: System V ABI, AMD64 supplement, §4.4; ELF for the Arm 64-bit Architecture, §5.7.
"""

from collections.abc import Callable, Mapping
from functools import partial
from typing import Final, NamedTuple

Patch = Callable[[int, int, int], int]
"""The word as it has to be, from: the word as it is, its target, its own place; both from the image's start."""

_PAGE_BITS: Final = 12
_WORD_BITS: Final = 32


class Machine(NamedTuple):
    """A processor.

    Attributes:
        name: what ``uname`` calls it.
        entry: instructions that jump to the address in the 8 bytes after them; 8 bytes themselves.
        patches: for each kind of relocation, by its number.
    """

    name: str
    entry: bytes
    patches: Mapping[int, Patch]


def _distance(word: int, target: int, place: int) -> int:
    """The whole word is the distance."""
    del word
    return _signed(target - place, _WORD_BITS)


def _branch(word: int, target: int, place: int) -> int:
    """``B`` and ``BL``: 26 bits count instructions of 4 bytes."""
    return word & 0xFC000000 | _signed(_divided(target - place, 2), 26)


def _page(word: int, target: int, place: int) -> int:
    """``ADRP``: how many pages away, its two lowest bits apart from the others. An image begins with a page."""
    pages = _signed((target >> _PAGE_BITS) - (place >> _PAGE_BITS), 21)
    return word & 0x9F00001F | (pages & 3) << 29 | pages >> 2 << 5


def _within_page(word: int, target: int, place: int, *, scale_bits: int) -> int:
    """``ADD``, ``LDR`` and ``STR``: where in the page, counted in what is loaded or stored."""
    del place
    return word & 0xFFC003FF | _divided(target % (1 << _PAGE_BITS), scale_bits) << 10


def _signed(number: int, bits: int) -> int:
    """Two's complement.

    Raises:
        RuntimeError: the number does not fit.
    """
    if not -(1 << bits - 1) <= number < 1 << bits - 1:
        raise RuntimeError(f"a distance of {number} does not fit into {bits} bits")
    return number % (1 << bits)


def _divided(number: int, scale_bits: int) -> int:
    if number % (1 << scale_bits):
        raise RuntimeError(f"a distance of {number} is no multiple of {1 << scale_bits}")
    return number >> scale_bits


_X86_64: Final = Machine(
    "x86_64",
    bytes.fromhex("ff 25 02 00 00 00 90 90"),  # jmp [rip + 2]; nop; nop
    {
        2: _distance,  # PC32
        4: _distance,  # PLT32: a call
    },
)
_AARCH64: Final = Machine(
    "aarch64",
    bytes.fromhex("50 00 00 58 00 02 1f d6"),  # ldr x16, . + 8; br x16
    {
        261: _distance,  # PREL32
        275: _page,  # ADR_PREL_PG_HI21
        277: partial(_within_page, scale_bits=0),  # ADD_ABS_LO12_NC
        278: partial(_within_page, scale_bits=0),  # LDST8_ABS_LO12_NC
        284: partial(_within_page, scale_bits=1),  # LDST16_ABS_LO12_NC
        285: partial(_within_page, scale_bits=2),  # LDST32_ABS_LO12_NC
        286: partial(_within_page, scale_bits=3),  # LDST64_ABS_LO12_NC
        299: partial(_within_page, scale_bits=4),  # LDST128_ABS_LO12_NC
        282: _branch,  # JUMP26
        283: _branch,  # CALL26
    },
)

MACHINES: Final = {62: _X86_64, 183: _AARCH64}
"""By their number in an ELF file."""
