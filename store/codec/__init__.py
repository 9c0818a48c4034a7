"""The codec: how one chunk is stored. ``transform → byte planes → entropy``, chosen by sampling.

An encoding never is part of a chunk's identity, so whatever is chosen here may differ between versions and machines;
what a payload means may not. Nothing here does I/O. Everything is thread-safe and spends its time with the GIL
released.

Spec: docs/format.md §5.
"""

from collections.abc import Callable, Sequence
from enum import IntEnum
from functools import cache
from typing import TYPE_CHECKING, Any, NamedTuple

from ..errors import Corrupt, Incompatible
from ..forks import loading
from ..format import whole
from ..format.dtypes import Element
from ..ids import Buffer
from ..memory import Room

if TYPE_CHECKING:
    from .casting import Casting
    from .views import View


class Transform(IntEnum):
    """What a payload is. The value is the format's code."""

    RAW = 0
    PLANES = 1
    XOR = 2
    DIFF = 3
    ZSTD = 4

    @property
    def needs_base(self) -> bool:
        """Whether a payload can only be decoded beside its base."""
        return self in (Transform.XOR, Transform.DIFF)


class Encoded(NamedTuple):  # made for every chunk, and a frozen dataclass takes thrice the time
    """One chunk as it will be stored.

    Attributes:
        transform: what the payload is.
        grouped: whether any plane is in group order.
        payload: the bytes, in order. A ``RAW`` payload is the caller's buffer itself, not a copy.
        size_bytes: bytes of the payload.
        uses_base: whether the base is needed to decode it.
        viewed: whether the payload begins with a view of the base.
    """

    transform: Transform
    grouped: bool
    payload: Sequence[Buffer]
    size_bytes: int
    uses_base: bool
    viewed: bool = False


def encode(
    raw: memoryview,
    element: Element,
    base: memoryview | None = None,
    room: Room | None = None,
    view: "View | None" = None,
) -> Encoded:
    """Encode a chunk, as small as the sampled candidates promise and never larger than ``raw``.

    Args:
        raw: the chunk, one-dimensional bytes, C-contiguous. Must not change during the call, nor afterwards while
            the result's payload is in use.
        element: the words in it.
        base: bytes of the base chunk, or ``None``. Without a view it is ignored unless it is as long as ``raw``.
        room: where the payload goes; ``None`` for memory of its own.
        view: what the chunk sees of its base; ``None`` for all of it as it is.

    Raises:
        Corrupt: the base does not hold what the view shows.

    Cost: 0.3–0.4 ns a byte of a large chunk with compiled kernels, 6–8 with their NumPy twins; scratch of twice the
    chunk per thread.
    """
    if view is not None and base is not None:
        return _encode_viewed(raw, element, base, room or Room(), view)
    return _word_encoder()(raw, element, base, room or Room()) or _raw(raw)


def _encode_viewed(raw: memoryview, element: Element, base: memoryview, room: Room, view: "View") -> Encoded:
    views = _views()
    encoded = encode(raw, element, views.seen(base, view, element, len(raw)), room)
    if not encoded.uses_base:
        return encoded
    payload, size_bytes = (views.encode_view(view), *encoded.payload), views.VIEW_BYTES + encoded.size_bytes
    return encoded._replace(payload=payload, size_bytes=size_bytes, viewed=True) if size_bytes < len(raw) else _raw(raw)


def encode_blob(raw: Buffer) -> Encoded:
    """Encode opaque bytes: one zstd frame, or raw if that is no smaller."""
    frame = whole.compress(raw)
    if len(frame) < len(raw):
        return Encoded(Transform.ZSTD, False, (frame,), len(frame), False)
    return _raw(raw)


def _raw(raw: Buffer) -> Encoded:
    return Encoded(Transform.RAW, False, (raw,), len(raw), False)


