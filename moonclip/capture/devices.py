"""Copies from CUDA devices: into pinned arenas, on streams of their own.

Nothing else here knows CUDA. No test covers it: the machines that this is built on have no such device.
"""

import ctypes
import weakref
from collections.abc import Iterable
from typing import Any, Final

import torch

from store.saving.arenas import Arena
from store.saving.inputs import Span

from ..state.tensors import TensorSource, words_of

_PORTABLE: Final = 1
"""``cudaHostRegisterPortable``: pinned for all devices."""

_pinned: Final[set[int]] = set()
"""Numbers of the arenas whose pages are pinned."""


class Moment:
    """What the caller had queued on its streams: others wait for that, and for nothing that is queued later.

    Made in the caller's thread, since a stream is current for one thread.

    Args:
        sources: tensors whose devices it is about.
    """

    def __init__(self, sources: Iterable[TensorSource]) -> None:
        devices = {source.tensor.device for source in sources if not source.address and source.tensor.is_cuda}
        self._events = {device: torch.cuda.current_stream(device).record_event() for device in devices}

    def wait(self) -> None:
        """Wait until the devices have got there: what other threads do with them does not queue behind it.

        Raises:
            RuntimeError: a device failed.
        """
        for event in self._events.values():
            event.synchronize()

    def copy(self, places: Iterable[tuple[TensorSource, Span]], arena: Arena) -> None:
        """Copy tensors from their devices; returns once that is done, so that they may be altered.

        Args:
            places: tensors on CUDA devices, and where they go. Whoever calls keeps them alive until this returns.
            arena: is pinned, and written.

        Raises:
            RuntimeError: a device failed.
        """
        _pin(arena)
        streams = {device: _new_stream(device) for device in self._events}
        for device, stream in streams.items():
            stream.wait_event(self._events[device])
        for source, (start, stop) in places:
            with torch.cuda.stream(streams[source.tensor.device]):
                words = words_of(source.tensor)
                out = torch.frombuffer(arena.memory[start:stop], dtype=words.dtype).view(source.shape)
                out.copy_(words, non_blocking=True)
        for stream in streams.values():
            stream.synchronize()


def _new_stream(device: torch.device) -> torch.cuda.Stream:
    return torch.cuda.Stream(device)  # type: ignore[no-untyped-call] # torch's annotations are incomplete


def _cudart() -> Any:
    return torch.cuda.cudart()  # type: ignore[no-untyped-call] # likewise


def _pin(arena: Arena) -> None:
    """Pin an arena's pages. Where the driver refuses, copies take the slower way through its own buffers."""
    if arena.number in _pinned:
        return
    address = ctypes.addressof(ctypes.c_ubyte.from_buffer(arena.memory))
    if _cudart().cudaHostRegister(address, arena.size_bytes, _PORTABLE) == 0:
        _pinned.add(arena.number)
        # Bound to the array that the memory is a view of: it goes before its pages do.
        weakref.finalize(arena.memory.obj, _unpin, arena.number, address).atexit = False


def _unpin(number: int, address: int) -> None:
    _pinned.discard(number)
    _cudart().cudaHostUnregister(address)
