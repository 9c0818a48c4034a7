"""Stored values, for people and for programs. What a tag means is not asked: nothing is built, imported or run.

But for one: recipes of files, which say little to whoever reads them.
"""

import math
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any, Final

from store.beside import composed
from store.format.values import Plain, Tagged

from .text import inline, size

_BYTES_SHOWN: Final = 32
_DIGITS_SHOWN: Final = 16
_WIDTH: Final = 88


def to_json(value: Plain) -> Any:
    """A value as JSON. What JSON has no form for becomes an object that says what it is.

    ``{"bytes": hex}``, ``{"complex": [re, im]}``, ``{"float": "nan"}``, ``{"dict": [[key, value], …]}`` for keys that
    are no text, and ``{"type": tag, "value": …}`` for a tagged value. Tuples and sets become lists.
    """
    match value:
        case float():
            return value if math.isfinite(value) else {"float": repr(value)}
        case complex():
            return {"complex": [to_json(value.real), to_json(value.imag)]}
        case bytes():
            return {"bytes": value.hex()}
        case Tagged(tag, payload):
            return {"type": tag, "value": to_json(payload)}
        case dict() if all(type(key) is str for key in value):
            return {key: to_json(child) for key, child in value.items()}
        case dict():
            return {"dict": [[to_json(key), to_json(child)] for key, child in value.items()]}
        case list() | tuple():
            return [to_json(child) for child in value]
        case set() | frozenset():
            return [to_json(member) for member in _in_order(value)]
    return value


def to_text(value: Plain) -> str:
    """A value on one line, safe to print; long bytes are counted only, a file's recipe is told by what it gives."""
    match value:
        case Tagged(composed.TAG, (int() as size_bytes, bytes() as digest, _)):
            return f"file({size(size_bytes)}, sha256 {digest.hex()[:_DIGITS_SHOWN]}…)"
    if isinstance(value, bytes) and len(value) > _BYTES_SHOWN:
        return f"<{len(value):,} bytes>"
    parts = _parts(value)
    if parts is None:
        return repr(value)
    return parts.opening + ", ".join(label + to_text(child) for label, child in parts.children) + parts.closing


def to_lines(value: Plain, indent: str = "", label: str = "") -> Iterator[str]:
    """A value on as many lines as it takes to see its structure, safe to print."""
    line = f"{indent}{label}{to_text(value)}"
    parts = _parts(value)
    if len(line) <= _WIDTH or parts is None:
        yield line
        return
    yield f"{indent}{label}{parts.opening}"
    for child_label, child in parts.children:
        yield from to_lines(child, f"{indent}  ", child_label)
    yield f"{indent}{parts.closing}"


@dataclass(frozen=True, slots=True)
class _Parts:
    opening: str
    children: list[tuple[str, Plain]]
    """What is written before each child, and the child."""
    closing: str


def _parts(value: Plain) -> _Parts | None:
    """How a container is written; ``None`` for anything else."""
    match value:
        case Tagged(tag, payload):
            return _Parts(f"{inline(tag)}(", [("", payload)], ")")
        case dict():
            return _Parts("{", [(f"{to_text(key)}: ", child) for key, child in value.items()], "}")
        case list():
            return _Parts("[", _unlabelled(value), "]")
        case tuple():
            return _Parts("(", _unlabelled(value), ",)" if len(value) == 1 else ")")
        case frozenset():
            return _Parts("frozenset({", _unlabelled(_in_order(value)), "})")
        case set() if value:
            return _Parts("{", _unlabelled(_in_order(value)), "}")
    return None


def _unlabelled(children: list[Plain] | tuple[Plain, ...]) -> list[tuple[str, Plain]]:
    return [("", child) for child in children]


def _in_order(members: set[Plain] | frozenset[Plain]) -> list[Plain]:
    """Members in an order that does not change from run to run."""
    return sorted(members, key=to_text)