def decode(
    transform: int,
    grouped: bool,  # noqa: FBT001 - the fields of an object's header, in their order
    element: Element,
    payload: memoryview,
    raw_bytes: int,
    base: memoryview | None,
    out: memoryview,
    *,
    viewed: bool = False,
    streamed: bool = False,
) -> None:
    """Decode a payload.

    Args:
        transform: as in the object's header.
        grouped: as in the object's header.
        element: as in the object's header.
        payload: the stored bytes, untrusted; not used after the call.
        raw_bytes: as in the object's header.
        base: raw bytes of the base chunk for ``XOR`` and ``DIFF``, else ``None``; of any length if ``viewed``.
        out: writable one-dimensional bytes, ``raw_bytes`` long, aliases neither input; undefined after an error.
        viewed: as in the object's header.
        streamed: nobody reads ``out`` soon, so that it need not go through the caches.

    Raises:
        Corrupt: the payload, or the base, does not fit.
        Incompatible: a transform this version does not know.

    Cost: about 0.3 ns a byte of a large chunk with compiled kernels, 1.5 with their NumPy twins; scratch of at most
    the chunk's size.
    """
    if len(out) != raw_bytes:
        raise Corrupt(f"chunk of {raw_bytes} bytes where {len(out)} belong")
    if viewed:
        if base is None:
            raise Corrupt("a view without a base")
        view, payload = _views().split(payload)
        base = _views().seen(base, view, element, raw_bytes)
    if transform == Transform.RAW:
        _require_plain(base, grouped=grouped)
        if len(payload) != len(out):
            raise Corrupt(f"raw payload of {len(payload)} bytes for a chunk of {len(out)}")
        out[:] = payload
    elif transform == Transform.ZSTD:
        _require_plain(base, grouped=grouped)
        out[:] = whole.decompress(payload, raw_bytes, "chunk")
    elif transform in (Transform.PLANES, Transform.XOR, Transform.DIFF):
        _word_decoder()(Transform(transform), grouped, element, payload, base, out, streamed=streamed)
    else:
        raise Incompatible(f"unknown transform {transform}: written by a newer version?", transform=transform)


# What works on planes needs NumPy, and commands that only read history never meet a plane. The first chunk may well be
# met in a thread, beside a fork.


@cache
def _word_encoder() -> Callable[[memoryview, Element, memoryview | None, Room], Encoded | None]:
    with loading:
        from .encoding import encode_words

        return encode_words


@cache
def _word_decoder() -> Callable[..., None]:
    with loading:
        from .decoding import decode_words

        return decode_words


@cache
def _views() -> Any:
    with loading:
        from . import views

        return views


def narrowing(dtype_name: str, stored: str, scale: bytes, columns: int) -> "Casting":
    """See :func:`store.codec.casting.narrowing`."""
    found: Casting = _casting().narrowing(dtype_name, stored, scale, columns)
    return found


def widening(dtype_name: str, stored: str, scale: bytes, columns: int) -> "Casting":
    """See :func:`store.codec.casting.widening`."""
    found: Casting = _casting().widening(dtype_name, stored, scale, columns)
    return found


def scale_for(data: memoryview, dtype_name: str, stored: str, columns: int | None) -> bytes | None:
    """See :func:`store.codec.casting.scale_for`."""
    found: bytes | None = _casting().scale_for(data, dtype_name, stored, columns)
    return found


def largest_of(data: memoryview, dtype_name: str, columns: int | None) -> list[int]:
    """See :func:`store.codec.casting.largest_of`."""
    found: list[int] = _casting().largest_of(data, dtype_name, columns)
    return found


def scale_of(most: Sequence[int], dtype_name: str, stored: str) -> bytes | None:
    """See :func:`store.codec.casting.scale_of`."""
    found: bytes | None = _casting().scale_of(most, dtype_name, stored)
    return found


@cache
def _casting() -> Any:
    with loading:
        from . import casting

        return casting


def _require_plain(base: memoryview | None, *, grouped: bool) -> None:
    if grouped or base is not None:
        raise Corrupt("an encoding without planes has neither groups nor a base")
