"""How compiled kernels are called: their names, and what each of their arguments is.

Shared by the two sides, the one that compiles and the one that loads, so that they cannot drift apart.
"""

from typing import Final

WIDTHS: Final = (1, 2, 4, 8)
"""Bytes of a word."""

ARGUMENTS: Final = {
    "exponent_keys": "w i i i b c t",
    "context_keys": "b i i b i c t",
    "join": "p w i i b c i w p",
    "choose": "w w i i i i i i i i i c c p",
    "encode": "w w i c i i b b p p",
    "decode": "b i b i i i i i i i b b p p",
    "stream": "b b i",
    "cast": "b i i b i b i i i p",
    "largest": "w i i",
}
"""One letter an argument. Pointers: ``w`` to words, ``b`` to bytes, ``c`` to 64-bit counts, ``t`` to 32-bit cells,
``p`` to pointers to bytes. ``i`` is a 64-bit integer. Every kernel returns a 64-bit unsigned integer or nothing."""

RESULTS: Final = frozenset({"encode", "decode", "largest"})
"""Kernels that return something."""

VARIANTS: Final = tuple(
    (name, width_bytes)
    for name, arguments in ARGUMENTS.items()
    for width_bytes in WIDTHS
    if width_bytes == 1 or "w" in arguments
)
"""What is compiled: kernels that see words for each width, the others once."""


def symbol(name: str, width_bytes: int) -> str:
    """What a kernel is called in the object code."""
    return f"moonclip_{name}_{width_bytes}"


SYMBOLS: Final = tuple(symbol(*variant) for variant in VARIANTS)
"""What is compiled, by those names."""
