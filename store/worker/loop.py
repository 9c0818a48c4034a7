"""The worker's loop: it makes the saves that its trainer hands over, until there are no more or the trainer is gone.

What was handed over is finished even if the trainer is gone: its state was captured whole, and a run that died needs
it more than any other.
"""

import logging
import os
import select
import socket
from contextlib import ExitStack, suppress
from pathlib import Path

import numpy as np  # noqa: F401 - what the first save needs is loaded before it comes

from .. import codec, kernels  # noqa: F401 - the codec likewise
from ..disk.locks import FileLock
from ..errors import MoonclipError
from ..ids import CommitId, short
from ..repository import Repository
from ..saving.arenas import Arena
from .channel import Channel
from .collecting import Collector
from .committing import Committer
from .messages import Answer, Asking, Close, Follow, Forget, Log, Order, Outcome, Ready, Save, told, unpacked
from .peers import Peer
from .pushing import Pusher


class Worker:
    """One trainer's worker.

    Args:
        repo: the store.
        channel: leads to the trainer.
        trainer: says when it is gone.
    """

    def __init__(self, repo: Repository, channel: Channel, trainer: Peer) -> None:
        self._committer = Committer(repo)
        self._collector = Collector(repo)
        self._pusher: Pusher | None = None
        self._repo = repo
        self._channel = channel
        self._trainer = trainer
        self._arenas: dict[int, Arena] = {}

    def run(self) -> None:
        """Make saves until told to end, or the trainer is gone and everything it handed over is done."""
        self._tell(Ready())
        kernels.prepare()  # off everybody's way: a machine that has none yet has a while until the first save
        while self._next_message():
            received = self._channel.receive()
            if received is None:
                break
            message, fds = received
            if isinstance(message, Close):
                break
            if isinstance(message, Save):
                self._save(message, fds)
            elif isinstance(message, Forget):
                self._forget(message.arenas)
            elif isinstance(message, Follow):
                self._pusher = Pusher(self._repo, message, self._tell)
        self._committer.tidier.prune()
        self._collector.end()
        if self._pusher is not None:
            self._pusher.end()

    def _next_message(self) -> bool:
        """Wait for a message, and tidy up while there is none; false if the trainer is gone."""
        tidier = self._committer.tidier
        if tidier.is_overdue or (tidier.is_due and not self._channel.is_readable):
            tidier.prune()
            if not self._collector.is_running and tidier.takes_gc():
                self._collector.start()
        self._repo.packs.close()  # it may be long: what others remove meanwhile must not take space for being open here
        return bool(self._trainer.wait((self._channel.fileno(), select.POLLIN)))

    def _save(self, message: Save, fds: list[int]) -> None:
        order: Order | None = None
        try:
            with ExitStack() as held:
                announced = held.enter_context(FileLock(fds.pop(0))) if message.is_announced else None
                self._adopt(message, fds)
                held.enter_context(self._collector.standing_still())
                if self._pusher is not None:
                    held.enter_context(self._pusher.making_way())
                order = unpacked(message.order)
                outcome = self._made(order, message, announced)
        except Exception as error:  # noqa: BLE001 - it belongs to this save; the next one needs this process
            outcome = Outcome(error=error)
        self._tell(told(outcome))
        if self._pusher is not None and order is not None and order.mark is not None and outcome.commit is not None:
            self._pusher.note(order, order.mark)
            self._pusher.start()

    def _tell(self, message: object) -> None:
        with suppress(BrokenPipeError):  # nobody is left to be told, but what it handed over is still here
            self._channel.send(message)

    def _adopt(self, message: Save, fds: list[int]) -> None:
        if fds:
            number = message.order.arena
            self._arenas[number] = Arena.adopt(number, fds[0], message.arena_bytes)

    def _made(self, order: Order, message: Save, announced: FileLock | None) -> Outcome:
        approve = self._ask if message.asks else None
        return self._committer.commit(order, self._arenas[order.arena].memory, approve, announced)

    def _ask(self, commit: CommitId) -> None:
        """Have the trainer say whether a commit may be published.

        Raises:
            MoonclipError: it may not; or there is nobody left to say so, and whoever was to check it never will.
            SystemExit: the trainer speaks of something else. This process ends: whatever it said of one save from here
                on would be taken for what became of another.
        """
        self._tell(Asking(commit))
        received = self._channel.receive() if self._trainer.wait((self._channel.fileno(), select.POLLIN)) else None
        if received is None:
            raise MoonclipError(f"commit {short(commit)} was not published: the trainer ended before it agreed")
        answer = received[0]
        if not isinstance(answer, Answer):
            raise SystemExit(f"commit {short(commit)} was not published: {type(answer).__name__} came for an answer")
        if not answer.is_granted:
            raise MoonclipError(f"commit {short(commit)} was not published: the trainer did not agree")

    def _forget(self, arenas: tuple[int, ...]) -> None:
        self._committer.forget(arenas)
        for number in arenas:
            self._arenas.pop(number, None)


class _ToTrainer(logging.Handler):
    """Sends the log to the trainer, which knows what to do with it."""

    def __init__(self, channel: Channel) -> None:
        super().__init__()
        self._channel = channel

    def emit(self, record: logging.LogRecord) -> None:
        with suppress(OSError):
            self._channel.send(Log(record.name, record.levelno, self.format(record)))


def main(root: str, *numbers: str) -> None:
    """Run the worker.

    Args:
        root: the store.
        numbers: threads that encode; descriptors of the socket and of the trainer's pidfd (or -1); the trainer's
            process id; the least level of what is logged.
    """
    thread_count, socket_fd, pidfd, trainer_pid, level = map(int, numbers)
    for fd in (socket_fd, pidfd):
        if fd >= 0:
            os.set_inheritable(fd, False)
    trainer = Peer(pidfd, lambda: os.getppid() != trainer_pid)
    channel = Channel(socket.socket(fileno=socket_fd), trainer)
    # What is not ours is heard from warnings on: boto3 logs each request in detail, with the id of the key.
    logging.basicConfig(level=max(level, logging.WARNING), handlers=[_ToTrainer(channel)], format="%(message)s")
    logging.getLogger("store").setLevel(level)
    logging.captureWarnings(capture=True)
    with Repository.open(Path(root), thread_count=thread_count) as repo:
        Worker(repo, channel, trainer).run()
