"""Compiled kernels where they are ready, their NumPy twins where they are not: the same bytes either way.

Compiling takes half a minute and holds the GIL, so it never happens in a process that encodes: if numba's cache is
cold, a niced helper process fills it and the twins serve until it has. Even reading the cache imports numba (0.3 s):
that is done once there is enough work to pay for it, and never in the main thread.

Forks are safe at any moment: a fork waits for a load in progress, and every kernel has been called before anybody
can see it (a child forked during a first call would wait for a lock that nobody holds).
"""

import importlib.util
import os
import threading
import time
from typing import Protocol

import numpy as np
import numpy.typing as npt

from ..forks import loading
from ..limits import KERNEL_LOAD_BYTES, KERNEL_PROBE_SECONDS
from . import cache, reference
from .reference import Bytes, Counts, Words


class Kernels(Protocol):
    """What the codec calls; documented at :mod:`store.kernels.reference`."""

    def exponent_keys(self, base: Words, first_bit: int, mask: int, keys: Bytes, counts: Counts) -> None:
        """Group keys from a base."""

    def context_keys(self, codes: Bytes, columns: int, keys: Bytes, counts: Counts) -> None:
        """Group keys from codes of rows and columns."""

    def exponent_sums(
        self, words: Words, first_bit: int, mask: int, columns: int, row_sums: Counts, column_sums: Counts
    ) -> None:
        """Sums of exponents by row and by column."""

    def split(
        self,
        words: Words,
        base: Words,
        mapping: int,
        keys: Bytes,
        cursors: Counts,
        grouped_planes: int,
        planes: tuple[Bytes, ...],
    ) -> int:
        """Words to byte planes."""

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
        """Byte planes to words."""

    def order_costs(
        self,
        words: Words,
        base: Words,
        mapping: int,
        keys: Bytes,
        min_weight: int,
        weights: Counts,
        cells: npt.NDArray[np.int32],
        out: Counts,
    ) -> None:
        """Statistics of a sample."""


class _Loader:
    """Decides once which kernels this process uses, and until then hands out the twins. Thread-safe."""

    def __init__(self) -> None:
        self.chosen: Kernels | None = None
        self._seen_bytes = 0
        self._next_probe = 0.0
        self._helper_started = False

    def current(self, work_bytes: int) -> Kernels:
        """The chosen kernels, or the twins; may load the compiled ones first."""
        self._seen_bytes += work_bytes  # a lost update only delays the load
        if self._seen_bytes < KERNEL_LOAD_BYTES or threading.current_thread() is threading.main_thread():
            return reference
        if not loading.acquire_at_once():
            return reference  # another thread is loading
        try:
            start_helper = self._advance()
        finally:
            loading.release()
        if start_helper:
            cache.start_helper()
        return self.chosen or reference

    def _advance(self) -> bool:
        """Load what is ready. Returns whether the helper process should be started."""
        if self.chosen is not None or time.monotonic() < self._next_probe:
            return False
        self._next_probe = time.monotonic() + KERNEL_PROBE_SECONDS
        if loading.was_cut_off or not _can_compile():
            self.chosen = reference
        elif cache.is_warm():
            self.load()
        elif not self._helper_started:
            self._helper_started = True
            return True
        return False

    def load(self) -> None:
        """Import, call and publish the compiled kernels, compiling whatever the cache lacks; twins if that fails."""
        with loading:
            try:
                self.chosen = cache.load()
            except Exception:  # noqa: BLE001 - numba breaks in many ways, and none may cost a save: twins do the same
                self.chosen = reference


_loader = _Loader()


def current(work_bytes: int) -> Kernels:
    """The kernels to use now.

    Args:
        work_bytes: bytes about to be worked on; the compiled kernels are loaded once enough have been.
    """
    return _loader.chosen or _loader.current(work_bytes)


def warm() -> bool:
    """Compile every kernel into the cache, if need be, and use them from now on. For set-up, tests and benchmarks.

    Returns:
        Whether compiled kernels are in use; if not, numba is absent or does not work here.

    Cost: up to a minute with a cold cache, half a second with a warm one.
    """
    if _can_compile():
        _loader.load()
    return is_compiled()


def is_compiled() -> bool:
    """Whether this process uses compiled kernels now."""
    return _loader.chosen not in (None, reference)


def _can_compile() -> bool:
    # Without its compiler numba would run the kernels as plain Python, word by word.
    return importlib.util.find_spec("numba") is not None and not os.environ.get("NUMBA_DISABLE_JIT")
