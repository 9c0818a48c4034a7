"""A base chunk that is not as long as the chunk, or holds floats of another width: a window of it, cast.

A view stands before the planes of a payload. Which words the base holds is said there and nowhere else: equal bytes of
two dtypes are one object, so what the base's own header says of its words may be either.

Spec: docs/format.md §5.6.
"""

import struct
import threading
from functools import cache
from typing import TYPE_CHECKING, Final, NamedTuple

from ..errors import Corrupt
from ..format.dtypes import Element
from ..memory import Room
from . import narrowing

if TYPE_CHECKING:
    from .casting import Casting

_RECORD: Final = struct.Struct("<B3sI")
VIEW_BYTES: Final = _RECORD.size
"""What a view takes of a payload."""

_DTYPES: Final = {Element.FP32: "float32", Element.BF16: "bfloat16", Element.FP16: "float16"}
"""Words that can be cast into each other, and the dtype that has each."""


class View(NamedTuple):
    """What a chunk sees of its base.

    Attributes:
        element: the words that the base is taken to hold.
        first: which of them belongs to the chunk's first word; one follows another from there.
    """

    element: Element
    first: int

    def fits(self, element: Element, word_count: int, base_bytes: int) -> bool:
        """Whether a chunk of ``word_count`` words can be seen against a base of so many bytes."""
        return can_see(self.element, element) and (self.first + word_count) * self.element.width_bytes <= base_bytes


class _Thread(threading.local):
    """Where a thread casts bases."""

    def __init__(self) -> None:
        self.room = Room()


_thread = _Thread()


def can_see(held: Element, wanted: Element) -> bool:
    """Whether words of one kind can be seen as words of another."""
    return held == wanted or (held in _DTYPES and wanted in _DTYPES)


def seen(base: memoryview, view: View, element: Element, raw_bytes: int) -> memoryview:
    """The base as a chunk sees it.

    Args:
        base: bytes of the base chunk, whatever their number.
        view: what is seen of it.
        element: the chunk's words.
        raw_bytes: length of the chunk, whole words.

    Returns:
        As many bytes as the chunk has: a part of ``base``, or memory of this thread, valid until it casts another.

    Raises:
        Corrupt: the base does not hold all of the window, or its words cannot be cast.

    Cost: one pass if there is something to cast; memory of ``raw_bytes``.
    """
    word_count = raw_bytes // element.width_bytes
    if not view.fits(element, word_count, len(base)):
        raise Corrupt(
            f"a view of {word_count} words as {element.name}, from word {view.first} of {view.element.name} on, does"
            f" not fit its base of {len(base)} bytes"
        )
    start, stop = (at * view.element.width_bytes for at in (view.first, view.first + word_count))
    if view.element == element:
        return base[start:stop]
    out = _thread.room.of(raw_bytes)
    _cast(view.element, element).into(base[start:stop], 0, out)
    return out


def encode_view(view: View) -> bytes:
    """The bytes of a view."""
    return _RECORD.pack(view.element, bytes(3), view.first)


def split(payload: memoryview) -> tuple[View, memoryview]:
    """Take a payload apart into a view and what stands behind it.

    Raises:
        Corrupt: no view stands there.
    """
    if len(payload) < VIEW_BYTES:
        raise Corrupt(f"a payload of {len(payload)} bytes is shorter than a view")
    code, zeros, first = _RECORD.unpack(payload[:VIEW_BYTES])
    if code >= len(Element) or any(zeros):
        raise Corrupt(f"no view of a base begins with {bytes(payload[:4]).hex()}")
    return View(Element(code), first), payload[VIEW_BYTES:]


@cache
def _cast(held: Element, wanted: Element) -> "Casting":
    return narrowing(_DTYPES[held], _DTYPES[wanted], b"", 1)
