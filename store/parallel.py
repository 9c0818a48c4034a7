"""Worker threads that exist before they are needed.

Executors refuse work once the interpreter shuts down and Python 3.12 refuses new threads then, yet a save queued by
the last line of a script has to be encoded. These threads are daemons, started with the pool; they run until the
process is finalized, which is after exit handlers.
"""

import os
import threading
from collections.abc import Callable, Iterable
from pathlib import Path
from queue import SimpleQueue
from typing import Final, TypeVar

from .errors import Incompatible, MoonclipError
from .limits import MAX_THREADS

T = TypeVar("T")


_QUOTA: Final = Path("/sys/fs/cgroup/cpu.max")
"""What a container may use of its CPUs: microseconds of them, in so many microseconds."""


def default_thread_count() -> int:
    """Threads to work with: as many as ``MOONCLIP_THREADS`` says, else this process's share of the CPUs.

    The share is that of one of ``LOCAL_WORLD_SIZE`` processes, which launchers set, and at least one thread.

    Raises:
        Incompatible: ``MOONCLIP_THREADS`` says no number of threads.
    """
    told = os.environ.get("MOONCLIP_THREADS", "")
    if not told:
        return max(1, _cpu_count() // (_count_in(os.environ.get("LOCAL_WORLD_SIZE", "")) or 1))
    count = _count_in(told)
    if not 0 < count <= MAX_THREADS:
        raise Incompatible(f"MOONCLIP_THREADS is {told!r}; it must be a number from 1 to {MAX_THREADS}, or not be set")
    return count


def _cpu_count() -> int:
    """CPUs that this process may run on, no more than its container's quota is worth."""
    cpu_count = len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1
    try:
        quota, period = _QUOTA.read_text(encoding="ascii").split()
    except (OSError, ValueError):  # another system, or another kind of cgroup
        return cpu_count
    return min(cpu_count, _count_in(quota) // (_count_in(period) or 1) or 1) if _count_in(quota) else cpu_count


def _count_in(text: str) -> int:
    """The positive number that a text is, or 0."""
    return int(text) if text.isascii() and text.isdigit() else 0


class Threads:
    """A fixed set of daemon threads that run batches of tasks.

    Thread-safe. A forked child has no threads: a pool that finds itself in one starts its own.

    Args:
        count: number of threads; the caller of :meth:`run` waits, it does not work.
    """

    def __init__(self, count: int) -> None:
        self._count = max(1, count)
        self._is_closed = False
        self._start()

    def _start(self) -> None:
        self._pid = os.getpid()
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        for number in range(self._count):
            threading.Thread(target=_work, args=(self._tasks,), name=f"moonclip-{number}", daemon=True).start()

    @property
    def count(self) -> int:
        """Number of threads."""
        return self._count

    def run(self, function: Callable[[T], None], tasks: Iterable[T]) -> None:
        """Call ``function`` on every task, in the threads, and wait for all.

        After a failure, or when the wait is interrupted, the tasks that have not started are skipped; those that
        have are waited for, since they still use what they were given. A task that itself runs tasks in these threads
        does them one after the other: all threads may be waiting for such.

        Raises:
            MoonclipError: the threads are closed.
            BaseException: the first error that a task raised, as it was; or what interrupted the wait. No task is
                running by then.
        """
        if self._is_closed:
            raise MoonclipError("these threads are closed, and so is the store they belong to; open it again")
        if self._pid != os.getpid():
            self._start()
        if getattr(_thread, "tasks", None) is self._tasks:
            for task in tasks:
                function(task)
            return
        batch = _Batch(function, list(tasks))
        try:
            for _ in range(min(self._count, batch.task_count)):
                self._tasks.put(batch.work)
            batch.wait()
        except BaseException:
            batch.end(self._tasks)  # nobody may touch what the caller is about to give up
            raise
        batch.raise_error()

    def close(self) -> None:
        """End the threads once they are idle; nothing can be run from now on."""
        self._is_closed = True
        for _ in range(self._count if self._pid == os.getpid() else 0):
            self._tasks.put(None)


_thread = threading.local()
"""``tasks``: the queue that this thread works for."""


def _work(tasks: "SimpleQueue[Callable[[], None] | None]") -> None:
    _thread.tasks = tasks
    while (task := tasks.get()) is not None:
        task()
        del task  # a batch holds buffers: an idle thread must not keep them alive


class _Batch:
    """Tasks of one ``run``: each thread takes the next one until none is left, or one has failed.

    A signal handler may raise between any two steps of the caller, also just after it took a lock and before it knows
    that it has: so the caller takes none. It sets a flag and reads another, and is woken through a queue.
    """

    def __init__(self, function: Callable[[T], None], tasks: list[T]) -> None:
        self.task_count = len(tasks)
        self._function: Callable[..., None] = function
        self._next = iter(tasks)
        self._lock = threading.Lock()  # of the threads, which no signal interrupts
        self._active_count = 0
        self._error: BaseException | None = None
        self._is_stopped = False
        self._is_settled = not tasks
        self._settled: SimpleQueue[None] = SimpleQueue()

    def work(self) -> None:
        """Run tasks until there are no more; for the threads."""
        while (task := self._take()) is not _END:
            try:
                self._function(task)
            except BaseException as error:  # noqa: BLE001 - carried to the caller of run, whatever it is
                self._error = self._error or error
                self._is_stopped = True
            finally:
                del task
                self._put_back()

    def wait(self) -> None:
        """Wait until no task is running and none will be begun."""
        while not self._is_settled:  # what wakes may be lost when a signal comes; that it is settled is not
            self._settled.get()

    def end(self, threads: "SimpleQueue[Callable[[], None] | None]") -> None:
        """Begin no more tasks and wait for those that run, whatever interrupts: they have an end.

        Args:
            threads: where the threads get their work. Perhaps none had got this batch yet, and one at least has to see
                that it is over.
        """
        while True:
            try:
                self._is_stopped = True
                threads.put(self.work)
                return self.wait()
            except BaseException:  # noqa: BLE001, S112 - the first one is about to be raised
                continue

    def raise_error(self) -> None:
        """Raise what a task raised first, if one did."""
        if self._error is not None:
            raise self._error

    def _take(self) -> object:
        with self._lock:
            task = _END if self._is_stopped else next(self._next, _END)
            if task is not _END:
                self._active_count += 1
            elif self._active_count == 0:
                self._is_settled = True
                self._settled.put(None)
            return task

    def _put_back(self) -> None:
        with self._lock:
            self._active_count -= 1


_END = object()
