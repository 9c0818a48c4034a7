"""Where the time of a save went.

Phases that compute are counted in CPU seconds of the threads that worked on them, summed; phases that wait, for the
disk above all, in seconds on the clock of the one thread that waited. So the sum is no duration: it is what a save
cost, and what it waited for.
"""

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager


class Phases:
    """Adds up seconds by phase. Thread-safe."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._seconds: dict[str, float] = {}

    @property
    def seconds(self) -> dict[str, float]:
        """Phase to seconds, in the order in which phases were first heard of."""
        with self._lock:
            return dict(self._seconds)

    def add(self, seconds: Mapping[str, float]) -> None:
        """Add seconds, by phase."""
        with self._lock:
            for phase, more in seconds.items():
                self._seconds[phase] = self._seconds.get(phase, 0.0) + more

    @contextmanager
    def computing(self, phase: str) -> Iterator[None]:
        """Count the CPU seconds that this thread spends inside."""
        yield from self._counting(phase, time.thread_time)

    @contextmanager
    def waiting(self, phase: str) -> Iterator[None]:
        """Count the seconds that pass inside."""
        yield from self._counting(phase, time.perf_counter)

    def _counting(self, phase: str, clock: Callable[[], float]) -> Iterator[None]:
        started = clock()
        try:
            yield
        finally:
            self.add({phase: clock() - started})


class Laps:
    """CPU seconds of one thread, whose phases follow one another. For that thread alone."""

    def __init__(self) -> None:
        self.seconds: dict[str, float] = {}
        self._then = time.thread_time()

    def end(self, phase: str) -> None:
        """Count what was spent since the last call, or since the beginning, as ``phase``. Cost: 0.5 µs."""
        now = time.thread_time()
        self.seconds[phase] = self.seconds.get(phase, 0.0) + now - self._then
        self._then = now
