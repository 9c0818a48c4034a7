"""Keeps in-place updates and copying apart: whoever is about to alter captured tensors waits for what is not copied.

Optimizers do so by themselves, through torch's hook ahead of every ``step``. It is one hook for the process, which
knows the guards of all living managers weakly. It goes when the last of them is closed; those that are merely dropped
leave it behind until the next one is closed or made, because taking it away while torch runs its hooks, where the
garbage collector may well run, would break that step.
"""

import os
import threading
import weakref
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, Final

import torch
from torch.optim.optimizer import register_optimizer_step_pre_hook
from torch.utils.hooks import RemovableHandle

from .capturing import Capture


class Guard:
    """Of one manager. Thread-safe. In a forked child it lets everybody pass: nothing is copied there."""

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._lock = threading.RLock()
        self._updates_count = 0
        self._pending: Callable[[], Capture | None] = _nothing
        """Weak: whoever copies holds the capture, and once that is over it may go, with all that it keeps alive."""

    @contextmanager
    def updating(self) -> Iterator[None]:
        """Hold this while altering tensors that may have been captured: all is copied, and no capture begins."""
        if self._pid != os.getpid():
            yield
            return
        with self._lock:
            self.settle()
            self._updates_count += 1
            try:
                yield
            finally:
                self._updates_count -= 1

    @contextmanager
    def capturing(self) -> Iterator[bool]:
        """Hold this from the first look at a state until :meth:`watch`: nobody updates it meanwhile.

        Does not wait: gives whether it is held, which it is not while another thread updates.
        """
        is_ours = False
        try:
            is_ours = self._lock.acquire(blocking=False)
            yield is_ours
        finally:
            if is_ours:
                self._lock.release()

    def wait_for_updates(self) -> None:
        """Wait until no other thread updates. For callers that hold nothing such a thread could be waiting for."""
        with self._lock:
            return

    def watch(self, capture: Capture) -> None:
        """Have updates wait for a capture."""
        self._pending = weakref.ref(capture)

    def settle_inside(self) -> None:
        """Wait for the capture inside :meth:`updating`: whoever captures there is about to go on updating."""
        if self._updates_count:
            self.settle()

    def settle(self) -> None:
        """Wait until nothing is being copied any more. Raises nothing for a capture that failed: its save tells."""
        pending = self._pending()
        if pending is not None and not pending.is_done and self._pid == os.getpid():
            pending.settle()

    def close(self) -> None:
        """Not needed any more: without another one alive, the hook goes. Again does nothing."""
        _hook.alter(without=self)


def _nothing() -> None:
    pass


def guard_of_steps() -> Guard:
    """A guard that optimizers wait for ahead of each step."""
    guard = Guard()
    _hook.alter(also=(weakref.ref(guard),))
    return guard


# --- the hook -----------------------------------------------------------------------------------------------------


class _Hook:
    """Torch's, ahead of each step, while there are guards. Thread-safe.

    A signal handler, too, may make or close a guard, and a fork may come, wherever any of this is: so the lock is
    re-entrant and a child has its own, and what is altered is exchanged as a whole and looked at again afterwards.

    Attributes:
        guards: whom to wait for, weakly; never altered in place.
    """

    def __init__(self) -> None:
        self.guards: tuple[weakref.ref[Guard], ...] = ()
        self._handles: tuple[RemovableHandle, ...] = ()
        self._lock = threading.RLock()
        os.register_at_fork(after_in_child=self._after_fork_in_child)

    def alter(self, *, without: Guard | None = None, also: "tuple[weakref.ref[Guard], ...]" = ()) -> None:
        """Know one guard less or one more, and those that were dropped no longer; and set or remove the hook."""
        with self._lock:
            while True:
                known = self.guards
                altered = (*(one for one in known if one() not in {None, without}), *also)
                if self.guards is known:  # no call from here to the next line, and so no signal
                    self.guards = altered
                    break
            while bool(self.guards) != bool(self._handles):
                if self.guards:
                    self._set()
                else:
                    self._remove()

    def _set(self) -> None:
        # Compiled steps call it as it is: traced, what it looked at once would be taken for granted. Whoever makes an
        # optimizer has imported torch's compiler, so this costs nothing more.
        opaque = torch.compiler.disable(_before_step)  # type: ignore[no-untyped-call] # so torch has it
        handle = register_optimizer_step_pre_hook(opaque)
        self._handles = (*self._handles, handle)

    def _remove(self) -> None:
        removed, self._handles = self._handles, ()
        for handle in removed:
            handle.remove()

    def _after_fork_in_child(self) -> None:
        self._lock = threading.RLock()


def _before_step(optimizer: Any, args: Any, kwargs: Any) -> None:  # noqa: ARG001 - torch's signature
    for known in _hook.guards:
        guard = known()
        if guard is not None:
            guard.settle()


_hook: Final = _Hook()
