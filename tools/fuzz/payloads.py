"""Target: payloads of chunks, by the compiled kernels and by their twins, with nothing readable behind any buffer.

Whatever a kernel touches beyond the end of what it was given ends the process, which the fuzzer tells of.
"""

import ctypes
import mmap
import random
from collections.abc import Iterator
from functools import cache

from store import codec, kernels
from store.codec import Transform
from store.errors import Corrupt
from store.format.dtypes import Element
from store.kernels import _loader, reference

from .drawn import Drawn

_ELEMENTS = tuple(Element)
_TRANSFORMS = (Transform.PLANES, Transform.XOR, Transform.DIFF, Transform.ZSTD)
_MAX_WORDS = 1 << 16
_MAX_BYTES = 8 * _MAX_WORDS
_HEAD_BYTES = 7


class _Guarded:
    """Memory whose last byte is followed by a page that nobody may touch. Never given back."""

    def __init__(self, size_bytes: int) -> None:
        page_bytes = mmap.PAGESIZE
        room_bytes = -(-size_bytes // page_bytes) * page_bytes
        self._memory = mmap.mmap(-1, room_bytes + page_bytes)
        address = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        libc = ctypes.CDLL(None, use_errno=True)
        if libc.mprotect(ctypes.c_void_p(address + room_bytes), ctypes.c_size_t(page_bytes), 0):
            raise OSError(ctypes.get_errno(), "mprotect")
        self._end = room_bytes

    def last(self, size_bytes: int) -> memoryview:
        """The last bytes before that page."""
        return memoryview(self._memory)[self._end - size_bytes : self._end]


@cache
def _rooms() -> tuple[_Guarded, _Guarded, _Guarded]:
    if not kernels.warm():
        raise RuntimeError("the compiled kernels do not work here: there is nothing to compare the twins with")
    return _Guarded(_MAX_BYTES), _Guarded(_MAX_BYTES), _Guarded(_MAX_BYTES)


@cache
def _base(kind: int) -> bytes:
    draw = random.Random(kind)
    if kind == 0:
        return bytes(_MAX_BYTES)
    if kind == 1:
        return draw.randbytes(_MAX_BYTES)
    return bytes(draw.choice(b"\x3f\x3e\x00\xbf") if at % 2 else draw.randrange(256) for at in range(_MAX_BYTES))


def payload(data: bytes) -> None:
    """Decode a payload twice, and compare."""
    draw = Drawn(data)
    transform, element = draw.one_of(_TRANSFORMS), draw.one_of(_ELEMENTS)
    grouped, kind = bool(draw.number() & 1), draw.number() % 3
    word_count = 1 + draw.number(2) % _MAX_WORDS
    raw_bytes = word_count * element.width_bytes
    stored, base, out = (guarded.last(size) for guarded, size in zip(_rooms(), (0, raw_bytes, raw_bytes), strict=True))
    rest = draw.rest()[:_MAX_BYTES]
    stored = _rooms()[0].last(len(rest))
    stored[:] = rest
    base[:] = _base(kind)[:raw_bytes]
    given = base if transform.needs_base else None
    compiled = _loader.chosen
    results: list[bytes | None] = []
    for chosen in (compiled, reference):
        _loader.chosen = chosen
        out[:] = bytes(raw_bytes)
        try:
            codec.decode(transform, grouped, element, stored, raw_bytes, given, out)
            results.append(bytes(out))
        except Corrupt:
            results.append(None)
        finally:
            _loader.chosen = compiled
    assert results[0] == results[1], "the compiled kernels and their twins disagree"
    assert bytes(base) == _base(kind)[:raw_bytes], "the base was written to"


def seeds() -> Iterator[bytes]:
    """What the encoder makes of chunks of every element, with and without a base."""
    if not kernels.warm():
        raise RuntimeError("the compiled kernels do not work here")
    for number, element in enumerate(_ELEMENTS):
        for word_count in (64, 5000, 20_000):
            raw_bytes = word_count * element.width_bytes
            for kind in (0, 1, 2):
                base = memoryview(_base(kind))[:raw_bytes]
                drifted = bytearray(base)
                for at in range(0, raw_bytes, 3):
                    drifted[at] ^= at % 7
                for given in (None, base):
                    made = codec.encode(memoryview(drifted), element, given)
                    if made.transform in _TRANSFORMS:
                        yield b"".join(
                            (
                                _TRANSFORMS.index(made.transform).to_bytes(2, "little"),
                                number.to_bytes(2, "little"),
                                bytes((made.grouped, kind)),
                                (word_count - 1).to_bytes(2, "little"),
                                *map(bytes, made.payload),
                            )
                        )
