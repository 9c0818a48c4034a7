"""Worker threads that exist before they are needed.

Executors refuse work once the interpreter shuts down and Python 3.12 refuses new threads then, yet a save queued by
the last line of a script has to be encoded. These threads are daemons, started with the pool; they run until the
process is finalized, which is after exit handlers.
"""

import os
import threading
from collections.abc import Callable, Iterable
from queue import SimpleQueue
from typing import TypeVar

from .errors import MoonclipError

T = TypeVar("T")


def default_thread_count() -> int:
    """CPUs this process may run on."""
    return max(1, len(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else os.cpu_count() or 1)


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
        have are waited for, since they still use what they were given.

        Raises:
            MoonclipError: the threads are closed.
            BaseException: the first error that a task raised, as it was; or what interrupted the wait. No task is
                running by then.
        """
        if self._is_closed:
            raise MoonclipError("these threads are closed, and so is the store they belong to; open it again")
        if self._pid != os.getpid():
            self._start()
        batch = _Batch(function, list(tasks))
        try:
            for _ in range(min(self._count, batch.task_count)):
                self._tasks.put(batch.work)
            batch.wait()
        except BaseException:
            batch.stop()  # nobody may touch what the caller is about to give up
            raise

    def close(self) -> None:
        """End the threads once they are idle; nothing can be run from now on."""
        self._is_closed = True
        for _ in range(self._count if self._pid == os.getpid() else 0):
            self._tasks.put(None)


def _work(tasks: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # a batch holds buffers: an idle thread must not keep them alive


class _Batch:
    """Tasks of one ``run``: each worker takes the next one until none is left, or one has failed."""

    def __init__(self, function: Callable[[T], None], tasks: list[T]) -> None:
        self.task_count = len(tasks)
        self._function: Callable[..., None] = function
        self._next = iter(tasks)
        self._changed = threading.Condition()
        self._is_over = not tasks
        self._active_count = 0
        self._error: BaseException | None = None

    def work(self) -> None:
        while (task := self._take()) is not _END:
            try:
                self._function(task)
            except BaseException as error:  # noqa: BLE001 - carried to the caller of run, whatever it is
                self._fail(error)
            finally:
                self._put_back()

    def wait(self) -> None:
        """Wait until all tasks are done, or one has failed and the others that had begun are done."""
        self._settle()
        if self._error is not None:
            raise self._error

    def stop(self) -> None:
        """Begin no more tasks, and wait for those that have begun."""
        with self._changed:
            self._is_over = True
        self._settle()

    def _settle(self) -> None:
        with self._changed:
            self._changed.wait_for(lambda: self._is_over and self._active_count == 0)

    def _take(self) -> object:
        with self._changed:
            task = _END if self._is_over else next(self._next, _END)
            if task is _END:
                self._is_over = True
                self._changed.notify_all()
            else:
                self._active_count += 1
            return task

    def _put_back(self) -> None:
        with self._changed:
            self._active_count -= 1
            self._changed.notify_all()

    def _fail(self, error: BaseException) -> None:
        with self._changed:
            self._is_over = True
            self._error = self._error or error


_END = object()
