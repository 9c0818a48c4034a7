"""Host memory that a state is copied into: before ``save`` returns, or partly while the next step computes.

Two arenas alternate: while one is written to the store, and until the next save has been compared with it, its bytes
must stay as they are; the next state goes into the other. So the last save's bytes are the next one's delta bases
without a read or a further copy, and memory is bounded by two arenas. Where only one fits, it is written anew each
time.
"""

import os
import weakref
from collections.abc import Collection, Iterable, Iterator, Mapping
from contextlib import suppress
from functools import partial
from typing import Any, Final

import torch

from store.limits import HELD_COPY_BYTES, MIB
from store.parallel import Threads
from store.saving.arenas import Arena
from store.saving.inputs import ContainerInput, Input, ItemInput, Span, TensorInput, UnchangedInput, ValueInput

from ..state.entries import FlatEntry, FlatState, FlatTensor, FlatValue
from ..state.tensors import TensorSource
from .budget import fits_beside
from .capturing import Capture
from .copying import Copier, Place
from .guard import Guard, guard_of_steps
from .overlap import copy_behind, name_at, state_changed
from .owned import Owned, by_address, owned, owner_of
from .prefault import Pages
from .unmodified import Mark, Name, mark, marks, unmodified
from .witness import Watched

_ALIGNMENT_BYTES: Final = 64
"""Every tensor starts at a multiple: a cache line, and more than any element needs."""

_HEADROOM: Final = 16
"""An arena is made a sixteenth larger than its first state, so that one that grows a little needs no new one. Pages
that are not written take no memory."""


