"""Saves of one manager of several ranks: what :class:`~moonclip.saving.recording.Recorder` does for one process."""

import threading
import time
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from concurrent.futures import InvalidStateError
from contextlib import contextmanager, suppress
from functools import partial
from pathlib import Path
from typing import Any, NamedTuple

from store.errors import Incompatible, MoonclipError, SaveFailed
from store.format.canonical import Node
from store.ids import CommitId
from store.naming import tags
from store.repository import Repository
from store.saving.rankbases import RankMemory
from store.saving.shards import RankItem

from ..capture.capturing import Capture
from ..capture.staging import Staging
from ..saving import leaving
from ..saving.binding import Binding
from ..saving.gates import Gate
from ..saving.jobs import SaveFuture, failure_of, finalized
from ..saving.precision import Precision
from ..saving.turns import Turns
from ..saving.untold import Untold, cut_short_by, raise_told
from ..saving.wishes import Wish
from ..specs import Schema
from ..state.items import GENERATORS
from ..state.policy import Policy
from .aftercare import Aftercare
from .agreeing import Agreement
from .choosing import Chooser
from .group import LARGEST, SCALES
from .holdings import Shared, Terms
from .saving import RankPart, Verdict, follow, lead
from .scaling import agreed_scales
from .talk import Talk


