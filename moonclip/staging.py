"""Host memory that a state is copied into before ``save`` returns.

Two arenas alternate: while one is written to the store, and until the next save has been compared with it, its bytes
must stay as they are; the next state goes into the other. So the last save's bytes are the next one's delta bases
without a read or a further copy, and memory is bounded by two arenas.
"""

import mmap
from collections.abc import Iterator, Mapping
from contextlib import suppress
from dataclasses import dataclass
from typing import Final

import numpy as np
import torch

from store.inputs import ContainerInput, Input, ItemInput, TensorInput, ValueInput
from store.limits import MIB, PAGE_BYTES
from store.parallel import Threads

from .entries import FlatEntry, FlatState, FlatTensor, FlatValue
from .tensors import TensorSource

_ALIGNMENT_BYTES: Final = 64
"""Every tensor starts at a multiple: a cache line, and more than any element needs."""

_COPY_BYTES: Final = 8 * MIB
"""A task of the copying threads: big enough to be worth waking one, small enough that they end together."""


class Staging:
    """The two arenas. Not thread-safe: one capture at a time, and only once the save before it has ended.

    Args:
        threads: do the copying.
    """

    def __init__(self, threads: Threads) -> None:
        self._threads = threads
        self._arenas = (_Arena(), _Arena())
        """The one that is written next, and the last save's: one attribute, so that no interrupt finds half a swap."""

    def capture(self, states: Mapping[str, FlatState]) -> tuple[ItemInput, ...]:
        """Copy every tensor; returns once that is done. A tensor with two names in an item is copied once.

        Args:
            states: by item name.

        Returns:
            What the engine stores; its buffers stay as they are until the capture after the next one.

        Raises:
            MemoryError: there is no room for the state.

        Cost: one pass over the state, on all threads, without the GIL.
        """
        sources = _sources(states)
        arena, last = self._arenas
        # Given back only by a whole capture: threads that an interrupt did not stop go on writing into it.
        self._arenas = (_Arena(), last)
        views = dict(zip(sources, arena.views([source.size_bytes for source in sources]), strict=True))
        items = tuple(_item(item, state, views) for item, state in states.items())
        _finish_devices(sources)
        self._threads.run(_copy, list(_copies(views)))
        self._arenas = (last, arena)
        return items


class _Arena:
    """One stretch of page-aligned memory, made anew only when a state no longer fits or has become far smaller."""

    def __init__(self) -> None:
        self._memory: mmap.mmap | None = None

    def views(self, sizes_bytes: list[int]) -> list[memoryview]:
        """Room for buffers of these sizes. What was here before is gone."""
        starts = [0]
        for size_bytes in sizes_bytes:
            starts.append(starts[-1] + -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES)
        memory = self._reserve(starts[-1])
        return [memory[start : start + size] for start, size in zip(starts, sizes_bytes, strict=False)]

    def _reserve(self, size_bytes: int) -> memoryview:
        memory = self._memory
        if memory is None or not size_bytes <= len(memory) <= 2 * size_bytes + MIB:
            self._memory = memory = None  # before, not after: old and new together could be too much
            self._memory = memory = _allocate(max(size_bytes, PAGE_BYTES))
        return memoryview(memory)


def _allocate(size_bytes: int) -> mmap.mmap:
    memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
    if hasattr(mmap, "MADV_HUGEPAGE"):
        with suppress(OSError):  # a kernel without huge pages; it is only advice
            memory.madvise(mmap.MADV_HUGEPAGE)
    return memory


# --- what is captured ---------------------------------------------------------------------------------------------


def _sources(states: Mapping[str, FlatState]) -> list[TensorSource]:
    """Every tensor once, in the order in which it is met."""
    entries = (entry for state in states.values() for entry in state.entries.values())
    return list(dict.fromkeys(entry.source for entry in entries if isinstance(entry, FlatTensor)))


def _item(item: str, state: FlatState, views: Mapping[TensorSource, memoryview]) -> ItemInput:
    return ItemInput(item, {name: _input(entry, views) for name, entry in state.entries.items()}, state.ties)


def _input(entry: FlatEntry, views: Mapping[TensorSource, memoryview]) -> Input:
    if isinstance(entry, FlatTensor):
        return TensorInput(entry.position, entry.source.dtype, entry.source.shape, views[entry.source])
    if isinstance(entry, FlatValue):
        return ValueInput(entry.position, entry.value)
    return ContainerInput(entry.position, entry.container, entry.info)


# --- copying ------------------------------------------------------------------------------------------------------


@dataclass(frozen=True, slots=True)
class _Run:
    """Some bytes of a tensor that lies in C order."""

    source: memoryview
    out: memoryview


_Copy = list[tuple[TensorSource, memoryview]] | _Run


def _finish_devices(sources: list[TensorSource]) -> None:
    """Wait for what the caller has queued on its streams: the copying threads' streams do not."""
    for device in {source.tensor.device for source in sources if source.tensor.is_cuda}:
        torch.cuda.current_stream(device).synchronize()


def _copies(views: Mapping[TensorSource, memoryview]) -> Iterator[_Copy]:
    """Tasks of about ``_COPY_BYTES``: small tensors together, large ones in runs, odd ones as torch copies them."""
    gathered: list[tuple[TensorSource, memoryview]] = []
    gathered_bytes = 0
    for source, out in views.items():
        lying = source.bytes_view() if source.size_bytes > _COPY_BYTES else None
        if lying is not None:
            yield from (_Run(lying[at : at + _COPY_BYTES], out[at : at + _COPY_BYTES]) for at in _starts(out))
            continue
        gathered.append((source, out))
        gathered_bytes += source.size_bytes
        if gathered_bytes >= _COPY_BYTES:
            yield gathered
            gathered, gathered_bytes = [], 0
    if gathered:
        yield gathered


def _starts(out: memoryview) -> range:
    return range(0, len(out), _COPY_BYTES)


def _copy(task: _Copy) -> None:
    if isinstance(task, _Run):
        np.copyto(np.frombuffer(task.out, np.uint8), np.frombuffer(task.source, np.uint8))
        return
    for source, out in task:
        source.copy_into(out)
