"""Checks on decoded nodes: shape is checked where something is decoded, so that readers never meet a surprise. Pure."""

from typing import Final, cast

from ..errors import Corrupt
from ..ids import ID_BYTES, ObjectId
from .canonical import Node

MALFORMED: Final = (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError)
"""What Python raises where a node is not shaped as whoever decodes it expects."""


def require(condition: object, what: str, why: str) -> None:
    """Raise Corrupt unless ``condition`` holds.

    Raises:
        Corrupt: it does not.
    """
    if not condition:
        raise Corrupt(f"{what}: {why}")


def text(node: Node, what: str) -> str:
    """Text.

    Raises:
        Corrupt: it is something else.
    """
    require(type(node) is str, what, f"text expected, got {node!r:.60}")
    return cast(str, node)


def count(node: Node, what: str) -> int:
    """An integer from 0 to 2⁶³ - 1.

    Raises:
        Corrupt: it is something else.
    """
    require(type(node) is int and 0 <= node < 2**63, what, f"count expected, got {node!r:.60}")
    return cast(int, node)


def object_id(node: Node, what: str) -> ObjectId:
    """An object's id.

    Raises:
        Corrupt: it is something else.
    """
    require(type(node) is bytes and len(node) == ID_BYTES, what, f"object id expected, got {node!r:.60}")
    return ObjectId(node)
