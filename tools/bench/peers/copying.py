"""No library: the state is copied into warm memory by two threads and stored nowhere. The yardstick of blocked time."""

import ctypes
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar, Final

from ..workloads.run import Items, states, tensors
from .library import Settle, durable_already

_THREAD_COUNT: Final = 2
_PART_BYTES: Final = 4 << 20
"""Small enough that both threads end at the same time."""


class Copying:
    """``memmove``, which is what a copy costs at least. Memory is got, and touched, by the first save."""

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._threads = ThreadPoolExecutor(_THREAD_COUNT)
        self._memory = bytearray()

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""

    def save(self, step: int, items: Items) -> Settle:  # noqa: ARG002 - nothing is stored, under no step
        """See :class:`Library`."""
        places = [(tensor.data_ptr(), tensor.nbytes) for tensor in tensors(states(items))]
        size_bytes = sum(size for _, size in places)
        if len(self._memory) < size_bytes:
            self._memory = bytearray(size_bytes)
        list(self._threads.map(_copy, self._halves(places)))
        return durable_already

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        return nullcontext()

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`."""
        raise NotImplementedError

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return []

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        raise NotImplementedError

    def close(self) -> None:
        """See :class:`Library`."""
        self._threads.shutdown()

    def _halves(self, places: list[tuple[int, int]]) -> list[list[tuple[int, int, int]]]:
        """By thread: target, source and length of each copy."""
        parts: list[list[tuple[int, int, int]]] = [[] for _ in range(_THREAD_COUNT)]
        target = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        sizes = [0] * _THREAD_COUNT
        for source, size in places:
            for start in range(0, size, _PART_BYTES):
                length = min(_PART_BYTES, size - start)
                thread = sizes.index(min(sizes))
                parts[thread].append((target, source + start, length))
                sizes[thread] += length
                target += length
        return parts


def _copy(parts: list[tuple[int, int, int]]) -> None:
    for target, source, length in parts:
        ctypes.memmove(target, source, length)  # without the interpreter's lock
