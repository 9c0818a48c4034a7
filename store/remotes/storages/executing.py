"""Threads for uploads that work to the end: those of ``concurrent.futures`` refuse to once the interpreter ends.

The last push of a run may come from an exit handler.
"""

import threading
from collections.abc import Callable
from concurrent.futures import Future
from functools import partial
from queue import SimpleQueue
from typing import Any


class DaemonExecutor:
    """What s3transfer and a push need of an executor, on daemon threads, which run until the process is finalized.

    Args:
        max_workers: how many threads. Where none can be started any more, whoever submits a task runs it.
    """

    def __init__(self, max_workers: int) -> None:
        self._tasks: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._threads: list[threading.Thread] = []
        for _ in range(max_workers):
            thread = threading.Thread(target=_work, args=(self._tasks,), name="moonclip-transfer", daemon=True)
            try:
                thread.start()
            except RuntimeError:  # the interpreter is ending
                break
            self._threads.append(thread)

    def submit(self, function: Callable[..., Any], *arguments: Any, **named: Any) -> "Future[Any]":
        """Have a function called."""
        future: Future[Any] = Future()
        task = partial(_run, future, function, arguments, named)
        if self._threads:
            self._tasks.put(task)
        else:
            task()
        return future

    def shutdown(self, wait: bool = True) -> None:  # noqa: FBT001, FBT002 - as s3transfer calls it
        """End the threads once all tasks are done."""
        for _ in self._threads:
            self._tasks.put(None)
        for thread in self._threads if wait else ():
            thread.join()
        self._threads = []


def _work(tasks: "SimpleQueue[Callable[[], None] | None]") -> None:
    while (task := tasks.get()) is not None:
        task()
        del task  # it holds a part: an idle thread must not keep it alive


def _run(
    future: "Future[Any]", function: Callable[..., Any], arguments: tuple[Any, ...], named: dict[str, Any]
) -> None:
    if not future.set_running_or_notify_cancel():
        return
    try:
        result = function(*arguments, **named)
    except BaseException as error:  # noqa: BLE001 - carried to whoever asks for the result
        future.set_exception(error)
    else:
        future.set_result(result)
