"""Compiled kernels are used only after they did the same as their twins."""

from . import reference
from .exercise import exercise
from .native import Native


def verified(object_code: bytes) -> Native:
    """Load kernels, call each of them, and compare what they did with what their twins do.

    Raises:
        RuntimeError: a kernel is missing or wrong.
        Exception: whatever LLVM raises.
    """
    compiled = Native(object_code)
    if exercise(compiled) != exercise(reference):
        raise RuntimeError("compiled kernels disagree with their twins")
    return compiled
