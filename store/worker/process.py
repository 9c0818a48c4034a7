"""One worker process, as its trainer sees it: started, given saves, ended."""

import logging
import os
import select
import signal
import socket
import subprocess
import sys
import weakref
from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager, suppress
from pathlib import Path
from typing import Final, Self

from ..disk.descriptors import Descriptor, occupy_standard_streams
from ..disk.locks import FileLock
from ..errors import MoonclipError, WorkerEnded
from ..ids import CommitId
from ..limits import WORKER_TAIL_BYTES
from ..saving.arenas import Arena, nameless_file
from ..saving.publish import Approve
from .channel import Channel, Disconnected
from .messages import (
    Answer,
    Asking,
    Close,
    Ended,
    Forget,
    Log,
    Order,
    Outcome,
    PushEnded,
    Pushing,
    Ready,
    Save,
    heard,
    packed,
)
from .peers import Peer, pidfd_of
from .pushes import Pushes

_log = logging.getLogger("store")

_PACKAGES: Final = Path(__file__).parents[2]
"""Where ``store`` lies: what else a user has on the path may hold another package of that name."""

_START: Final = (
    "import sys; sys.path.insert(0, sys.argv.pop(1)); import store; del sys.path[0];"
    " from store.worker.__main__ import run; run(*sys.argv[1:])"
)
"""What a worker runs. Ours is first on the path only for ``store``: what lies beside it may have names of the standard
library's modules."""

_PATH: Final = [path for path in sys.path if Path(path).is_absolute() and os.pathsep not in path]
"""Where a worker finds what it needs: where we have found it, whatever a program has done to its path since."""

_living: Final["weakref.WeakSet[WorkerProcess]"] = weakref.WeakSet()


class WorkerProcess:
    """A worker, from its start to its end. Not thread-safe. A forked child has none.

    Attributes:
        pid: its process id.
        is_ready: whether it has said that it started.
    """

    def __init__(
        self, process: "subprocess.Popen[bytes]", own: socket.socket, errors_fd: int, pushes: Pushes | None = None
    ) -> None:
        self.pid = process.pid
        self.is_ready = False
        self._process = process
        self._pidfd = Descriptor(pidfd_of(process.pid))
        self._peer = Peer(self._pidfd.fd, lambda: process.poll() is not None)
        self._channel = Channel(own, self._peer)
        self._errors = Descriptor(errors_fd)
        self._arenas: dict[int, weakref.ref[Arena]] = {}
        self._pushes = pushes
        self._approve: Approve | None = None
        self._refusal: BaseException | None = None
        _living.add(self)

    @classmethod
    def start(cls, root: Path, thread_count: int, pushes: Pushes | None = None) -> Self:
        """Start one; does not wait until it is ready.

        Args:
            root: the store.
            thread_count: threads that encode.
            pushes: where to, and who hears of it; ``None`` if nothing is pushed.

        Raises:
            OSError: the system, or the lack of an interpreter, does not let us.

        Cost: 5 ms.
        """
        if not sys.executable or getattr(sys, "frozen", False):
            raise OSError("there is no Python interpreter to run it with")
        occupy_standard_streams()  # a descriptor that is passed on must not be one of the worker's own three
        with ExitStack() as ours, ExitStack() as passed_on:
            own, others = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)
            ours.callback(own.close)
            passed_on.callback(others.close)
            errors_fd = nameless_file()
            ours.callback(os.close, errors_fd)
            own_pidfd = pidfd_of(os.getpid())
            passed_on.callback(Descriptor(own_pidfd).close)
            process = _spawned(root, thread_count, others.fileno(), own_pidfd, errors_fd)
            ours.pop_all()
        worker = cls(process, own, errors_fd, pushes)
        if pushes is not None:
            with suppress(BrokenPipeError):  # whoever has a use for it will see that it has ended
                worker._channel.send(pushes.following)  # not among its arguments, which everybody can see
        return worker

    def hear(self) -> None:
        """Hear what it has to say while no save is under way, without waiting.

        Raises:
            WorkerEnded: it has ended.
            OSError: there is no room for what it says.
        """
        is_gone = self._peer.is_gone  # before: all that it ever said is there now
        with self._connected(), suppress(BlockingIOError):
            while True:
                self._receive()
        if is_gone:
            raise self._ended()

    def save(
        self,
        order: Order,
        arena: Arena,
        announced: FileLock | None = None,
        approve: Approve | None = None,
        given: Callable[[], None] = lambda: None,
    ) -> Outcome:
        """Have it make a save, and wait for what becomes of it.

        Args:
            order: the save.
            arena: what it lies in.
            announced: what says that it is under way: the worker gets it with the order, and says so from then on.
            approve: called here once all is durable, before the branch moves. What it raises is the save's error.
            given: called once it is sent: from then on it is made even if this process is killed, ready or not.

        Raises:
            WorkerEnded: it ended before it told; or it had to, since not all that it told could be heard.
            MoonclipError: something closed the arena's descriptor, which it has not got yet.
            OSError: the order could not be sent.
        """
        is_new = arena.number not in self._arenas
        if is_new and not arena.is_intact:
            raise MoonclipError(
                "something in this process closed the memory that states are copied into (os.closerange, perhaps), so"
                " it cannot be shared with the worker process any more; end this process and start the run anew"
            )
        with self._connected():
            with suppress(BrokenPipeError):  # what it said last is still to be heard
                message = Save(packed(order), arena.size_bytes, approve is not None, announced is not None)
                fds = [] if announced is None else [announced.fd]
                self._channel.send(message, [*fds, arena.fd] if is_new else fds)
                given()
                if announced is not None:
                    with suppress(OSError):  # something closed it behind our back; the worker has its own by now
                        announced.leave()
            self._arenas[arena.number] = weakref.ref(arena)
            self._approve = approve
            outcome = self._outcome()
        refusal, self._refusal = self._refusal, None
        if outcome.error is not None and refusal is not None:
            outcome = outcome._replace(error=refusal)
        if outcome.error is not None:
            del self._arenas[arena.number]  # whatever went wrong, it is sent anew with the next save
        return outcome

    def forget_dropped_arenas(self) -> None:
        """Have it let go of the arenas that are gone here, whose memory it would keep.

        Raises:
            WorkerEnded: it can be told nothing any more.
            OSError: no memory to tell it.
        """
        dropped = tuple(number for number, arena in self._arenas.items() if arena() is None)
        if not dropped:
            return
        for number in dropped:
            del self._arenas[number]
        with self._connected(), suppress(BrokenPipeError):  # then it holds nothing any more
            self._channel.send(Forget(dropped))

    def close(self) -> None:
        """Have it end, and wait until it has."""
        try:
            self._channel.send(Close())
            while True:
                self._outcome()
        except (WorkerEnded, Disconnected, OSError):
            self._process.wait()
        finally:
            self._close_files()

    def disown(self) -> None:
        """In a forked child: let go of what belongs to its parent, without a word to the worker."""
        self._process.returncode = 0  # else its finalizer complains of a process that is not ours
        self._close_files()

    # --- how --------------------------------------------------------------------------------------------------------

    def _outcome(self) -> Outcome:
        """Wait for what becomes of a save."""
        while True:
            if not self._peer.wait((self._channel.fileno(), select.POLLIN)):
                raise self._ended()
            try:
                outcome = self._receive()
            except (WorkerEnded, Disconnected):
                raise
            except BaseException as error:  # it goes on: how this save ends would be taken for the end of the next
                raise Disconnected(f"hearing or answering it failed with {type(error).__name__}: {error}") from error
            if outcome is not None:
                return outcome

    @contextmanager
    def _connected(self) -> Iterator[None]:
        """A worker that cannot be reached is as good as ended: it will be, now that its socket has no other end."""
        try:
            yield
        except Disconnected as error:
            self.is_ready = True  # it is not its fault: a save that it may have made must not be made here as well
            raise self._ended(f"cannot be reached: {error}") from error

    def _receive(self) -> Outcome | None:
        """Hear one message; the outcome if it is one."""
        received = self._channel.receive()
        if received is None:
            raise self._ended()
        message, _ = received
        if isinstance(message, Log):
            _log_here(message)
        elif isinstance(message, Ready):
            self.is_ready = True
        elif isinstance(message, Asking):
            self._answer(message.commit)
        elif isinstance(message, Ended):
            return heard(message)
        elif isinstance(message, Pushing | PushEnded) and self._pushes is not None:
            self._pushes.hear(message)
        return None

    def _answer(self, commit: CommitId) -> None:
        try:
            assert self._approve is not None
            self._approve(commit)
        except BaseException as error:  # noqa: BLE001 - whatever ends a save belongs to its outcome
            self._refusal = error
        with suppress(BrokenPipeError):  # that it has ended is heard next
            self._channel.send(Answer(self._refusal is None))

    def _ended(self, how: str | None = None) -> WorkerEnded:
        """The error that says how it ended; it has, or will, for its socket is closed."""
        self._channel.close()
        code = self._process.wait()
        tail = self._last_words()
        said = f"; the last it said:\n{tail}" if tail else ""
        self._close_files()
        return WorkerEnded(f"the worker process {self.pid} {how or _ending(code)}{said}", pid=self.pid, exit_code=code)

    def _last_words(self) -> str:
        if not self._errors.is_intact:
            return ""
        start = max(0, os.fstat(self._errors.fd).st_size - WORKER_TAIL_BYTES)
        return os.pread(self._errors.fd, WORKER_TAIL_BYTES, start).decode(errors="replace").strip()

    def _close_files(self) -> None:
        self._channel.close()
        self._pidfd.close()
        self._errors.close()
        _living.discard(self)


