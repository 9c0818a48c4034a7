"""The layout of a payload of planes: a table of one word a plane, then the planes' bodies without gaps.

Pure; used by both directions, so that they cannot drift apart.

Spec: docs/format.md §5.2.
"""

import struct
from collections.abc import Sequence
from dataclasses import dataclass
from enum import IntEnum
from typing import Final

from ..dtypes import Element
from ..errors import Corrupt
from ..ids import Buffer
from ..kernels import reference
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

    @property
    def body_bytes(self) -> int:
        """Length of the body."""
        return sum(len(part) for part in self.body)

    @property
    def word(self) -> int:
        """Its entry in the table."""
        return self.coding | self.grouped << 2 | self.body_bytes << 3


def mapping_of(transform: Transform, element: Element) -> int:
    """Which mapping of words a transform means for an element."""
    if transform == Transform.PLANES:
        return reference.ROTATE if element.is_float else reference.COPY
    if transform == Transform.XOR:
        return reference.XOR
    return reference.ORDERED_DIFF if element.is_float else reference.DIFF


def pack(columns: int, planes: Sequence[Plane]) -> tuple[Buffer, ...]:
    """Lay planes out as a payload.

    Args:
        columns: words of a row if the last plane holds context codes, else 0.
        planes: byte planes, least significant first, and then perhaps the codes.
    """
    table = struct.pack(f"<{len(planes)}I", *(plane.word for plane in planes))
    head = struct.pack("<I", columns) + table if columns else table
    return (head, *(part for plane in planes for part in plane.body))


def unpack(payload: memoryview, plane_count: int, *, has_context: bool) -> tuple[int, list[Plane]]:
    """Inverse of :func:`pack`; checks the layout, not the bodies.

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
