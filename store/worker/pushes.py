"""The trainer's side of pushes: which saves they follow, how far behind the remote is, and what went wrong."""

import logging
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import AbstractContextManager, contextmanager

from ..errors import PushFailed, WorkerEnded
from ..limits import PUSH_BACKLOG, PUSH_STALL_SECONDS
from ..repository import Repository
from .messages import Follow, Mark, Order, Outcome, PushEnded, Pushing, error_heard
from .pushing import Pusher

_log = logging.getLogger("store")


class Pushes:
    """Pushes of what one trainer saves. They are made by its worker; without one, here. Thread-safe.

    Saves are marked, noted and pushed by one thread at a time: whichever hands them over.

    Args:
        repo: the store, as it is opened here.
        following: which remote.
        every: how many saves a push follows.

    Attributes:
        following: as given.
    """

    def __init__(self, repo: Repository, following: Follow, every: int) -> None:
        self.following = following
        self._every = every
        self._here = Pusher(repo, following, self.hear)
        self._changed = threading.Condition()
        self._made = 0
        self._since_due = 0
        self._due: deque[int] = deque()  # numbers of the saves that pushes follow which have not ended
        self._heard_at = 0.0
        self._failure: PushFailed | None = None
        self._told = ""
        self._is_hurried = False
        self._by_hand_count = 0

    # --- saves ------------------------------------------------------------------------------------------------------

    def marked(self, order: Order) -> Order:
        """The order of the next save, which says whether a push follows it."""
        is_due = self._since_due + 1 >= self._every and not self._by_hand_count
        return order._replace(mark=Mark(self._made + 1, is_due))

    def note(self, order: Order, outcome: Outcome, *, by_worker: bool) -> None:
        """Hear of a save that has ended, and of who made it."""
        mark = order.mark
        if outcome.commit is None or mark is None:
            return
        with self._changed:
            self._made = mark.number
            self._since_due = 0 if mark.is_due else self._since_due + 1
            if mark.is_due:
                if not self._due:
                    self._heard_at = time.monotonic()
                self._due.append(mark.number)
        self._here.note(order, mark._replace(is_due=mark.is_due and not by_worker))

    def push_here(self) -> None:
        """Push what is due and no worker was given, unless time is short: then later. Raises nothing."""
        if not self._is_hurried:
            self._here.push()

    def start_here(self) -> None:
        """The same in a thread of its own, in any case. Raises nothing."""
        self._here.start()

    @contextmanager
    def by_hand(self) -> Iterator[None]:
        """No save that is handed over meanwhile is followed by a push: two of one branch would refuse each other's."""
        with self._changed:
            self._by_hand_count += 1
        try:
            yield
        finally:
            with self._changed:
                self._by_hand_count -= 1

    def making_way(self) -> AbstractContextManager[None]:
        """Have a push that is made here stand still for a while: a save is made."""
        return self._here.making_way()

    def finish(self) -> None:
        """After the end of the worker, or of all saves: push what is left, unless that was tried. Raises nothing."""
        self._here.end()

    # --- the worker -------------------------------------------------------------------------------------------------

    def hear(self, message: Pushing | PushEnded) -> None:
        """Hear what there is to tell of a push."""
        failure = None
        if isinstance(message, PushEnded) and message.error is not None:
            failure = PushFailed(message.problem, **message.details)
            failure.__cause__ = error_heard(message.error, message.trace)
        if isinstance(message, PushEnded):
            self._here.settle(message)
        with self._changed:
            self._heard_at = time.monotonic()
            if isinstance(message, PushEnded):
                while self._due and self._due[0] <= message.number:
                    self._due.popleft()
                self._failure = failure  # one that went well has brought what those before it had not
            self._changed.notify_all()
        if failure is not None:
            self._warn(str(failure))
        elif isinstance(message, PushEnded):
            self._told = ""

    def lose(self, error: WorkerEnded) -> None:
        """The worker is gone, and with it whatever push was under way."""
        with self._changed:
            if not self._due:
                return
            self._due.clear()
            self._since_due = self._every  # the next save tries again
            remote = self.following.remote
            self._failure = PushFailed(f"a push to remote {remote!r} was cut off: {error}", remote=remote)
            self._failure.__cause__ = error
            self._changed.notify_all()
        self._warn(str(self._failure))

    # --- waiting ----------------------------------------------------------------------------------------------------

    @property
    def is_under_way(self) -> bool:
        """Whether a push is due that has not ended."""
        return bool(self._due)

    def await_room(self) -> None:
        """Wait while the remote is too far behind, and getting on. In an outage nobody waits."""
        with self._changed:
            while len(self._due) > PUSH_BACKLOG and not self._is_hurried:
                left = self._heard_at + PUSH_STALL_SECONDS - time.monotonic()
                if left <= 0:
                    return
                self._changed.wait(left)

    def hurry(self) -> None:
        """The run ends, and its time is short: from now on no save waits for the remote."""
        with self._changed:
            self._is_hurried = True
            self._changed.notify_all()

    def await_all(self) -> None:
        """Wait until no push is due; an outage ends that, too, after a while."""
        with self._changed:
            self._changed.wait_for(lambda: not self._due)

    @property
    def has_failure(self) -> bool:
        """Whether something went wrong with the last push, and nobody was told of it."""
        return self._failure is not None

    def taken_failure(self) -> PushFailed | None:
        """What went wrong with the last push, if nobody was told of it; from now on somebody was."""
        with self._changed:
            failure, self._failure = self._failure, None
            return failure

    def _warn(self, text: str) -> None:
        if text != self._told:
            self._told = text
            _log.warning("%s; saves go on, and so do pushes when they are due", text)
