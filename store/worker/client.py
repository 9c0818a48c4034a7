"""The trainer's side of the worker: a thread that hands saves over, one after another, and hears what becomes of them.

The thread is a daemon that is started with its client: executors refuse work once the interpreter shuts down, and
Python 3.12 refuses new threads then, yet the save that a script's last line queued must still be written.
"""

import logging
import os
import threading
from collections import deque
from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext, suppress
from queue import Empty, SimpleQueue
from subprocess import SubprocessError
from typing import Final, Protocol

from .. import kernels
from ..disk.locks import FileLock
from ..errors import Busy, MoonclipError, WorkerEnded
from ..limits import WORKER_STARTS
from ..repository import Repository
from ..saving.arenas import Arena
from ..saving.publish import Approve
from ..saving.underway import announced
from .committing import Committer
from .messages import Order, Outcome
from .process import WorkerProcess
from .pushes import Pushes

_log = logging.getLogger("store")

_LOOK_SECONDS: Final = 0.5
"""How often an idle worker is heard: what it logs, and whether it is there."""

_PUSH_LOOK_SECONDS: Final = 0.05
"""The same while it pushes: somebody may wait for that."""


class Job(Protocol):
    """A save, as whoever asks for it knows it. Its methods are called in the client's thread."""

    def order(self) -> tuple[Order, Arena]:
        """Wait until the state is captured; what to save, and the arena it lies in. Raises what ended the capture."""
        ...

    def given(self) -> None:
        """Hear that a worker has it, and makes it even if this process is killed; or that none can be started."""
        ...

    def settle(self, outcome: Outcome) -> None:
        """Hear what became of it. It may not have been given to a worker."""
        ...


