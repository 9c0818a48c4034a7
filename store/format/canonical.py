"""Canonical CBOR: one value, one encoding.

The subset: ``None``, ``bool``, 64-bit integers, text, bytes, lists, and maps whose keys are text in bytewise order
of their UTF-8. No floats, no tags, no indefinite lengths. The decoder accepts only what re-encodes to the same
bytes, which refuses duplicate keys, other orders and non-minimal lengths in one stroke.

Spec: docs/format.md §2.
"""

from collections.abc import Sequence
from functools import lru_cache
from io import BytesIO
from typing import Any, Final

import cbor2

from ..errors import Corrupt, Incompatible
from ..ids import Buffer
from ..limits import MAX_NESTING

Node = Any
"""``None | bool | int | str | bytes | list[Node] | dict[str, Node]``; spelled out it costs mypy a recursive alias."""

_INT_MIN, _INT_MAX = -(2**63), 2**64 - 1

_COUNT, _BYTES, _TEXT, _LIST, _MAP = 0x00, 0x40, 0x60, 0x80, 0xA0
SHORTEST = 24
"""Arguments below this are part of the first byte; from here on it says how many bytes follow with the argument."""
_KEPT = 4096
"""Dtypes, sizes and lengths come again and again."""


def encode(node: Node) -> bytes:
    """Encode ``node``, sorting map keys.

    Raises:
        Incompatible: ``node`` holds something outside the subset, or nests deeper than ``MAX_NESTING``.
    """
    try:
        return cbor2.dumps(_ordered(node, MAX_NESTING))
    except UnicodeEncodeError as error:  # a lone surrogate
        raise Incompatible(f"text {error.object!r} cannot be written as UTF-8") from None


# Of what there are tens of thousands, the encoding is put together from these: the library takes twice as long.


def template(*keys: str) -> bytes:
    """For the ``%`` operator: the encoding of a map of these keys, in order, once it is given those of the values."""
    return _head(_MAP, len(keys)) + b"".join(text(key).replace(b"%", b"%%") + b"%b" for key in keys)


@lru_cache(_KEPT)
def text(value: str) -> bytes:
    """The encoding of text. Raises Incompatible where it is no UTF-8."""
    try:
        encoded = value.encode()
    except UnicodeEncodeError as error:  # a lone surrogate
        raise Incompatible(f"text {error.object!r} cannot be written as UTF-8") from None
    return _head(_TEXT, len(encoded)) + encoded


def blob(value: bytes) -> bytes:
    """The encoding of bytes."""
    return _head(_BYTES, len(value)) + value


def count(value: int) -> bytes:
    """The encoding of an integer from 0 to 2⁶⁴ - 1."""
    return _head(_COUNT, value)


@lru_cache(_KEPT)
def counts(values: tuple[int, ...]) -> bytes:
    """The encoding of a list of such integers."""
    return join_list([_head(_COUNT, value) for value in values])


def join_list(encoded: Sequence[bytes]) -> bytes:
    """The encoding of a list, from those of its elements."""
    return _head(_LIST, len(encoded)) + b"".join(encoded)


@lru_cache(_KEPT)
def _head(major: int, argument: int) -> bytes:
    """First bytes of an item: its type, and its value or length in as few bytes as hold that."""
    if argument < SHORTEST:
        return bytes([major | argument])
    width = next(width for width in range(4) if argument < 1 << (8 << width))
    return bytes([major | SHORTEST + width]) + argument.to_bytes(1 << width, "big")


def decode(data: Buffer, what: str = "object") -> Node:
    """Decode canonical CBOR.

    Args:
        data: the encoding, whole.
        what: named in the error.

    Raises:
        Corrupt: not CBOR, not the subset, or not the canonical encoding of what it says.
    """
    node = parse(data, what)
    try:
        again = encode(node)
    except Incompatible as error:
        raise Corrupt(f"{what}: not canonical CBOR ({error})") from error
    if again != data:
        raise Corrupt(f"{what}: not the canonical encoding of its content")
    return node


def parse(data: Buffer, what: str, most_nodes: int | None = None) -> Node:
    """Decode CBOR without the canonical check: for callers that re-encode what they make of it and compare.

    Args:
        data: the encoding, whole.
        what: named in the error.
        most_nodes: how many items it may hold; as many as it likes if ``None``.

    Raises:
        Corrupt: not CBOR, nested too deep, with too many items, or with tags, which could run code or multiply a few
            bytes into gigabytes.
    """
    if most_nodes is not None and len(data) > most_nodes:  # an item takes a byte at least
        _require_few(data, most_nodes, what)
    try:
        return cbor2.loads(data, max_depth=MAX_NESTING, **_SUBSET)
    except Exception as error:
        raise Corrupt(f"{what}: not canonical CBOR ({error})") from error


def parse_part(data: bytes, at: int, depth: int, what: str) -> tuple[Node, int]:
    """Decode what begins somewhere in an encoding, likewise.

    Args:
        data: the encoding.
        at: where it begins.
        depth: in how many lists and maps that is.
        what: named in the error.

    Returns:
        What is there, and where it ends.

    Raises:
        Corrupt: as :func:`parse` raises it.
    """
    stream = BytesIO(data)
    stream.seek(at)
    try:
        return cbor2.load(stream, max_depth=MAX_NESTING - depth, **_SUBSET), stream.tell()
    except Exception as error:
        raise Corrupt(f"{what}: not canonical CBOR ({error})") from error


def _require_few(data: Buffer, most_nodes: int, what: str) -> None:
    """Count items by their heads, without building any. Cost: 0.2 µs each."""
    at = node_count = 0
    while at < len(data):
        major, argument = data[at] & 0xE0, data[at] & 0x1F
        at += 1
        if argument >= SHORTEST:
            width_bytes = 1 << (argument - SHORTEST & 3)  # what is no width is refused by whoever builds it
            argument = int.from_bytes(data[at : at + width_bytes], "big")
            at += width_bytes
        if major in (_BYTES, _TEXT):
            at += argument
        node_count += 1
        if node_count > most_nodes:
            raise Corrupt(f"{what}: it holds more than {most_nodes:,} items")


def _refuse(*_: object) -> Node:
    raise Corrupt("a tag")


_NO_TAGS = dict.fromkeys([*range(1024), 1004, 43000, 55799], _refuse)
"""The tags that the library decodes by itself, shared references among them, and room for those to come."""

_SUBSET: Final[dict[str, Any]] = {
    "tag_hook": _refuse,
    "semantic_decoders": _NO_TAGS,
    "allow_indefinite": False,
    "allow_duplicate_keys": False,
}


def _ordered(node: Node, depth: int) -> Node:
    """Check ``node`` against the subset and return it with its map keys in order."""
    kind = type(node)
    if kind is str or kind is bytes or kind is bool or node is None:
        return node
    if kind is int:
        if not _INT_MIN <= node <= _INT_MAX:
            raise Incompatible(f"integer {node} does not fit 64 bits")
        return node
    if depth == 0:
        raise Incompatible(f"nested deeper than {MAX_NESTING} levels")
    if kind is list:
        return [_ordered(child, depth - 1) for child in node]
    if kind is dict:
        if not all(type(key) is str for key in node):
            raise Incompatible("map keys must be text")
        keys = sorted(node, key=str.encode)
        return {key: _ordered(node[key], depth - 1) for key in keys}
    raise Incompatible(f"{kind.__name__} has no canonical encoding")
