"""Saves of one manager of several ranks: what :class:`~moonclip.recording.Recorder` does for one process."""

import threading
import time
from collections import deque
from collections.abc import Collection, Iterator
from contextlib import contextmanager
from pathlib import Path

from store.errors import Incompatible, MoonclipError, SaveFailed
from store.format.canonical import Node
from store.ids import CommitId
from store.naming import tags
from store.repository import Repository
from store.saving.rankbases import RankMemory

from .. import leaving
from ..binding import Binding
from ..capture.staging import Staging
from ..items import GENERATORS
from ..jobs import SaveFuture, failure_of
from ..policy import Policy
from ..recording import Wish
from ..turns import Turns
from .choosing import Chooser
from .holdings import Holdings, Shared
from .plan import Share, digest
from .saving import RankPart, Verdict, follow, lead
from .talk import Talk


class RankRecorder:
    """Saves of one rank's manager. Thread-safe; saves take turns, and all ranks have to ask for the same ones.

    Args:
        repo: the store.
        binding: the branch to commit to, the same on all ranks.
        policy: whether unknown objects may be pickled.
        staging: what this rank's share is copied into.
        talk: decisions of all ranks.
        in_background: whether :meth:`save` returns before the commit is durable.
        per_rank: names of items of which each rank saves its own.

    Attributes:
        last_wait_ns: how long the last save waited for the one before it.
        last_blocked_ns: how long it took its caller beyond that.
    """

    def __init__(
        self,
        repo: Repository,
        binding: Binding,
        policy: Policy,
        staging: Staging,
        talk: Talk,
        *,
        in_background: bool,
        per_rank: Collection[str] = (),
    ) -> None:
        self._repo = repo
        self._binding = binding
        self._policy = policy
        self._staging = staging
        self._talk = talk
        self._group = talk.group
        self._in_background = in_background
        self._per_rank = {GENERATORS, *per_rank}
        self._turns = Turns(lambda: self._running is threading.current_thread())
        self._number = 0
        self._running: threading.Thread | None = None
        self._failures: deque[SaveFailed] = deque()
        self._is_closed = False
        self._is_abandoned = False
        self._memory: RankMemory | None = None
        self._has_two_arenas = True
        self._agreed: bytes | None = None
        self._share: Share | None = None
        self._chooser = Chooser(repo, binding, policy, self._group.world_size)
        self.last_wait_ns = 0
        self.last_blocked_ns = 0
        leaving.drain_at_exit(self)

    def save(self, wish: Wish) -> SaveFuture:
        """Copy this rank's share of the items and have it stored. Collective.

        Raises:
            Conflict: the tag exists. Incompatible: something cannot be stored, on any rank. Nothing was copied.
            NoRoom: this rank's share exceeds ``max_host_memory``; the save fails on all ranks.
            RankLost: another rank ended.
            SaveFailed: an earlier save failed; this one is under way. Or this one, if it was to be waited for.
            MoonclipError: closed, or a forked child.
            ReadOnly: the store cannot be written from here.
        """
        self._turns.require_owner()
        self._repo.require_writable()
        started_ns = time.perf_counter_ns()
        self._repo.packs.close()
        with self.exclusively():
            self.wait()
            waited_ns = time.perf_counter_ns()
            future, part = self._begun(wish)
            failure = self._taken_failure()
            self._running = threading.Thread(target=self._finish, args=(wish, part, future), daemon=True)
            self._running.start()
            self.last_wait_ns = waited_ns - started_ns
            if not self._in_background:
                self._join()
            self.last_blocked_ns = time.perf_counter_ns() - waited_ns
        if part.captured_not is not None:
            raise part.captured_not
        if failure is not None:
            raise failure
        if not self._in_background and (failure := self._taken_failure()) is not None:
            raise failure.__cause__ or failure
        return future

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold this while altering the binding or the arenas, or talking with other ranks.

        Raises:
            MoonclipError: called in a callback of a Future, or in a signal handler that interrupted its holder.
        """
        with self._turns.exclusively():
            yield

    def wait(self) -> None:
        """Wait until the save under way has ended.

        Raises:
            MoonclipError: closed.
        """
        if self._is_closed:
            raise MoonclipError("this manager is closed; open another")
        self._join()

    def await_pushes(self) -> None:
        """There are none."""

    def raise_failure(self) -> None:
        """Tell of a save that failed, if nobody was told yet.

        Raises:
            SaveFailed: one did.
        """
        failure = self._taken_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait until all saves have ended and close the store; again does nothing.

        Raises:
            MoonclipError: called in a callback of a Future.
        """
        with self.exclusively():
            if self._is_closed:
                return
            self._join()
            self._is_closed = True
            self._ended()

    def abandon(self) -> None:
        """Close the store once all saves have ended, for a manager that was dropped. Does not wait, takes no lock."""
        self._is_abandoned = True
        if self._running is None or not self._running.is_alive():
            self._ended()

    def settle(self, root: Path) -> None:
        """Wait until all saves have ended if this is their store; not in a callback of a Future, nor in a child."""
        if self._repo.layout.root == root:
            self._join()

    def drain(self) -> list[str]:
        """Wait until all saves have ended, as the last act of the process.

        Returns:
            One line for each save that is lost and that nobody was told of.
        """
        if not self._turns.is_owner:
            return []
        self._join()
        return [f"{failure}; it was not committed" for failure in self._failures]

    def set_tag(self, name: str, commit: CommitId, *, overwrite: bool) -> None:
        """Put a tag on a commit. Rank 0's to do.

        Raises:
            Conflict: it exists and is not to be moved. Incompatible: no legal name, or this is not rank 0.
        """
        if self._group.rank != 0:
            raise Incompatible(f"rank {self._group.rank} sets no tags: do so on rank 0")
        tags.set_tag(self._repo, name, commit, overwrite=overwrite)

    # --- in the caller's time ---------------------------------------------------------------------------------------

    def _begun(self, wish: Wish) -> tuple[SaveFuture, RankPart]:
        """All ranks agree on who writes what, and each copies its share."""
        started_ns = time.perf_counter_ns()
        made: list[tuple[Holdings, bytes]] = []

        def offer() -> Node:
            if not wish.items:
                raise Incompatible("there is nothing to save; name at least one item, as in save(model=model)")
            holdings = Holdings(wish.items, self._policy, self._group.rank, self._per_rank)
            node = holdings.offer().encode()
            made.append((holdings, digest(node)))
            remembers = self._memory is not None and self._has_two_arenas
            return {"offer": None if made[0][1] == self._agreed else node, "remembers": remembers}

        try:
            answer = self._talk.exchange(offer, lambda said: self._chooser.answers(wish, said))
        except BaseException:
            self._agreed = None  # on every rank: the next save tells all again
            self._chooser.forget()
            raise
        [(holdings, self._agreed)] = made
        if answer["share"] is not None:
            self._share = Share.decode(answer["share"])
        assert self._share is not None
        flattened_ns = time.perf_counter_ns()
        part = self._captured(holdings.share(self._share), answer)
        future = SaveFuture()
        future.profile = {
            "flatten": (flattened_ns - started_ns) / 1e9,
            "capture": (time.perf_counter_ns() - flattened_ns) / 1e9,
        }
        return future, part

    def _captured(self, shared: Shared, answer: Node) -> RankPart:
        """Copied; or what kept it from being copied, which all ranks hear of when they wait for this one's part."""
        memory, self._memory = self._memory, None
        where = (self._repo.layout.root, answer["snapshot"], self._group.rank)
        try:
            capture = self._staging.capture(shared.states, is_last_committed=memory is not None)
            items = shared.items(capture.items, capture.arena)
        except Exception as error:  # noqa: BLE001 - told to all, then raised
            return RankPart(*where, (), None, self._repo.threads, error)
        self._has_two_arenas = capture.keeps_last or memory is None
        last = memory if answer["remember"] and capture.keeps_last else None
        return RankPart(*where, items, last, self._repo.threads)

    # --- in the background ------------------------------------------------------------------------------------------

    def _finish(self, wish: Wish, part: RankPart, future: SaveFuture) -> None:
        number, self._number = self._number, self._number + 1
        started_ns = time.perf_counter_ns()

        def tell(verdict: Verdict) -> None:
            future.profile["written"] = (time.perf_counter_ns() - started_ns) / 1e9
            if part.saved is not None:
                future.profile |= part.saved.seconds
            self._conclude(verdict, wish, part, future)

        unknown = Verdict(self._binding.branch, self._binding.tip)
        try:
            if self._group.rank == 0:
                with self._chooser.publishing(wish) as publisher:
                    lead(self._group, number, part, publisher.publish, publisher.judge, tell)
            else:
                follow(self._group, number, part, tell, unknown)
        except BaseException as error:  # noqa: BLE001 - belongs to the Future, as whatever ends a save
            if not future.done():
                tell(unknown._replace(error=error))
        finally:
            if self._is_abandoned:
                self._ended()

    def _conclude(self, verdict: Verdict, wish: Wish, part: RankPart, future: SaveFuture) -> None:
        if self._group.rank != 0:
            self._binding.bind(verdict.branch, verdict.tip)
        if verdict.commit is not None and part.saved is not None:
            self._memory = part.saved.memory
        if verdict.error is None:
            assert verdict.commit is not None
            future.set_result(verdict.commit.hex())
            return
        failure = failure_of(wish.step, verdict.error)
        if part.captured_not is None:  # else its caller was told
            self._failures.append(failure)
        future.set_exception(failure)

    def _ended(self) -> None:
        """All saves have ended, and there will be no more."""
        self._repo.close()
        self._staging.close()
        self._memory = None
        if not self._failures:  # else the exit handler still has something to tell
            leaving.spare(self)

    def _join(self) -> None:
        running = self._running
        if running is not None and running is not threading.current_thread() and self._turns.is_owner:
            running.join()

    def _taken_failure(self) -> SaveFailed | None:
        """The oldest failure that nobody was told of; from now on it counts as told."""
        try:
            return self._failures.popleft()
        except IndexError:
            return None
