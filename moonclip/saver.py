"""Background saves: one thread that exists from the start, a bounded queue, and no save lost in silence.

The thread is a daemon that is started with its saver: executors refuse work once the interpreter shuts down, and
Python 3.12 refuses new threads then, yet the save that a script's last line queued must still be written. An exit
handler waits for it; a save that is lost all the same is told on stderr and in the exit code.
"""

import atexit
import logging
import os
import sys
import threading
from collections import deque
from collections.abc import Callable
from concurrent.futures import Future
from dataclasses import dataclass
from queue import SimpleQueue

from store.errors import MoonclipError, SaveFailed

_log = logging.getLogger("moonclip")


@dataclass(frozen=True, slots=True)
class _Job:
    work: Callable[[], str]
    step: int | None
    future: Future[str]


class SaveThread:
    """Runs one save after another in a thread of its own.

    Thread-safe. It belongs to the process that made it: a forked child has its memory, but not its thread.
    """

    def __init__(self) -> None:
        self._pid = os.getpid()
        self._pending: deque[_Job] = deque()  # the first of them is the one under way
        self._wakeups: SimpleQueue[Callable[[], None] | None] = SimpleQueue()
        self._changed = threading.Condition()
        self._is_stopped = False
        self._is_drained = False
        self._failures: list[SaveFailed] = []
        self._thread = threading.Thread(target=self._loop, name="moonclip-saver", daemon=True)
        self._thread.start()
        _drain_at_exit(self)

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child of the process that made the saver."""
        return self._pid != os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this very thread: in a callback of a Future."""
        return threading.current_thread() is self._thread

    def submit(self, work: Callable[[], str], step: int | None) -> Future[str]:
        """Hand a save over. Callers bound the queue: they :meth:`wait` before they prepare the next one.

        Args:
            work: makes the save, returns the commit's hex id.
            step: named if it fails.

        Returns:
            What ``work`` returns, or :class:`SaveFailed` from what it raised. It cannot be cancelled.

        Raises:
            MoonclipError: the thread was told to end.
        """
        future: Future[str] = Future()
        future.set_running_or_notify_cancel()
        if self._is_drained:
            return _run_at_the_end(_Job(work, step, future))
        if self._is_stopped:
            raise MoonclipError("no save can be handed over any more: the saving thread was told to end")
        # One step: before it an interrupt finds nothing handed over, after it a save that the next waking starts.
        self._pending.append(_Job(work, step, future))
        self._wakeups.put(None)
        return future

    def wait(self) -> None:
        """Wait until every save that was handed over has ended. Raises nothing for those that failed.

        A forked child waits for nothing: those saves are its parent's. Nor does a Future's callback, which runs
        in the very thread it would wait for.
        """
        if self.is_foreign or self.is_current:
            return
        self._wakeups.put(None)  # for a save whose handing over was interrupted before it woke the thread
        with self._changed:
            self._changed.wait_for(lambda: not self._pending)

    def take_failure(self) -> SaveFailed | None:
        """The oldest failure that nobody was told of; from now on it counts as told."""
        if self.is_foreign:
            return None
        with self._changed:
            return self._failures.pop(0) if self._failures else None

    def stop(self, after: Callable[[], None]) -> None:
        """Have the thread end once all is written, and call ``after`` then. Does not wait, takes no lock.

        This is all a garbage collector may do: it can run in any thread, in the middle of anything.
        """
        self._is_stopped = True
        if not self.is_foreign:
            self._wakeups.put(after)

    def close(self) -> None:
        """Wait for all saves, then end the thread."""
        if self.is_foreign or not self._thread.is_alive():
            return
        self.wait()
        self.stop(_nothing)
        if not self.is_current:
            self._thread.join()

    def drain(self) -> list[str]:
        """Wait for all saves and end the thread, as the last act of the process.

        The thread must be gone when the interpreter goes: one that is just freeing tensors then aborts the process.
        What other exit handlers save after this is written at once, in their own time.

        Returns:
            One line for each save that is lost and that nobody was told of.
        """
        if self.is_foreign:
            return []
        try:
            self.close()
            self._is_drained = True
        except BaseException as error:  # noqa: BLE001 - an impatient second Ctrl-C; a save is lost whatever it was
            return [f"waiting for the last save was cut short by {type(error).__name__}: it is lost"]
        return [str(failure) for failure in self._failures]

    def _run_first(self) -> None:
        try:
            self._run(self._pending[0])
        except BaseException:  # noqa: BLE001 - a callback may exit or interrupt; the next save needs this thread
            _log.exception("a callback of a save's Future ended with an error")
        finally:
            with self._changed:  # only now: who has waited finds the Future done
                self._pending.popleft()
                self._changed.notify_all()

    def _run(self, job: _Job) -> None:
        try:
            commit = job.work()
        except BaseException as error:  # noqa: BLE001 - whatever ends a save belongs to its Future; the thread lives on
            failure = _failure(job.step, error)
            self._failures.append(failure)
            job.future.set_exception(failure)
        else:
            job.future.set_result(commit)

    def _loop(self) -> None:
        after = None
        while after is None:
            after = self._wakeups.get()
            while self._pending:
                self._run_first()
        after()
        if not self._failures:  # else the exit handler still has something to tell
            _save_threads.discard(self)


def _nothing() -> None:
    pass


def _failure(step: int | None, error: BaseException) -> SaveFailed:
    what = "a save without a step" if step is None else f"the save of step {step}"
    reason = str(error) if isinstance(error, MoonclipError) else f"{type(error).__name__}: {error}"
    failure = SaveFailed(f"{what} failed: {reason}", step=step)
    failure.__cause__ = error
    return failure


# --- the end of the process ---------------------------------------------------------------------------------------

_save_threads: set[SaveThread] = set()


def _drain_at_exit(saves: SaveThread) -> None:
    """Have ``saves`` drained at exit.

    Registered anew each time: exit handlers run last in, first out, and this one needs whatever the modules that
    were imported since would tear down.
    """
    _save_threads.add(saves)
    atexit.unregister(_drain_all)
    atexit.register(_drain_all)


def _run_at_the_end(job: _Job) -> Future[str]:
    """A save that another exit handler asked for after the drain."""
    try:
        job.future.set_result(job.work())
    except BaseException as error:  # noqa: BLE001 - nobody will be there to be told later
        _give_up([str(_failure(job.step, error))])
    return job.future


def _drain_all() -> None:
    lost = [line for saves in list(_save_threads) for line in saves.drain()]
    if lost:
        _give_up(lost)


def _give_up(lost: list[str]) -> None:
    for line in lost:
        print(f"moonclip: {line}; it was not committed", file=sys.stderr)
    sys.stdout.flush()
    sys.stderr.flush()
    os._exit(1)  # an exception in an exit handler would leave the exit code 0
