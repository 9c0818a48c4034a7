"""Pushing what a run saves while it goes on: in a thread of the worker, which makes way while a save is made.

A push takes the tips of branches as they are when it begins: pushes that come due while one is under way become one.
One that fails costs nothing that is here; the next one brings what it would have brought.
"""

import logging
import threading
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

from ..errors import Conflict, MoonclipError
from ..history.walks import first_parents
from ..limits import PUSH_TELL_SECONDS, PUSH_YIELD_SECONDS
from ..naming.refnames import BRANCHES, TAGS, RefName, branch_name, describe, remote_name, tag_name
from ..repository import Repository
from .messages import Follow, Mark, Order, PushEnded, Pushing, error_told

if TYPE_CHECKING:
    from ..remotes.pushing.push import Pushed
    from ..remotes.remote import Remote

_log = logging.getLogger(__name__)

Tell = Callable[[Pushing | PushEnded], None]


class Pusher:
    """Pushes the branches that saves were made on, one push at a time.

    :meth:`note`, :meth:`start` and :meth:`end` are for one thread, in which :meth:`push` may be called instead of
    :meth:`start`.

    Args:
        repo: the store.
        following: which remote.
        tell: hears how pushes get on, and that they have ended; in any thread.
    """

    def __init__(self, repo: Repository, following: Follow, tell: Tell) -> None:
        self._repo = repo
        self._following = following
        self._tell = tell
        self._remote: Remote | None = None
        self._lock = threading.Lock()
        self._branches: dict[str, int] = {}  # by name: number of the last save that was made on it
        self._tags: dict[str, int] = {}
        self._made = 0  # number of the last save that was made
        self._due = 0  # of the last one that a push follows
        self._tried = 0  # of the last one that a push was to bring
        self._is_given_up = False
        self._thread: threading.Thread | None = None
        self._is_running = False
        self._is_ending = False
        self._may_go_on = threading.Event()
        self._may_go_on.set()
        self._yields_until = 0.0
        self._told_at = 0.0

    def note(self, order: Order, mark: Mark) -> None:
        """Hear of a save that was made.

        Args:
            order: the save.
            mark: its own.
        """
        with self._lock:
            self._branches[order.request.branch] = mark.number
            if order.tag is not None:
                self._tags[order.tag] = mark.number
            self._made = mark.number
            if mark.is_due:
                self._due = mark.number
            self._is_given_up = False

    def settle(self, ended: PushEnded) -> None:
        """Hear of a push that has ended, whoever made it: what it brought need not be brought again."""
        with self._lock:
            self._tried = max(self._tried, ended.number)
            self._is_given_up = ended.is_last and ended.error is not None
            if ended.error is None:
                for names in (self._branches, self._tags):
                    for name in [name for name, number in names.items() if number <= ended.number]:
                        del names[name]

    def start(self) -> None:
        """Push what is due in a thread of its own, unless one is at it: then it goes on with that.

        Where there is no thread to be had, as when the interpreter shuts down, in the caller's.
        """
        with self._lock:
            if self._is_running or self._due <= self._tried:
                return
            self._is_running = True
        thread = threading.Thread(target=self._run, name="moonclip-push", daemon=True)
        try:
            thread.start()
        except RuntimeError:
            self._run()
        else:
            self._thread = thread

    def push(self) -> None:
        """Push in the caller's thread, if something is due. Raises nothing: what goes wrong is told."""
        with self._lock:
            is_wanted = self._tried < self._due
        if is_wanted:
            self._push_once()

    @contextmanager
    def making_way(self) -> Iterator[None]:
        """Have a push that is under way stand still meanwhile, but not for long: servers give up on who is silent."""
        self._yields_until = time.monotonic() + PUSH_YIELD_SECONDS
        self._may_go_on.clear()
        try:
            yield
        finally:
            self._may_go_on.set()

    def end(self) -> None:
        """Wait for the push that is under way, and push what is left, unless one has failed since this began."""
        self._is_ending = True
        try:
            if self._thread is not None:
                self._thread.join()
            with self._lock:
                is_wanted = bool(self._branches) and not self._is_given_up
            if is_wanted:
                self._push_once()
        finally:
            self._is_ending = False
            self._close()

    # --- a push -----------------------------------------------------------------------------------------------------

    def _run(self) -> None:
        is_done = False
        while not is_done:
            self._push_once()
            with self._lock:
                is_done = self._due <= self._tried or self._is_given_up
                self._is_running = not is_done

    def _push_once(self) -> None:
        with self._lock:
            number, branches, tags = self._made, list(self._branches), list(self._tags)
        self._tell(Pushing())
        try:
            self._push(branches, tags)
            ended = PushEnded(number)
        except Exception as error:  # noqa: BLE001 - whatever it is, saves go on
            self._close()  # what it remembers may be what misled it
            ended = self._failed(number, branches, error)
            if self._is_ending:
                ended = ended._replace(number=self._made, is_last=True)
        self.settle(ended)
        self._tell(ended)

    def _push(self, branches: list[str], tags: list[str]) -> None:
        """Push those of them that are still there; whatever goes wrong is raised."""
        from ..remotes.pushing.push import push

        held = self._repo.refs.list()
        branches = sorted(branch for branch in branches if branch_name(branch) in held)
        tags = sorted(tag for tag in tags if tag_name(tag) in held)
        if not branches and not tags:  # all were deleted: to name none would mean the current branch
            return
        done = push(self._repo, self._opened(), branches, tags=tags, progress=self._get_on)
        for change in done.changes:
            if change.why == "rejected" and change.name.startswith(f"{TAGS}/"):
                _log.warning("remote %r has another %s; that one stays", done.remote, describe(change.name))
        require_taken(done, of=BRANCHES)

    def _opened(self) -> "Remote":
        if self._remote is None:
            from ..remotes.remote import open_remote  # only now: most runs have none

            self._remote = open_remote(self._repo, self._following.remote, keys=self._following.keys)
        return self._remote

    def _close(self) -> None:
        remote, self._remote = self._remote, None
        if remote is not None:
            remote.close()

    def _get_on(self, *_: object) -> None:
        """Between two steps of a push: make way for a save, and let the trainer know that it gets on."""
        if not self._may_go_on.is_set():
            self._may_go_on.wait(max(0.0, self._yields_until - time.monotonic()))
        now = time.monotonic()
        if now - self._told_at >= PUSH_TELL_SECONDS:
            self._told_at = now
            self._tell(Pushing())

    # --- what is told -----------------------------------------------------------------------------------------------

    def _failed(self, number: int, branches: list[str], error: Exception) -> PushEnded:
        remote = self._following.remote
        steps = {branch: self._step(branch_name(branch)) for branch in sorted(branches)}
        remote_steps = {branch: self._step(remote_name(remote, branch)) for branch in steps}
        told = "; ".join(
            f"branch {branch!r} is at {_words(step)} here and, as last seen, at {_words(remote_steps[branch])} there"
            for branch, step in steps.items()
        )
        reason = str(error) if isinstance(error, MoonclipError) else f"{type(error).__name__}: {error}"
        data, trace = error_told(error)
        details = {"remote": remote, "steps": steps, "remote_steps": remote_steps}
        return PushEnded(number, f"a push to remote {remote!r} failed: {reason} ({told})", details, data, trace)

    def _step(self, name: RefName) -> int | None:
        """The step that a ref has got to; ``None`` if none, or if that cannot be told now."""
        try:
            commit = self._repo.refs.read(name)
            rows = first_parents(self._repo.lookup, commit) if commit else iter(())
            return next((row.step for row in rows if row.step is not None), None)
        except (MoonclipError, OSError):  # what is told is the push's own failure
            return None


def require_taken(done: "Pushed", of: str = "") -> None:
    """See that a remote took all refs, or those of a kind.

    Raises:
        Conflict: it did not; the message says what can be done.
    """
    for change in done.changes:
        if change.why == "rejected" and change.name.startswith(of):
            raise Conflict(
                f"remote {done.remote!r} did not take {describe(change.name)}: {change.reason}. Nothing is lost on"
                " either side. To keep both, go on under another name: branch('new-name'), then switch('new-name');"
                " to go on from what is there, resume in an empty directory; to give up what is there, fetch(), then"
                " push(force_with_lease=True)",
                ref=change.name,
                remote=done.remote,
                got=change.old and change.old.hex(),
            )


def _words(step: int | None) -> str:
    return "no step" if step is None else f"step {step}"
