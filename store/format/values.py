"""Typed values: whatever is not a tensor, kept exactly and decoded without running anything.

A *plain* value is ``None | bool | int | float | complex | str | bytes | list | tuple | set | frozenset | dict``
(those exact types) or a :class:`Tagged` one, whose tag a layer above gives meaning to. Order and types of what the
user put in are kept: mappings become arrays of typed pairs, floats their eight raw bytes.

Spec: docs/format.md §2.2.
"""

import struct
from dataclasses import dataclass
from typing import Any

from ..errors import Corrupt, Incompatible
from ..ids import Buffer
from ..limits import MAX_VALUE_NESTING
from . import canonical
from .canonical import Node

Plain = Any
"""A plain value, as this module's text defines it."""

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1


@dataclass(frozen=True, slots=True)
class Tagged:
    """A value of a type the engine does not know: the engine keeps it, the layer that wrote it reads it.

    Attributes:
        tag: name of the type, from a white-list of the layer above.
        payload: a plain value.
    """

    tag: str
    payload: Plain


def encode(value: Plain) -> bytes:
    """Canonical encoding of a plain value.

    Raises:
        Incompatible: ``value`` holds a type that is not plain, or nests too deep (a cycle does).
    """
    return canonical.encode(to_node(value))


def decode(data: Buffer, what: str = "value") -> Plain:
    """Inverse of :func:`encode`.

    Raises:
        Corrupt: ``data`` is not the canonical encoding of a plain value.
    """
    value = from_node(canonical.parse(data, what), what)
    try:
        again = encode(value)
    except Incompatible as error:
        raise Corrupt(f"{what}: not a plain value ({error})") from error
    if again != data:
        raise Corrupt(f"{what}: not the canonical encoding of its value")
    return value


def to_node(value: Plain, depth: int = MAX_VALUE_NESTING) -> Node:
    """Map a plain value to canonical CBOR's types."""
    kind = type(value)
    if value is None or kind is bool or kind is bytes:
        return value
    if kind is int:
        return value if _INT_MIN <= value <= _INT_MAX else ["int", hex(value)]
    if kind is str:
        return _text_node(value)
    if kind is float:
        return ["float", struct.pack("<d", value)]
    if kind is complex:
        return ["complex", struct.pack("<dd", value.real, value.imag)]
    if depth == 0:
        raise Incompatible(f"value nested too deep (or a cycle) at a {kind.__name__}")
    if kind is list or kind is tuple:
        return [kind.__name__, [to_node(child, depth - 1) for child in value]]
    if kind is set or kind is frozenset:
        return [kind.__name__, sorted((to_node(child, depth - 1) for child in value), key=canonical.encode)]
    if kind is dict:
        return ["dict", [[to_node(k, depth - 1), to_node(v, depth - 1)] for k, v in value.items()]]
    if kind is Tagged:
        return ["tagged", value.tag, to_node(value.payload, depth - 1)]
    raise Incompatible(f"{kind.__module__}.{kind.__qualname__} is not a plain value")


def from_node(node: Node, what: str = "value") -> Plain:
    """Inverse of :func:`to_node`.

    Raises:
        Corrupt: ``node`` does not spell a plain value.
    """
    if not isinstance(node, list):
        if isinstance(node, dict):
            raise Corrupt(f"{what}: a map where a typed value belongs")
        return node
    try:
        return _from_typed(node, what)
    except Corrupt:
        raise
    except (ValueError, TypeError, IndexError, AttributeError, struct.error, UnicodeError) as error:
        raise Corrupt(f"{what}: malformed typed value ({error})") from error


def _from_typed(node: list[Node], what: str) -> Plain:
    tag, body = node[0], node[1]
    if tag == "int":
        return int(body, 16)
    if tag == "float":
        return struct.unpack("<d", body)[0]
    if tag == "complex":
        return complex(*struct.unpack("<dd", body))
    if tag == "text":
        return body.decode("utf-8", "surrogatepass")
    if tag == "list":
        return [from_node(child, what) for child in body]
    if tag == "tuple":
        return tuple(from_node(child, what) for child in body)
    if tag == "set":
        return {from_node(child, what) for child in body}
    if tag == "frozenset":
        return frozenset(from_node(child, what) for child in body)
    if tag == "dict":
        return {from_node(key, what): from_node(value, what) for key, value in body}
    if tag == "tagged":
        return Tagged(body, from_node(node[2], what))
    raise Corrupt(f"{what}: unknown value type {tag!r}")


def _text_node(value: str) -> Node:
    """Text as it is; text with lone surrogates (which UTF-8 cannot hold) as its surrogate-passed bytes."""
    try:
        value.encode()
    except UnicodeEncodeError:
        return ["text", value.encode("utf-8", "surrogatepass")]
    return value