class Staging:
    """The two arenas. Not thread-safe: one capture at a time, and only once the save before it has ended.

    Args:
        threads: do the copying.
        overlap: whether parameters and optimizer state are copied while training goes on.
        max_bytes: bound of the arenas and the worker together; none if ``None``.
        skip_unmodified: whether frozen parameters that seem to be as they were are only called unchanged.

    Attributes:
        guard: what in-place updates wait for.
    """

    def __init__(
        self, threads: Threads, *, overlap: bool = False, max_bytes: int | None = None, skip_unmodified: bool = False
    ) -> None:
        self._pid = os.getpid()
        self._threads = threads
        self._overlaps = overlap
        self._max_bytes = max_bytes
        self._skips = skip_unmodified
        self._marks: dict[Name, Mark] = {}
        """What frozen parameters were like at the last capture."""
        self._pages = Pages()
        self._arenas: tuple[Arena | None, Arena | None] = (None, None)
        """The one that is written next, and the last save's: one attribute, so that no interrupt finds half a swap."""
        self.guard = guard_of_steps() if overlap else Guard()

    def capture(
        self,
        states: Mapping[str, FlatState],
        items: Collection[Any] = (),
        *,
        is_last_committed: bool = False,
        lent: Collection[str] = (),
    ) -> Capture:
        """Copy every tensor. A tensor with two names in an item is copied once.

        Args:
            states: by item name.
            items: the objects they are the states of. With ``overlap``, parameters of modules and state of optimizers
                among them are still being copied when this returns; without, the capture is done.
            is_last_committed: whether the last capture was committed, and whoever stores this one knows it.
            lent: names of items that nobody alters until they are stored: they, too, are being copied when this
                returns.

        Raises:
            NoRoom: the state exceeds ``max_bytes``. Nothing was copied.
            MemoryError: there is no room for it in the machine.
            RuntimeError: a tensor could not be read from its device.

        Cost: one pass over the state, on all threads, without the GIL.
        """
        self.guard.settle()  # only one that an interrupt hid from its caller can still be under way
        places, size_bytes = _places(states)
        arena, last = self._reserve(size_bytes)
        copier = Copier(places, arena, self._threads, is_cold=self._pages.made_bytes(arena) < size_bytes)
        skipped = self._skipped(states, items, can_skip=is_last_committed and last is not None)
        capture = Capture(_inputs(states, places, skipped), arena, keeps_last=last is not None)
        later = self._later(states, items, lent, places, skipped)
        if skipped:
            # Weakly: a capture that held itself would keep the state alive until garbage is collected.
            capture.fill = partial(_fill, weakref.ref(capture), states, places, skipped, copier)

        note_pages = self._pages.set_reached if skipped else self._pages.set_made

        def end(is_whole: bool) -> None:  # noqa: FBT001 - called by position
            note_pages(arena, size_bytes)
            self._arenas = (last, arena) if is_whole else (arena, last)
            self._expect_next(size_bytes)

        copier.copy(_without(places, {one.source for one in later} | skipped.keys()))
        if later:
            self.guard.watch(capture)
            copy_behind(capture, copier, later, end)
            self.guard.settle_inside()
        else:
            end(is_whole=True)
            capture.finish()
        return capture

    def _later(
        self,
        states: Mapping[str, FlatState],
        items: Collection[Any],
        lent: Collection[str],
        places: Mapping[TensorSource, Span],
        skipped: Collection[TensorSource],
    ) -> list[Watched]:
        """What is copied while training goes on."""
        known = owned(items) if self._overlaps else {}
        if lent:
            known = {**known, **by_address(_tensors_of(states[item] for item in lent if item in states))}
        return _deferred(places, known, skipped) if known else []

    def _skipped(
        self, states: Mapping[str, FlatState], items: Collection[Any], *, can_skip: bool
    ) -> dict[TensorSource, Mark]:
        """Frozen parameters that are as they were in the last capture. From now on this one is the last."""
        if not self._skips:
            return {}
        now = marks(states, items)
        last, self._marks = self._marks, {name: mark for name, (_, mark) in now.items()}
        return unmodified(now, last) if can_skip else {}

    @property
    def skips(self) -> bool:
        """Whether frozen parameters are skipped."""
        return self._skips

    def expect(self, states: Mapping[str, FlatState], *, at_once: bool) -> None:
        """Get ready for states like these: make the arenas, unless there are some already, and their pages.

        Does nothing in a forked child, which saves nothing.

        Args:
            states: by item name.
            at_once: have the pages when this returns, and not some time later; also those of arenas that there were, or
                of new ones if the state has outgrown them.

        Raises:
            NoRoom: such a state exceeds ``max_bytes``.
            MemoryError: there is no address space for it; with ``at_once``, or no memory.
        """
        _, size_bytes = _places(states)
        has_two = fits_beside(size_bytes, size_bytes, self._max_bytes)
        if self._pid != os.getpid():
            return
        is_first = self._arenas == (None, None)
        if is_first:
            arenas = [_new_arena(size_bytes) for _ in range(2 if has_two else 1)]
            self._arenas = (arenas[0], arenas[1] if has_two else None)
        elif at_once:
            self._arenas = self._reserve(size_bytes)
        spare, last = self._arenas
        known = [arena for arena in (spare, last if has_two else None) if arena and arena.size_bytes >= size_bytes]
        if is_first and not at_once:
            self._pages.make_ahead(known, size_bytes)
        if at_once:
            self._arenas = (None, None if is_first else last)  # if there is no memory, what there was of it goes back
            self._pages.make(known, size_bytes, self._threads)
            self._arenas = (spare, last)

    def close(self) -> None:
        """Give the arenas up, once no capture is under way and no save needs them; again does nothing."""
        self._arenas = (None, None)

    def _expect_next(self, size_bytes: int) -> None:
        """After the first capture: get the second arena ready. Where there is none to be had, the next save says so."""
        spare, last = self._arenas
        if spare is None and last is not None and fits_beside(size_bytes, size_bytes, self._max_bytes):
            with suppress(MemoryError, OSError):
                spare = _new_arena(size_bytes)
                self._arenas = (spare, last)
                self._pages.make_ahead([spare], size_bytes)

    def _reserve(self, size_bytes: int) -> tuple[Arena, Arena | None]:
        """The arena to write, and the one that holds the last save if there is room for both."""
        spare, last = self._arenas
        if not fits_beside(self._reached_bytes(last), size_bytes, self._max_bytes):
            spare, last = last, None
        # Given back only by a whole capture: threads that an interrupt did not stop go on writing into it.
        self._arenas = (None, last)
        if spare is None or not self._suits(spare, last, size_bytes):
            spare = None  # before, not after: old and new together could be too much
            spare = _new_arena(size_bytes)
        return spare, last

    def _suits(self, arena: Arena, last: Arena | None, size_bytes: int) -> bool:
        """Whether a state fits into an arena, and does not leave most of it unused."""
        taken_bytes = self._reached_bytes(arena)
        if not arena.is_intact:  # somebody closed its descriptor: it cannot be handed to a worker any more
            return False
        fits = size_bytes <= arena.size_bytes and taken_bytes <= 2 * size_bytes + MIB
        return fits and fits_beside(self._reached_bytes(last), max(size_bytes, taken_bytes), self._max_bytes)

    def _reached_bytes(self, arena: Arena | None) -> int:
        return 0 if arena is None else self._pages.reached_bytes(arena)