class _Begun(NamedTuple):
    """A save that is under way, and an earlier one that failed and nobody was told of."""

    part: RankPart
    earlier: SaveFailed | None


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
        precision: which tensors are stored in a narrower dtype; ``None`` for no tensor.
        schema: what was said of items beforehand; ``None`` for nothing.
        gate: what to call on either side of a publication, on rank 0; ``None`` for nothing.
        aftercare: what follows saves, on rank 0.
        checks_copies: whether ranks compare what they have copies of. What rank 0 was given counts.

    Attributes:
        last_wait_ns: how long the last save waited for the one before it.
        last_blocked_ns: how long it took its caller beyond that.
        push_turns: whose turn it is to push.
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
        aftercare: Aftercare,
        checks_copies: bool = False,
        per_rank: Collection[str] = (),
        precision: Precision | None = None,
        schema: Schema | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._repo = repo
        self._binding = binding
        self._staging = staging
        self._group = talk.group
        self._scaling = partial(agreed_scales, Talk(talk.group, (LARGEST, SCALES)))
        self._gate = gate or Gate(repo, policy)
        self._aftercare = aftercare
        self._in_background = in_background
        self._turns = Turns(lambda: self._running is threading.current_thread())
        self.push_turns = self._turns.for_others()
        self._number = 0
        self._running: threading.Thread | None = None
        self._untold = Untold()
        self._is_closed = False
        self._is_abandoned = False
        self._memory: RankMemory | None = None
        self._has_two_arenas = True
        schema, size = schema or Schema(), self._group.world_size
        self._chooser = Chooser(repo, binding, policy, size, self._gate.approve, checks_copies=checks_copies)
        kept_apart, precision = {GENERATORS, *per_rank}, precision or Precision()
        terms = Terms(policy, self._group.rank, kept_apart, precision, schema.resharders, {})
        self._lent = schema.lent
        self._agreement = Agreement(talk, self._chooser, terms, schema)
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
        begun: _Begun | None = None
        while begun is None:
            with self.exclusively():
                begun = self._save(wish, started_ns)
            if begun is None:
                self._staging.guard.wait_for_updates()
        part, failure = begun
        if part.captured_not is not None:
            raise part.captured_not
        if failure is not None:
            raise failure
        if not self._in_background and (failure := self._untold.taken()) is not None:
            raise failure.__cause__ or failure
        return wish.future

    def expect(self, items: Mapping[str, Any], *, at_once: bool) -> None:
        """Get memory ready for this rank's share of items. Collective, for who has the turn.

        Args:
            items: by name.
            at_once: have it when this returns, and not some time later.

        Raises:
            Incompatible: something cannot be stored, on any rank.
            NoRoom: this rank's share exceeds ``max_host_memory``.
            MemoryError: there is no address space for it; with ``at_once``, or no memory.
            RankLost: another rank ended.
        """
        self._staging.expect(self._agreement.share_out(items).states, at_once=at_once)

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold this while altering the binding or the arenas, or talking with other ranks.

        Raises:
            MoonclipError: called in a callback of a Future, or in a signal handler that interrupted its holder.
        """
        with self._turns.exclusively():
            yield

    def wait(self, within_s: float | None = None) -> bool:
        """Wait until the save under way has ended; whether it has, if there is so much time only.

        Raises:
            MoonclipError: closed.
        """
        if self._is_closed:
            raise MoonclipError("this manager is closed; open another")
        return self._join(within_s)

    def await_pushes(self) -> None:
        """Wait until the pushes that have come due have ended, on rank 0. Raises nothing for those that failed."""
        if self._turns.is_owner:
            self._aftercare.await_pushes()

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Push inside of this, entered in a turn that ends before: saves go on, and no push follows them meanwhile."""
        with self._turns.aside(), self._aftercare.by_hand():
            yield

    def hurry(self) -> None:
        """From now on no save waits for the remote."""
        self._aftercare.hurry()

    def raise_failure(self) -> None:
        """Tell of a save or, on rank 0, of a push that failed, if nobody was told yet.

        Raises:
            SaveFailed: a save did; a note on it tells of a push that did as well.
            PushFailed: the last push did.
        """
        raise_told(self._untold.taken(), self._aftercare.taken_failure() if self._turns.is_owner else None)

    def close(self) -> None:
        """Wait until all saves have ended and close the store; again does nothing.

        Raises:
            MoonclipError: called in a callback of a Future.
        """
        with self.exclusively():
            if self._is_closed:
                return
            self._join()
            self._aftercare.finish()
            self._is_closed = True
            self._ended()

    def abandon(self) -> None:
        """Close the store once all saves have ended, for a manager that was dropped. Does not wait, takes no lock."""
        if self._aftercare.may_push:  # the last push is made when the process ends
            return
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
            One line for each save that is lost, and for what a remote did not get, that nobody was told of.
        """
        if not self._turns.is_owner:
            return []
        try:
            self._join()
            if not self._is_closed:
                self._aftercare.finish()
        except BaseException as error:  # noqa: BLE001 - an impatient second Ctrl-C; a save is lost whatever it was
            return [cut_short_by(error)]
        return self._untold.losses(self._aftercare.taken_failure())

    def set_tag(self, name: str, commit: CommitId, *, overwrite: bool) -> None:
        """Put a tag on a commit. Rank 0's to do.

        Raises:
            Conflict: it exists and is not to be moved. Incompatible: no legal name, or this is not rank 0.
        """
        if self._group.rank != 0:
            raise Incompatible(f"rank {self._group.rank} sets no tags: do so on rank 0")
        tags.set_tag(self._repo, name, commit, overwrite=overwrite)

    # --- in the caller's time ---------------------------------------------------------------------------------------

    def _save(self, wish: Wish, started_ns: int) -> _Begun | None:
        """Begin a save, and end it if nobody is to go on meanwhile. ``None`` while another thread updates the state.

        It may be about to save, and would wait for the lock that we hold: so we do not wait for it here.
        """
        self.wait()
        self._aftercare.await_room()
        waited_ns = time.perf_counter_ns()
        with self._staging.guard.capturing() as is_ours:
            if not is_ours:
                return None
            future, part = self._begun(wish)
        future.profile["wait"] = (waited_ns - started_ns) / 1e9
        failure = self._untold.taken()
        self._running = threading.Thread(target=self._finish, args=(wish, part, future), daemon=True)
        self._running.start()
        self.last_wait_ns = waited_ns - started_ns
        if not self._in_background:
            self._join()
        self.last_blocked_ns = time.perf_counter_ns() - waited_ns
        return _Begun(part, failure)

    def _begun(self, wish: Wish) -> tuple[SaveFuture, RankPart]:
        """All ranks agree on who writes what, and each copies its share."""
        started_ns = time.perf_counter_ns()
        remembers = self._memory is not None and self._has_two_arenas
        shared, answer = self._agreement.begin(wish, remembers=remembers, skips=self._staging.skips)
        flattened_ns = time.perf_counter_ns()
        part = self._captured(shared, wish.items.values(), answer)
        future = wish.future
        future.profile = {
            "flatten": (flattened_ns - started_ns) / 1e9,
            "capture": (time.perf_counter_ns() - flattened_ns) / 1e9,
        }
        return future, part

    def _captured(self, shared: Shared, items: Collection[Any], answer: Node) -> RankPart:
        """Copied; or what kept it from being copied, which all ranks hear of when they wait for this one's part."""
        memory, self._memory = self._memory, None
        where = (self._repo.layout.root, answer["snapshot"], self._group.rank)
        tools = (self._repo.threads, self._repo.files)
        scaling = self._scaling if answer["scaled"] else None
        try:
            is_known = memory is not None and bool(answer["remember"])
            lent = self._lent
            capture = self._staging.capture(shared.states, items, is_last_committed=is_known, lent=lent)
            given = _given(shared, capture)
        except BaseException as error:  # noqa: BLE001 - told to all, also an interrupt, then raised
            return RankPart(*where, _nothing, None, *tools, error, scaling)
        self._has_two_arenas = capture.keeps_last or memory is None
        last = memory if answer["remember"] and capture.keeps_last else None
        return RankPart(*where, given, last, *tools, scaling=scaling)

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
                with self._chooser.publishing(wish) as publisher, self._aftercare.making_way():
                    lead(self._group, number, part, publisher.publish, publisher.judge, tell, unknown)
                if publisher.commit is not None and part.saved is not None:
                    stored_bytes = part.saved.counts.stored_bytes * self._group.world_size
                    self._aftercare.follow(wish, publisher.branch, publisher.commit, stored_bytes)
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
        future.counts = None if part.saved is None else part.saved.counts
        future.commit = None if verdict.commit is None else verdict.commit.hex()
        fault = verdict.error
        if fault is None and verdict.commit is not None and self._group.rank == 0 and self._gate.finalize is not None:
            fault = finalized(self._gate.finalize, verdict.commit, future.profile)
        if fault is None:
            assert verdict.commit is not None
            future.set_result(verdict.commit.hex())
            return
        failure = failure_of(wish.step, fault, future.commit)
        if part.captured_not is None:  # else its caller was told
            self._untold.add(failure)
        with suppress(InvalidStateError):  # its caller may have said so himself, to whoever is told of saves
            future.set_exception(failure)

    def _ended(self) -> None:
        """All saves have ended, and there will be no more."""
        self._repo.close()
        self._staging.close()
        self._group.close()
        self._memory = None
        if not self._untold and not self._aftercare.has_failure:  # else the exit handler still has something to tell
            leaving.spare(self)

    def _join(self, within_s: float | None = None) -> bool:
        running = self._running
        if running is None or running is threading.current_thread() or not self._turns.is_owner:
            return True
        running.join(within_s)
        return not running.is_alive()


def _given(shared: Shared, capture: Capture) -> Callable[[bool], Sequence[RankItem]]:
    """What a part is made of. Of a copy that is complete no more is kept, and nothing of the state itself."""
    if capture.is_done and capture.fill is None:
        items = shared.items(capture.items, capture.arena)
        return lambda _: items

    def copied(in_full: bool) -> Sequence[RankItem]:  # noqa: FBT001 - called by position
        capture.wait()
        if in_full and capture.fill is not None:
            capture.fill()
        return shared.items(capture.items, capture.arena)

    return copied


def _nothing(_: bool) -> Sequence[RankItem]:  # noqa: FBT001 - called by position
    return ()