class Client:
    """Has saves made by a worker process; without one, in this process, where it cannot be started.

    Thread-safe. It belongs to the process that made it: a forked child has its memory, but not its thread.

    Args:
        repo: the store, as it is opened here.
        pushes: pushes of what is saved; ``None`` if there are none.
        approve: called in the client's thread with each commit, once it is durable and before anybody sees it; what it
            raises ends the save. ``None`` if nobody is asked.

    Raises:
        RuntimeError: there is no thread to be had.
    """

    def __init__(self, repo: Repository, pushes: Pushes | None = None, approve: Approve | None = None) -> None:
        self._pid = os.getpid()
        self._pushes = pushes
        self._approve = approve
        self._repo = repo
        self._here = Committer(repo)
        self._pending: deque[Job] = deque()  # the first of them is the one under way
        self._lock = threading.RLock()  # entered by itself: no interrupt comes between its taking and the block
        self._changed = threading.Condition(self._lock)
        self._wakings: SimpleQueue[None] = (
            SimpleQueue()
        )  # in an interrupt, too, one may put something in, and only here
        self._after: Callable[[], None] | None = None
        self._failed_starts = 0
        self._is_drained = False
        self._worker = self._started()
        self._thread = threading.Thread(target=self._loop, name="moonclip-client", daemon=True)
        try:
            self._thread.start()
        except RuntimeError:  # there is none to be had, or the interpreter is shutting down
            if self._worker is not None:
                self._worker.close()
            raise

    @property
    def is_foreign(self) -> bool:
        """Whether this is a forked child of the process that made the client."""
        return self._pid != os.getpid()

    @property
    def is_current(self) -> bool:
        """Whether the caller runs in this very thread: in a callback of a Future."""
        return threading.current_thread() is self._thread

    @property
    def is_drained(self) -> bool:
        """Whether the process is ending: saves are made at once, in their caller's time."""
        return self._is_drained

    def submit(self, job: Job) -> None:
        """Have a save made. Callers bound the queue: they :meth:`wait` before they capture the next one.

        Returns at once, before a worker has it, see :meth:`Job.given`; where there can be no worker, when it is made.

        Raises:
            MoonclipError: the client was told to end.
        """
        if self._is_drained or self._failed_starts >= WORKER_STARTS:
            job.settle(self._made_here(job))
            self._here.tidier.prune()
            self._push_here()
            return
        if self._after is not None and not self.is_current:  # a save that was asked for in time may be made anew
            raise MoonclipError("no save can be handed over any more: the worker was told to end")
        # One step: before it an interrupt finds nothing handed over, after it a save that the next waking starts.
        self._pending.append(job)
        self._wake()

    def wait(self, within_s: float | None = None) -> bool:
        """Wait until every save that was handed over has ended; whether they have, if there is so much time only.

        Raises nothing for those that failed.

        A forked child waits for nothing: those saves are its parent's. Nor does a Future's callback, which runs
        in the very thread it would wait for.
        """
        if self.is_foreign or self.is_current:
            return True
        self._wake()  # for a save whose handing over was interrupted before it woke the thread
        with self._lock:
            return self._changed.wait_for(lambda: not self._pending, within_s)

    def stop(self, after: Callable[[], None]) -> None:
        """Have worker and thread end once all is written, and call ``after`` then. Does not wait, takes no lock.

        This is all a garbage collector may do: it can run in any thread, in the middle of anything.
        """
        if not self.is_foreign:
            self._after = after
            self._wake()

    def close(self) -> None:
        """Wait for all saves, then end worker and thread."""
        if self.is_foreign or not self._thread.is_alive():
            return
        self.wait()
        self.stop(_nothing)
        if not self.is_current:
            self._thread.join()

    def drain(self) -> None:
        """Close, as the last act of the process: what other exit handlers save after this is made here, at once.

        The thread must be gone when the interpreter goes: one that is just freeing tensors then aborts the process.
        """
        self.close()
        self._is_drained = True

    # --- the thread -------------------------------------------------------------------------------------------------

    def _loop(self) -> None:
        kernels.prepare()  # copies and loads here are faster with them
        while self._after is None or self._pending:
            self._rest()
            while self._pending:
                self._make_first()
        try:
            if self._worker is not None:
                self._worker.close()
            if self._pushes is not None:
                self._pushes.finish()
        finally:
            self._after()

    def _rest(self) -> None:
        """Until there is something to do."""
        is_woken = False
        while not is_woken:
            with suppress(Empty):
                self._wakings.get(timeout=self._look_seconds())
                is_woken = True
            self._hear_worker()

    def _look_seconds(self) -> float | None:
        if self._worker is None:
            return None
        return _PUSH_LOOK_SECONDS if self._pushes is not None and self._pushes.is_under_way else _LOOK_SECONDS

    def _hear_worker(self) -> None:
        """What an idle worker has to say. One that has ended costs no save: the next one starts another."""
        if self._worker is None:
            return
        try:
            self._worker.hear()
            self._worker.forget_dropped_arenas()
        except WorkerEnded as error:
            if self._lose_worker(error):
                _log.warning("%s; it was idle, the next save starts another", error)
        except Exception:  # noqa: BLE001 - a message may be lost, this thread has to go on
            _log.exception("something that the worker had to say was lost")

    def _make_first(self) -> None:
        job = self._pending[0]
        try:
            job.settle(_let_go(self._made(job)))
            self._here.tidier.prune()  # of what the worker makes, it does so itself
            self._push_here()  # likewise
        except BaseException:  # noqa: BLE001 - a callback may exit or interrupt; the next save needs this thread
            _log.exception("a callback of a save's Future ended with an error")
        finally:
            del job  # it holds an arena
            with self._lock:  # only now: who has waited finds the Future done
                self._pending.popleft()
                self._changed.notify_all()

    def _made(self, job: Job) -> Outcome:
        try:
            order, arena = self._order_of(job)
            by_worker = self._made_by_worker(job, order, arena)
            job.given()  # else who waits for that would wait until it is made here
            outcome = by_worker or self._committed_here(order, arena)
        except BaseException as error:  # noqa: BLE001 - whatever ends a save belongs to its Future; the thread lives on
            return Outcome(error=error)
        self._note(order, outcome, by_worker=by_worker is not None)
        return outcome

    def _made_by_worker(self, job: Job, order: Order, arena: Arena) -> Outcome | None:
        """What a worker made of it; ``None`` if none has started."""
        self._hear_worker()  # it may have ended while the state was captured
        self._worker = worker = self._worker or self._started()
        if worker is None:
            return None
        try:
            with self._announced(order) as lock:
                return worker.save(order, arena, lock, self._approve, job.given)
        except WorkerEnded as error:
            return Outcome(error=error) if self._lose_worker(error) else None

    def _announced(self, order: Order) -> AbstractContextManager[FileLock | None]:
        """Say that a save is under way, before a worker can: it may be starting, or outlive us before it reads this."""
        try:
            return announced(self._repo.layout.root, self._repo.files, order.request.branch, blocking=False)
        except (OSError, Busy):  # no descriptor is left in this process, say; the worker will say it, once it begins
            return nullcontext()

    def _committed_here(self, order: Order, arena: Arena) -> Outcome:
        with nullcontext() if self._pushes is None else self._pushes.making_way():
            return self._here.commit(order, arena.memory, self._approve)

    def _made_here(self, job: Job) -> Outcome:
        """In the caller's thread, which an interrupt may reach."""
        try:
            order, arena = self._order_of(job)
            outcome = self._committed_here(order, arena)
        except BaseException as error:
            job.settle(Outcome(error=error))
            raise
        self._note(order, outcome, by_worker=False)
        return outcome

    # --- pushes -----------------------------------------------------------------------------------------------------

    def _order_of(self, job: Job) -> tuple[Order, Arena]:
        order, arena = job.order()
        return (order if self._pushes is None else self._pushes.marked(order)), arena

    def _note(self, order: Order, outcome: Outcome, *, by_worker: bool) -> None:
        if self._pushes is not None:
            self._pushes.note(order, outcome, by_worker=by_worker)

    def _push_here(self) -> None:
        """Push what no worker was given."""
        if self._pushes is None:
            return
        if self._is_drained:
            self._pushes.finish()  # there may be no save after this one
        else:
            self._pushes.start_here()  # beside the next save, which may be the last one and short of time

    # --- the worker -------------------------------------------------------------------------------------------------

    def _started(self) -> WorkerProcess | None:
        try:
            return WorkerProcess.start(self._repo.layout.root, self._repo.threads.count, self._pushes)
        except (OSError, SubprocessError) as error:
            self._count_failed_start(error)
            return None

    def _lose_worker(self, error: WorkerEnded) -> bool:
        """After the worker's end: whether it had ever been ready."""
        worker, self._worker = self._worker, None
        if self._pushes is not None:
            self._pushes.lose(error)
        if worker is not None and worker.is_ready:
            self._failed_starts = 0
            return True
        self._count_failed_start(error)
        return False

    def _count_failed_start(self, error: Exception) -> None:
        self._failed_starts += 1
        if self._failed_starts == WORKER_STARTS:
            _log.warning("saves are made by the training process itself, since no worker can be started: %s", error)

    def _wake(self) -> None:
        self._wakings.put(None)


def _nothing() -> None:
    pass


def _let_go(outcome: Outcome) -> Outcome:
    """Have an error that somebody keeps not keep the arena as well: the frames that it came through name that."""
    trace = None if outcome.error is None else outcome.error.__traceback__
    frame = None if trace is None else trace.tb_frame
    with suppress(RuntimeError):  # the first of them that has not ended
        while frame is not None:
            frame.clear()
            frame = frame.f_back
    return outcome
