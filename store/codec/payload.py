"""Payloads of planes, as they are read: a table of one word a plane, then the planes' bodies without gaps. Pure.

How they are written: :mod:`store.kernels.payloads`.

Spec: docs/format.md §5.2.
"""

import struct
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..errors import Corrupt
from ..format.dtypes import Element
from ..ids import Buffer
from ..kernels.mapping import COPY, DIFF, ORDERED_DIFF, ROTATE, XOR
from . import Transform

MIN_COLUMNS: Final = 2
"""*format* Fewest columns of a context: below that, rows mean nothing."""


class Coding(IntEnum):
    """How the body of a plane holds it. The value is the format's code."""

    CONSTANT = 0
    RAW = 1
    ZSTD = 2


_CODINGS: Final = tuple(Coding)


@dataclass(frozen=True, slots=True)
class Plane:
    """One stored plane.

    Attributes:
        coding: how ``body`` holds it.
        grouped: whether it is in group order.
        body: one byte if constant, the plane itself if raw, else a zstd frame; in parts.
    """

    coding: Coding
    grouped: bool
    body: tuple[Buffer, ...]


def mapping_of(transform: Transform, element: Element) -> int:
    """Which mapping of words a transform means for an element."""
    if transform == Transform.PLANES:
        return ROTATE if element.is_float else COPY
    if transform == Transform.XOR:
        return XOR
    return ORDERED_DIFF if element.is_float else DIFF


def unpack(payload: memoryview, plane_count: int, *, has_context: bool) -> tuple[int, list[Plane]]:
    """Take a payload apart; checks the layout, not the bodies.

    Raises:
        Corrupt: the table does not describe exactly these bytes, or holds an unknown code.
    """
    entry_count = plane_count + 2 * has_context
    offset = 4 * entry_count
    if len(payload) < offset:
        raise Corrupt(f"payload of {len(payload)} bytes is shorter than its table of {offset}")
    words = struct.unpack_from(f"<{entry_count}I", payload)
    columns = words[0] if has_context else 0
    planes: list[Plane] = []
    for word in words[has_context:]:
        end = offset + (word >> 3)
        planes.append(_plane(word, payload[offset:end]))
        offset = end
    if offset != len(payload):
        raise Corrupt(f"planes take {offset} bytes of a payload of {len(payload)}")
    return columns, planes


def _plane(word: int, body: memoryview) -> Plane:
    code, grouped = word & 3, bool(word & 4)
    if code >= len(_CODINGS):
        raise Corrupt(f"unknown coding {code} of a plane")
    if code == Coding.CONSTANT and (grouped or word >> 3 != 1):
        raise Corrupt("a constant plane is one byte and has no groups")
    return Plane(_CODINGS[code], grouped, (body,))


def row_count(word_count: int, columns: int) -> int:
    """Rows of a chunk seen as a matrix; the last may be shorter."""
    return -(-word_count // columns)
