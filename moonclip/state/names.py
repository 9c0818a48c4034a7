"""Names of entries inside an item: a path of escaped keys, like a JSON pointer without its first slash. Pure.

Every key has one segment and every segment one key, so names never collide: ``{"a/b": …, "a": {"b": …}}`` becomes
``a~1b`` and ``a/b``; the integer key 0 becomes ``0`` and the text ``"0"`` becomes ``~s0``. The root is ``""``.

Spec: docs/format.md §9.
"""

import re
from collections.abc import Iterable
from fnmatch import fnmatchcase
from functools import lru_cache
from typing import Final

from store.errors import Corrupt, NotFound
from store.format import values
from store.format.values import Plain

ROOT: Final = ""
METADATA: Final = "~metadata"
"""Child that keeps the ``_metadata`` attribute of a module's state dict; no key has this segment."""

_INTEGER: Final = re.compile(r"-?[0-9]+")
_KEYS_KEPT: Final = 1024
"""An optimizer has the same few keys for each of its parameters."""
_MAX_DIGITS: Final = 19
"""Integers of more digits are spelled as other keys are: Python refuses to parse very long ones."""


def segment(key: Plain) -> str:
    """Segment of one key.

    Args:
        key: text, an integer, or any other plain value that is hashable.
    """
    if type(key) is str:
        return _text_segment(key)
    if type(key) is int and abs(key) < 10**_MAX_DIGITS:
        return str(key)
    return "~k" + values.encode(key).hex()


@lru_cache(_KEYS_KEPT)
def key_of(segment: str) -> Plain:
    """Inverse of :func:`segment`.

    Raises:
        Corrupt: no key has this segment.
    """
    if segment.startswith("~k"):
        try:
            return values.decode(bytes.fromhex(segment[2:]), f"key {segment!r}")
        except ValueError as error:
            raise Corrupt(f"malformed key {segment!r} in a name") from error
    if _INTEGER.fullmatch(segment) and len(segment) <= _MAX_DIGITS + 1:
        return int(segment)
    text = segment.removeprefix("~s")
    return text.replace("~1", "/").replace("~0", "~")


def join(parent: str, segment: str) -> str:
    """Name of the child ``segment`` of the entry ``parent``."""
    return f"{parent}/{segment}" if parent else segment


def parent_of(name: str) -> str:
    """Name of the container an entry lies in; the root's is the root."""
    return name.rpartition("/")[0]


def last_segment(name: str) -> str:
    """What :func:`join` added last."""
    return name.rpartition("/")[2]


def select(names: Iterable[str], patterns: Iterable[str]) -> list[str]:
    """Names that patterns ask for, with all that lies below them and all containers they lie in; order kept.

    Args:
        names: entries of an item.
        patterns: names, or globs as in ``fnmatch``: case-sensitive, ``*`` crosses ``/``.

    Raises:
        NotFound: a pattern that matches no name.
    """
    known = list(names)
    matched: set[str] = set()
    for pattern in patterns:
        hits = [name for name in known if name == pattern or fnmatchcase(name, pattern)]
        if not hits:
            raise NotFound(f"no tensor or value is named {pattern!r}; list the names with `moonclip ls`", name=pattern)
        matched.update(hits)
    above = {ancestor for name in matched for ancestor in _ancestors(name)}
    return [name for name in known if name in matched or name in above or not matched.isdisjoint(_ancestors(name))]


def _ancestors(name: str) -> list[str]:
    """Names of the containers around an entry, the root first; the root has none."""
    if name == ROOT:
        return []
    slashes = [at for at, letter in enumerate(name) if letter == "/"]
    return [ROOT, *(name[:at] for at in slashes)]


def _text_segment(key: str) -> str:
    if key[:1].isalpha() and key.isascii() and "/" not in key and "~" not in key:
        return key  # nearly every key, in a tenth of the time
    try:
        key.encode()
    except UnicodeEncodeError:  # names are UTF-8, lone surrogates are not
        return "~k" + values.encode(key).hex()
    escaped = key.replace("~", "~0").replace("/", "~1")
    return f"~s{escaped}" if not key or _INTEGER.fullmatch(key) else escaped