def _new_arena(size_bytes: int) -> Arena:
    return Arena.make(size_bytes + size_bytes // _HEADROOM)


# --- what is captured ---------------------------------------------------------------------------------------------


def _places(states: Mapping[str, FlatState]) -> tuple[dict[TensorSource, Span], int]:
    """Where every tensor goes, each once, in the order in which they are met; and how much room that takes."""
    places: dict[TensorSource, Span] = {}
    end = 0
    for state in states.values():
        for entry in state.entries.values():
            if type(entry) is FlatTensor and entry.source not in places:
                size_bytes = entry.source.size_bytes
                places[entry.source] = Span(end, end + size_bytes)
                end += -(-size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
    return places, end


def _tensors_of(states: Iterable[FlatState]) -> Iterator[torch.Tensor]:
    for state in states:
        for entry in state.entries.values():
            if isinstance(entry, FlatTensor):
                yield entry.source.whole


def _deferred(places: Mapping[TensorSource, Span], known: Owned, skipped: Collection[TensorSource]) -> list[Watched]:
    """Tensors that only a step alters, and that take longer to copy than to watch."""
    return [
        Watched(source, owner, span, source.tensor.untyped_storage())
        for source, span in places.items()
        if source.size_bytes > HELD_COPY_BYTES
        and (owner := owner_of(source.whole, known)) is not None
        and source not in skipped
    ]


def _without(places: Mapping[TensorSource, Span], others: Collection[TensorSource]) -> Iterable[Place]:
    return [place for place in places.items() if place[0] not in others] if others else places.items()


def _fill(
    known_capture: "weakref.ref[Capture]",
    states: Mapping[str, FlatState],
    places: Mapping[TensorSource, Span],
    skipped: Mapping[TensorSource, Mark],
    copier: Copier,
) -> None:
    """Copy what was skipped, after all. It may be later by now: so whether it is still the same is asked once more."""
    copier.copy([(source, places[source]) for source in skipped])
    for source, known in skipped.items():
        if (owner := known.owner()) is None or not mark(source, owner).is_of_same(known):
            raise state_changed(name_at(_inputs(states, places, ()), places[source]))
    capture = known_capture()
    assert capture is not None  # whoever calls this has it
    capture.items = _inputs(states, places, ())
    capture.fill = None


def _inputs(
    states: Mapping[str, FlatState], places: Mapping[TensorSource, Span], skipped: Collection[TensorSource]
) -> tuple[ItemInput, ...]:
    return tuple(
        ItemInput(item, {name: _input(entry, places, skipped) for name, entry in state.entries.items()}, state.ties)
        for item, state in states.items()
    )


def _input(entry: FlatEntry, places: Mapping[TensorSource, Span], skipped: Collection[TensorSource]) -> Input:
    if isinstance(entry, FlatTensor):
        source = entry.source
        if source in skipped:
            return UnchangedInput(entry.position, source.dtype, source.shape, source.stored, source.by_row)
        span = places[source]
        return TensorInput(entry.position, source.dtype, source.shape, span, source.stored, source.by_row)
    if isinstance(entry, FlatValue):
        return ValueInput(entry.position, entry.value)
    return ContainerInput(entry.position, entry.container, entry.info)
