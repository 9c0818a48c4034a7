"""Compiled kernels where they are ready, their NumPy twins where they are not: the same bytes either way.

Compiling takes half a minute, holds the GIL and needs numba, so a process of its own does it, once for a
machine: it leaves their code in a cache, and everybody else loads that. While there is none, the twins serve.

Forks are safe at any moment: a fork waits for a load in progress, and what is loaded has no locks.
"""

import time
from typing import Protocol

from ..forks import loading
from ..limits import KERNEL_LOAD_BYTES, KERNEL_PROBE_SECONDS
from . import cache, reference
from .casting import Numbers
from .estimating import Candidates, Runs
from .mapping import Bytes, Counts, Words


class Kernels(Protocol):
    """What the codec calls; documented at :mod:`store.kernels.reference`."""

    def exponent_keys(self, base: Words, first_bit: int, mask: int, keys: Bytes, counts: Counts) -> None:
        """Group keys from a base."""

    def context_keys(self, codes: Bytes, columns: int, keys: Bytes, counts: Counts) -> None:
        """Group keys from codes of rows and columns."""

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

    def choose(
        self, words: Words, base: Words, word_count: int, runs: Runs, candidates: Candidates, plan: Counts
    ) -> None:
        """A plan for a chunk, from a sample of it."""

    def encode(self, words: Words, base: Words, candidates: Candidates, plan: Counts, out: Bytes) -> int:
        """Chunk to payload, as planned."""

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
        """Payload to chunk, if the kernels can."""

    def stream(self, target_at: int, source_at: int, size_bytes: int) -> None:
        """A copy past the caches."""

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
        """Numbers of one format as another's."""

    def largest(self, words: Words, infinity: int) -> int:
        """The word of the largest magnitude."""


class _Loader:
    """Decides once which kernels this process uses, and until then hands out the twins. Thread-safe."""

    def __init__(self) -> None:
        self.chosen: Kernels | None = None
        self._seen_bytes = 0
        self._next_probe = 0.0
        self._filling = False

    def current(self, work_bytes: int) -> Kernels:
        """The chosen kernels, or the twins; may load the compiled ones first."""
        self._seen_bytes += work_bytes  # a lost update only delays the load
        if self._seen_bytes >= KERNEL_LOAD_BYTES and time.monotonic() >= self._next_probe:
            self.prepare()
        return self.chosen or reference

    def prepare(self) -> None:
        """Load the compiled kernels if they are ready, else see to it that they will be. Never waits."""
        if not loading.acquire_at_once():
            return  # another thread is at it
        try:
            cold = self.chosen is None and not self.load() and not self._filling
            self._next_probe = time.monotonic() + KERNEL_PROBE_SECONDS
        finally:
            loading.release()
        if cold:
            self._filling = True
            cache.fill(wait=False)

    def load(self) -> bool:
        """Load, verify and publish what the cache holds.

        Returns:
            Whether it is settled which kernels are used: not while the cache is cold and can be filled.
        """
        with loading:
            image = None if loading.was_cut_off else cache.read()
            if image is not None:
                self.chosen = _verified(image)
            elif loading.was_cut_off or not cache.can_fill():
                self.chosen = reference
        return self.chosen is not None


def _verified(image: bytes) -> Kernels:
    try:
        from .verifying import verified

        return verified(image)
    except Exception:  # noqa: BLE001 - systems refuse to run code in many ways, and none may cost a save: twins do it
        return reference


_loader = _Loader()


def current(work_bytes: int) -> Kernels:
    """The kernels to use now.

    Args:
        work_bytes: bytes about to be worked on; the compiled kernels are loaded once enough have been.
    """
    return _loader.chosen or _loader.current(work_bytes)


def prepare() -> None:
    """Load the compiled kernels now if they are ready, or have them compiled meanwhile: for a process that will work.

    Cost: 40 ms once, most of them for calling every kernel and its twin; 3 MB.
    """
    _loader.prepare()


def warm() -> bool:
    """Use compiled kernels from now on, and compile them first if need be. For set-up, tests and benchmarks.

    Returns:
        Whether compiled kernels are in use; if not, numba is absent or does not work here.

    Cost: half a minute with a cold cache, 40 ms with a warm one.
    """
    if cache.read() is None and cache.can_fill():
        cache.fill(wait=True)
    if not is_compiled():
        _loader.load()
    return is_compiled()


def is_compiled() -> bool:
    """Whether this process uses compiled kernels now."""
    return _loader.chosen not in (None, reference)
