"""Copying tensors into an arena: the big ones in runs, on several threads, without the GIL.

Plain memory is copied from address to address: making an array or a tensor of each of twenty thousand small tensors
would take ten times as long as copying it.
"""

import ctypes
from collections.abc import Iterable, Iterator
from typing import Final

from store.limits import COPY_RUN_BYTES, HELD_COPY_BYTES, PAGE_BYTES
from store.memory import stream
from store.parallel import Threads
from store.saving.arenas import Arena
from store.saving.inputs import Span

from ..state.tensors import TensorSource
from .devices import Moment

Place = tuple[TensorSource, Span]
"""A tensor, and where in an arena its bytes go."""


class Copier:
    """Copies one state into an arena, all at once or in two goes.

    Made in the caller's thread, at the moment the copy is to be of.

    Args:
        sources: the tensors.
        arena: is written.
        threads: do the copying.
        is_cold: whether the arena has no pages yet. They are made first: writing where there is no room for them
            would end the process.
    """

    def __init__(self, sources: Iterable[TensorSource], arena: Arena, threads: Threads, *, is_cold: bool) -> None:
        self._moment = Moment(sources)
        self._arena = arena
        self._threads = threads
        self._is_cold = is_cold
        self._memory = arena.memory  # held here, so that it stays mapped
        self._base = ctypes.addressof(ctypes.c_ubyte.from_buffer(self._memory))

    def copy(self, places: Iterable[Place]) -> None:
        """Copy tensors; returns once that is done, or has failed and no thread writes into the arena any more.

        Args:
            places: the tensors, and where they go.

        Raises:
            MemoryError: there is no room for the arena's pages.
            RuntimeError: a tensor could not be read from its device.

        Cost: one pass at the memory's speed, half that for a cold arena; and 0.5 µs for each small tensor.
        """
        odd: list[Place] = []
        tasks = list(_tasks(places, odd))
        if len(tasks) == 1:  # waking a thread and waiting for it would take longer
            self._move(tasks[0])
        else:
            self._threads.run(self._move, tasks)
        on_devices = [place for place in odd if place[0].tensor.is_cuda]
        if on_devices:
            self._moment.copy(on_devices, self._arena)
        for source, (start, stop) in odd:
            if not source.tensor.is_cuda:
                self._make(start, stop)
                source.copy_into(self._memory[start:stop])

    def _move(self, task: "_Task") -> None:
        for stretch in _stretches(task) if self._is_cold else ():
            self._make(*stretch)
        base = self._base
        for address, at, size in task:
            (_held if size <= HELD_COPY_BYTES else stream)(base + at, address, size)

    def _make(self, start: int, stop: int) -> None:
        if self._is_cold:
            self._arena.populate(start, stop)


# --- how ----------------------------------------------------------------------------------------------------------

_held: Final = ctypes.PyDLL(None).memmove
"""Keeps the GIL: letting go of it and fetching it again takes longer than a small copy."""
_held.argtypes = (ctypes.c_void_p, ctypes.c_void_p, ctypes.c_size_t)
_held.restype = None

_Task = list[tuple[int, int, int]]
"""Bytes that lie in C order: their address, where in the arena they go, how many."""


def _tasks(places: Iterable[Place], odd: list[Place]) -> Iterator[_Task]:
    """Tasks of about ``COPY_RUN_BYTES``: small tensors together, large ones in runs.

    Args:
        places: the tensors.
        odd: takes those that torch has to bring into C order, or from their device.
    """
    gathered: _Task = []
    gathered_bytes = 0
    for source, span in places:
        start, stop = span
        size = stop - start
        if not source.address:
            if size:
                odd.append((source, span))
        elif size > COPY_RUN_BYTES:
            yield from _runs(source.address, start, stop)
        else:
            gathered.append((source.address, start, size))
            gathered_bytes += size
            if gathered_bytes >= COPY_RUN_BYTES:
                yield gathered
                gathered, gathered_bytes = [], 0
    if gathered:
        yield gathered


def _stretches(task: _Task) -> Iterator[Span]:
    """Where a task writes. Its tensors may lie far apart, and what lies between may be copied later or not at all."""
    start = stop = task[0][1]
    for _, at, size in task:
        if at - stop >= PAGE_BYTES:
            yield Span(start, stop)
            start = at
        stop = at + size
    yield Span(start, stop)


def _runs(address: int, start: int, stop: int) -> Iterator[_Task]:
    for at in range(start, stop, COPY_RUN_BYTES):
        yield [(address + at - start, at, min(COPY_RUN_BYTES, stop - at))]
