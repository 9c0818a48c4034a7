"""The four bytes that say what a stored object is: kind, transform, element, flags. Pure.

Spec: docs/format.md §6.2.
"""

from functools import cache
from typing import NamedTuple

from ..codec import Transform
from .dtypes import Element
from .objects import Kind

HAS_BASE, _GROUPED, _VIEWED = 1, 2, 8
FLAGS_AT = 3
"""Which of the four bytes the flags are."""


class Codes(NamedTuple):
    """What the bytes mean, the base aside.

    Attributes:
        kind: chunk, tree or commit.
        transform: what the payload is.
        grouped: whether planes of the payload are in group order.
        element: words the codec sees.
    """

    kind: Kind
    transform: Transform
    grouped: bool
    element: Element


def encode_codes(
    kind: Kind, transform: Transform, element: Element, *, has_base: bool, grouped: bool, viewed: bool
) -> bytes:
    """The bytes. ``viewed``: the payload begins with a view of the base."""
    return bytes((kind, transform, element, HAS_BASE * has_base | _GROUPED * grouped | _VIEWED * viewed))


@cache
def decode_codes(data: bytes) -> tuple[Codes, bool]:
    """What the bytes mean, and whether the payload begins with a view.

    Raises:
        ValueError: they mean nothing that is known here. Nothing is remembered of such.
    """
    kind, transform, element, flags = data
    if flags & ~(HAS_BASE | _GROUPED | _VIEWED):
        raise ValueError(f"unknown flags {flags:#x}")
    return Codes(Kind(kind), Transform(transform), bool(flags & _GROUPED), Element(element)), bool(flags & _VIEWED)


@cache
def fault_of(data: bytes) -> str | None:
    """Why the format does not allow such codes beside each other, whatever the lengths; ``None`` if it does."""
    (kind, transform, grouped, element), viewed = decode_codes(data)
    has_planes = transform not in (Transform.RAW, Transform.ZSTD)
    is_blob = not has_planes and element is Element.INT8
    has_base = bool(data[FLAGS_AT] & HAS_BASE)
    rules = (
        (transform.needs_base == has_base, "a base without a delta, or a delta without a base"),
        (has_base or not viewed, "a view without a base"),
        (has_planes or not grouped, "groups without planes"),
        (kind is Kind.CHUNK or is_blob, "a tree or commit that is not stored as bytes"),
    )
    return next((why for holds, why in rules if not holds), None)
