"""Long tasks that several threads do abreast, and that end soon once nobody waits for them.

``store.parallel`` waits for tasks that have begun: chunks, which take milliseconds. A file may take minutes.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from queue import SimpleQueue
from typing import Final, Generic, TypeVar, cast

T = TypeVar("T")

_END: Final = object()

Proceed = Callable[[], None]
"""Raises :class:`StoppedError` once nobody waits any more."""


class StoppedError(Exception):
    """Nobody waits for what is being done any more."""


@contextmanager
def abreast(tasks: Sequence[T], thread_count: int, act: Callable[[T, Proceed], None]) -> Iterator[Callable[[], None]]:
    """Do something with each of some things, beside what is done meanwhile. At its end nothing is being done any more.

    Args:
        tasks: in the order in which they are begun.
        thread_count: how many to do at once, at most.
        act: does one, and calls what it is given every now and then.

    Yields:
        Waits until all are done, and raises what ``act`` raised first. Once that raises, no other goes on either.
    """
    doing = _Doing(tasks, act)
    try:
        doing.start(min(thread_count, len(tasks)))
        yield doing.wait
    finally:
        doing.end()


class _Doing(Generic[T]):
    """A signal may interrupt who waits between any two steps: so it takes no lock, and is woken through a queue."""

    def __init__(self, tasks: Sequence[T], act: Callable[[T, Proceed], None]) -> None:
        self._waiting = iter(tasks)
        self._act = act
        self._lock = threading.Lock()  # of the threads, which no signal interrupts
        self._is_stopped = False
        self._error: BaseException | None = None
        self._threads: list[threading.Thread] = []
        self._ended_count = 0
        self._ended: SimpleQueue[None] = SimpleQueue()

    def start(self, count: int) -> None:
        """Begin, with so many threads or as many as can be started."""
        with suppress(RuntimeError):  # there are too many, or the interpreter shuts down
            for _ in range(count):
                thread = threading.Thread(target=self._work, name="moonclip-abreast", daemon=True)
                self._threads.append(thread)  # before it runs: an interrupt may come behind any step
                thread.start()

    def wait(self) -> None:
        """Wait until all is done; do it where there is no thread that does. Raises what a task raised first."""
        if not self._started_count:
            self._do_all()
        while self._ended_count < self._started_count:
            self._ended.get()
        if self._error is not None:
            raise self._error

    def end(self) -> None:
        """Have all threads end, whatever interrupts meanwhile: that is raised behind it."""
        self._is_stopped = True
        interrupt: BaseException | None = None
        while self._ended_count < self._started_count:
            try:
                self._ended.get()
            except BaseException as error:  # noqa: BLE001 - raised below
                interrupt = error
        if interrupt is not None:
            raise interrupt

    @property
    def _started_count(self) -> int:
        return sum(thread.ident is not None for thread in self._threads)

    def _work(self) -> None:
        self._do_all()
        with self._lock:
            self._ended_count += 1
        self._ended.put(None)

    def _do_all(self) -> None:
        try:
            while not self._is_stopped:
                with self._lock:
                    task = next(self._waiting, _END)
                if task is _END:
                    return
                self._act(cast("T", task), self._proceed)
        except BaseException as error:  # noqa: BLE001 - carried to who waits, whatever it is
            self._fail(error)

    def _fail(self, error: BaseException) -> None:
        with self._lock:
            if self._error is None and not self._is_stopped:
                self._error = error
            self._is_stopped = True

    def _proceed(self) -> None:
        if self._is_stopped:
            raise StoppedError
