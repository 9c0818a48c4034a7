"""Compiled kernels from an image, called through ctypes, which releases the GIL.

An image that was damaged would take the process with it: :mod:`store.kernels.cache` checks it first.
"""

import ctypes
import threading
from collections.abc import Callable
from typing import Any, Final

import numpy as np

from .casting import Numbers
from .choosing import MAX_WIDTH_BYTES
from .estimating import WEIGHTS, Candidates, Runs
from .image import Image
from .interface import ARGUMENTS, RESULTS, VARIANTS
from .mapping import Bytes, Counts, Words
from .reference import STREAM_LINE_BYTES
from .scratch import ASIDE, CELLS, KINDS

_PLANE_GAP_BYTES: Final = 17 * 64
"""Between planes: a power of two apart, the same offset of every plane falls into one set of the cache."""


class _Scratch(threading.local):
    """What the kernels of one thread write to between two passes. Kept: it is in the cache then."""

    def __init__(self) -> None:
        self._arrays = {number: np.zeros(count, kind) for number, (kind, count) in KINDS.items()}
        self._keys = self._planes = np.empty(0, np.uint8)
        self.addresses = (ctypes.c_void_p * len(KINDS))(*(_at(self._arrays[number]) for number in range(len(KINDS))))
        self.planes = (ctypes.c_void_p * (2 * MAX_WIDTH_BYTES))()

    def room(self, word_count: int, width_bytes: int) -> int:
        """Make room for the keys and the planes of a chunk, and say where the keys go."""
        plane_bytes = word_count + _PLANE_GAP_BYTES
        if self._keys.size < word_count or self._planes.size < width_bytes * plane_bytes:
            self._keys = np.empty(max(self._keys.size, word_count), np.uint8)
            self._planes = np.empty(max(self._planes.size, width_bytes * plane_bytes), np.uint8)
        start = _at(self._planes)
        self.planes[ASIDE : ASIDE + width_bytes] = [start + number * plane_bytes for number in range(width_bytes)]
        return _at(self._keys)


class Native:
    """The kernels in an image. Arguments: :mod:`store.kernels.reference`. Thread-safe.

    Args:
        image: what :func:`store.kernels.linking.linked` made, undamaged.

    Raises:
        ValueError: this is no image of these kernels for this machine.
        OSError: this system runs no code but that of files.

    Cost: 1 ms.
    """

    def __init__(self, image: bytes) -> None:
        self._image = Image(image)  # the code lives as long as this
        addresses = zip(VARIANTS, self._image.addresses, strict=True)
        self._functions = {variant: _function(variant[0], address) for variant, address in addresses}
        self._scratch = _Scratch()
        self._weights = _at(WEIGHTS)

    def exponent_keys(self, base: Words, first_bit: int, mask: int, keys: Bytes, counts: Counts) -> None:
        """Twin: :func:`store.kernels.reference.exponent_keys`."""
        call = self._functions["exponent_keys", base.itemsize]
        call(_at(base), base.size, first_bit, mask, _at(keys), _at(counts), self._scratch.addresses[CELLS])

    def context_keys(self, codes: Bytes, columns: int, keys: Bytes, counts: Counts) -> None:
        """Twin: :func:`store.kernels.reference.context_keys`."""
        call = self._functions["context_keys", 1]
        rows = codes.size - columns
        call(_at(codes), rows, columns, _at(keys), keys.size, _at(counts), self._scratch.addresses[CELLS])

    def join(
        self,
        planes: tuple[Bytes, ...],
        base: Words,
        mapping: int,
        keys: Bytes,
        cursors: Counts,
        grouped_planes: int,
        words: Words,
    ) -> None:
        """Twin: :func:`store.kernels.reference.join`."""
        addresses = _addresses(planes)
        call = self._functions["join", words.itemsize]
        arguments = (addresses, _at(base), words.size, mapping, _at(keys), _at(cursors), grouped_planes, _at(words))
        call(*arguments, self._scratch.addresses)

    def choose(
        self, words: Words, base: Words, word_count: int, runs: Runs, candidates: Candidates, plan: Counts
    ) -> None:
        """Twin: :func:`store.kernels.estimating.choose`."""
        plain, deltas, first_bit, mask = candidates
        arguments = (_at(words), _at(base), word_count, *runs, plain, *deltas, first_bit, mask)
        call = self._functions["choose", words.itemsize]
        call(*arguments, self._weights, _at(plan), self._scratch.addresses)

    def encode(self, words: Words, base: Words, candidates: Candidates, plan: Counts, out: Bytes) -> int:
        """Twin: :func:`store.kernels.reference.encode`."""
        scratch = self._scratch
        keys_at = scratch.room(words.size, words.itemsize)
        arguments = (_at(words), _at(base), words.size, _at(plan), candidates.first_bit, candidates.mask, _at(out))
        call = self._functions["encode", words.itemsize]
        return int(call(*arguments, keys_at, scratch.planes, scratch.addresses))

    def decode(
        self,
        payload: Bytes,
        base: Words,
        mapping: int,
        exponent: tuple[int, int],
        words: Words,
        *,
        grouped: bool,
        streamed: bool,
    ) -> int:
        """Twin: :func:`store.kernels.reference.decode`."""
        scratch = self._scratch
        keys_at = scratch.room(words.size, words.itemsize)
        words_at = _at(words)
        past_caches = streamed and words_at % STREAM_LINE_BYTES == 0
        how = (words.itemsize, words.size, mapping, grouped, *exponent, past_caches)
        call = self._functions["decode", 1]
        arguments = (_at(payload), payload.size, _at(base), *how, words_at)
        return int(call(*arguments, keys_at, scratch.planes, scratch.addresses))

    def stream(self, target_at: int, source_at: int, size_bytes: int) -> None:
        """Twin: :func:`store.kernels.reference.stream`."""
        self._functions["stream", 1](target_at, source_at, size_bytes)

    def cast(
        self,
        source: Words,
        source_format: int,
        target: Words,
        target_format: int,
        factors: Numbers,
        columns: int,
        first: int,
    ) -> None:
        """Twin: :func:`store.kernels.casting.cast`."""
        call = self._functions["cast", 1]
        arguments = (_at(source), source_format, source.size, _at(target), target_format)
        call(*arguments, _at(factors), factors.size, columns, first, self._scratch.addresses)

    def largest(self, words: Words, infinity: int) -> int:
        """Twin: :func:`store.kernels.casting.largest`."""
        return int(self._functions["largest", words.itemsize](_at(words), words.size, infinity))


def _function(name: str, address: int) -> Callable[..., Any]:
    kinds = [ctypes.c_int64 if letter == "i" else ctypes.c_void_p for letter in ARGUMENTS[name].split()]
    result = ctypes.c_uint64 if name in RESULTS else None
    return ctypes.CFUNCTYPE(result, *kinds)(address)


def _at(array: Words) -> int:
    """Where an array begins. NumPy's own answer takes longer than many a kernel."""
    if not array.size:
        return 0  # nobody looks there
    return ctypes.addressof(_any_bytes(array)) if array.flags.writeable else int(array.ctypes.data)


_any_bytes: Any = ctypes.c_char.from_buffer


def _addresses(planes: tuple[Bytes, ...]) -> Any:
    return (ctypes.c_void_p * len(planes))(*map(_at, planes))