def _spawned(
    root: Path, thread_count: int, socket_fd: int, own_pidfd: int, errors_fd: int
) -> "subprocess.Popen[bytes]":
    level = logging.getLogger("store").getEffectiveLevel()
    numbers = (thread_count, socket_fd, own_pidfd, os.getpid(), level)
    environment = {
        **os.environ,
        "PYTHONPATH": os.pathsep.join(_PATH),
        "OPENBLAS_NUM_THREADS": "1",  # NumPy would start as many as there are CPUs, for nothing
    }
    return subprocess.Popen(
        [sys.executable, "-P", "-c", _START, str(_PACKAGES), str(root), *map(str, numbers)],
        stdin=subprocess.DEVNULL,
        stdout=subprocess.DEVNULL,
        stderr=errors_fd,
        pass_fds=[fd for fd in (socket_fd, own_pidfd) if fd >= 0],
        start_new_session=True,  # what a terminal sends to the trainer's group is not for the worker
        env=environment,
    )


def _ending(code: int) -> str:
    if code >= 0:
        return f"ended with exit code {code}"
    hint = ", as the kernel does when memory runs out" if -code == signal.SIGKILL else ""
    return f"was killed by {_signal_name(-code)}{hint}"


def _signal_name(number: int) -> str:
    try:
        return signal.Signals(number).name
    except ValueError:
        return f"signal {number}"


def _log_here(message: Log) -> None:
    logger = logging.getLogger(message.logger)
    if logger.isEnabledFor(message.level):
        logger.handle(logger.makeRecord(message.logger, message.level, "(worker)", 0, message.text, (), None))


def _disown_all() -> None:
    for process in list(_living):
        process.disown()


os.register_at_fork(after_in_child=_disown_all)
