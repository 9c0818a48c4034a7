"""From a person's items to a commit: copied in the caller's time, stored and committed by a worker process."""

import time
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, nullcontext
from dataclasses import replace
from pathlib import Path

from store.errors import Incompatible, MoonclipError, PushFailed, SaveFailed
from store.format.entries import check_name
from store.ids import CommitId
from store.naming import tags
from store.repository import Repository
from store.saving.inputs import ItemInput
from store.saving.saver import SaveRequest, require_legal
from store.upkeep.collector import collector_paused
from store.upkeep.retention import Keep
from store.worker.client import Client
from store.worker.committing import Committer
from store.worker.messages import Outcome
from store.worker.pushes import Pushes

from ..capture.staging import Staging
from ..sharding.placed import assemble
from ..specs import Schema
from ..state.entries import FlatState
from ..state.items import flattened
from ..state.policy import Policy
from . import leaving
from .binding import Binding
from .gates import Gate
from .jobs import SaveFuture, SaveJob
from .precision import Precision
from .turns import Turns
from .untold import Untold, cut_short_by, raise_told
from .wishes import Wish


class Recorder:
    """Saves of one manager. Thread-safe; saves take turns.

    Args:
        repo: the store.
        binding: the branch to commit to; its tip moves with each save.
        policy: whether unknown objects may be pickled.
        staging: what states are copied into.
        in_background: whether saves are written by a process of their own.
        keep: what to keep of all commits after each save; ``None`` for everything.
        pushes: pushes that follow saves; ``None`` if none do.
        precision: which tensors are stored in a narrower dtype; ``None`` for no tensor.
        schema: what was said of items beforehand; ``None`` for nothing.
        gate: what to call on either side of a publication; ``None`` for nothing.

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
        *,
        in_background: bool,
        keep: Keep | None = None,
        pushes: Pushes | None = None,
        precision: Precision | None = None,
        schema: Schema | None = None,
        gate: Gate | None = None,
    ) -> None:
        self._repo = repo
        self._binding = binding
        self._policy = policy
        self._keep = keep
        self._precision = precision or Precision()
        self._schema = schema or Schema()
        self._gate = gate or Gate(repo, policy)
        self._turns = Turns(lambda: self._client is not None and self._client.is_current)
        self.push_turns = self._turns.for_others()
        self._staging = staging
        self._last: CommitId | None = None
        self._untold = Untold()
        self._pushes = pushes
        self._client = Client(repo, pushes, self._gate.approve) if in_background else None
        self._here: Committer | None = Committer(repo)
        self._is_closed = False
        self.last_wait_ns = 0
        self.last_blocked_ns = 0
        if in_background or pushes is not None:
            leaving.drain_at_exit(self)

    def save(self, wish: Wish) -> SaveFuture:
        """Copy the items and hand them over.

        Raises:
            Conflict: the tag exists. Incompatible: something cannot be stored. Nothing was copied.
            SaveFailed: an earlier save failed; this one is under way.
            MoonclipError: closed, a forked child, or in a callback of a Future.
            ReadOnly: the store cannot be written from here.
        """
        self._turns.require_owner()
        self._repo.require_writable()
        started_ns = time.perf_counter_ns()
        self._repo.packs.close()  # a resume left them open: what gc removes would take space as long as the run lasts
        future: SaveFuture | None = None
        failure: SaveFailed | None = None
        while future is None:
            with self.exclusively():
                self.wait()
                self._await_room()
                future, failure = self._save(wish, started_ns)
            if future is None:
                self._staging.guard.wait_for_updates()
        if failure is not None:
            raise failure
        return future

    @contextmanager
    def exclusively(self) -> Iterator[None]:
        """Hold this while altering the binding or the arenas. A forked child holds nothing: it was alone when it began.

        Raises:
            MoonclipError: called in a callback of a Future, which would wait for itself, or in a signal handler that
                interrupted its holder, whose half-captured state it would write over.
        """
        with self._turns.exclusively():
            yield

    def wait(self, within_s: float | None = None) -> bool:
        """Wait until all saves have ended; whether they have, if there is so much time only.

        Raises:
            MoonclipError: closed.
        """
        if self._is_closed:
            raise MoonclipError("this manager is closed; open another")
        return self._client is None or self._client.wait(within_s)

    def await_pushes(self) -> None:
        """Wait until the pushes that have come due have ended. Raises nothing for those that failed."""
        if self._pushes is not None and self._waits_for_others:
            self._pushes.await_all()

    @contextmanager
    def pushing(self) -> Iterator[None]:
        """Push inside of this, entered in a turn that ends before: saves go on, and no push follows them meanwhile."""
        with self._turns.aside(), nullcontext() if self._pushes is None else self._pushes.by_hand():
            yield

    def hurry(self) -> None:
        """From now on no save waits for the remote."""
        if self._pushes is not None:
            self._pushes.hurry()

    def raise_failure(self) -> None:
        """Tell of a save or push that failed, if nobody was told yet.

        Raises:
            SaveFailed: a save did; a note on it tells of a push that did as well.
            PushFailed: the last push did.
        """
        raise_told(self._taken_failure(), self._taken_push_failure())

    def close(self) -> None:
        """Wait until all saves have ended, end the worker and close the store; again does nothing.

        Raises:
            MoonclipError: called in a callback of a Future.
        """
        with self.exclusively():
            if self._is_closed:
                return
            if self._client is not None:
                self._client.close()
            elif self._pushes is not None:
                self._pushes.finish()
            self._is_closed = True
            self._ended()

    def abandon(self) -> None:
        """Close the store once all saves have ended, for a manager that was dropped. Does not wait, takes no lock."""
        if self._client is not None:
            self._client.stop(self._ended)
        elif self._pushes is None:
            self._repo.close()  # else once the last push is made, when the process ends

    def settle(self, root: Path) -> None:
        """Wait until all saves have ended if this is their store; not in a callback of a Future, nor in a child."""
        if self._client is not None and self._repo.layout.root == root:
            self._client.wait()

    def drain(self) -> list[str]:
        """Wait until all saves have ended, as the last act of the process.

        Returns:
            One line for each save that is lost, and for what a remote did not get, that nobody was told of.
        """
        if not self._turns.is_owner:
            return []
        try:
            if self._client is not None:
                self._client.drain()
            elif self._pushes is not None and not self._is_closed:
                self._pushes.finish()
        except BaseException as error:  # noqa: BLE001 - an impatient second Ctrl-C; a save is lost whatever it was
            return [cut_short_by(error)]
        return self._losses()

    def set_tag(self, name: str, commit: CommitId, *, overwrite: bool) -> None:
        """Put a tag on a commit.

        Raises:
            Conflict: it exists and is not to be moved. Incompatible: no legal name.
        """
        tags.set_tag(self._repo, name, commit, overwrite=overwrite)

    # --- how --------------------------------------------------------------------------------------------------------

    def _described(self, wish: Wish) -> tuple[SaveRequest, dict[str, FlatState]]:
        """The request without its tensors, and where those are. Refuses all that cannot be stored; copies nothing."""
        if not wish.items:
            raise Incompatible("there is nothing to save; name at least one item, as in save(model=model)")
        self._schema.require(wish.items, "the save")
        if wish.tag is not None and not wish.overwrite:
            tags.require_free_tag(self._repo, wish.tag)
        request = replace(wish.request(self._binding, self._policy), items=[ItemInput(item, {}) for item in wish.items])
        require_legal(request)
        states = flattened(wish.items, self._policy)
        for item in self._schema.resharders.keys() & states.keys():
            assemble(states[item], self._schema.resharders[item], item)
        for state in states.values():
            for name in state.entries:
                check_name(name)
        self._precision.mark(states)
        self._binding.doubt_the_step(request.step)
        return request, states

    def _save(self, wish: Wish, started_ns: int) -> tuple[SaveFuture | None, SaveFailed | None]:
        """Capture and hand over, and what became of an earlier save. No Future while another thread updates the state.

        It may be about to save, and would wait for the lock that we hold: so we do not wait for it here.
        """
        waited_ns = time.perf_counter_ns()
        with self._staging.guard.capturing() as is_ours, collector_paused():
            if not is_ours:
                return None, None
            request, states = self._described(wish)
            flattened_ns = time.perf_counter_ns()
            job = self._captured(wish, request, states)
            del states  # before the collector looks at it: it is as many objects as what is handed over
        job.future.profile = {
            "wait": (waited_ns - started_ns) / 1e9,
            "flatten": (flattened_ns - waited_ns) / 1e9,
            "capture": (time.perf_counter_ns() - flattened_ns) / 1e9,
        }
        failure = self._taken_failure()  # before this save can add its own
        self._hand_over(job)
        self.last_wait_ns = waited_ns - started_ns
        self.last_blocked_ns = time.perf_counter_ns() - waited_ns
        return job.future, failure

    def _captured(self, wish: Wish, request: SaveRequest, states: Mapping[str, FlatState]) -> SaveJob:
        # The capture goes where the save before the last one lies: if it is not committed, whatever ends it, the
        # arenas no longer hold what the last save's entries say.
        last, self._last = self._last, None
        capture = self._staging.capture(
            states, wish.items.values(), is_last_committed=last is not None, lent=self._schema.lent
        )
        return SaveJob(
            binding=self._binding,
            request=request,
            capture=capture,
            last=last,
            tag=wish.tag,
            overwrite=wish.overwrite,
            keep=self._keep,
            on_commit=self._note_commit,
            on_failure=self._untold.add,
            submit=self._hand_over,
            is_awaited=self._client is not None and capture.is_done,
            finalize=self._gate.finalize,
            future=wish.future,
        )

    def _hand_over(self, job: SaveJob) -> None:
        if self._client is None:
            self._save_here(job)
            return
        self._client.submit(job)
        if not self._client.is_current:
            job.await_given()
        has_failed = job.future.exception() is not None if self._client.is_drained else False
        if has_failed or (self._client.is_drained and self._pushes is not None and self._pushes.has_failure):
            leaving.give_up(self._losses())  # nobody will be there to be told later

    def _save_here(self, job: SaveJob) -> None:
        """In the caller's thread, who is told of the error itself."""
        assert self._here is not None
        order, arena = job.order()
        if self._pushes is not None:
            order = self._pushes.marked(order)
        try:
            outcome = self._here.commit(order, arena.memory, self._gate.approve)
            if self._pushes is not None:
                self._pushes.note(order, outcome, by_worker=False)
        except BaseException as error:
            job.conclude(Outcome(error=error))
            raise
        fault = job.conclude(outcome)
        if fault is not None:
            raise fault
        assert outcome.commit is not None
        job.future.set_result(outcome.commit.hex())
        self._here.tidier.prune()
        if self._pushes is not None:
            self._pushes.push_here()

    def _await_room(self) -> None:
        if self._pushes is not None and self._waits_for_others:
            self._pushes.await_room()

    @property
    def _waits_for_others(self) -> bool:
        """Whether somebody else works for the caller: in a fork, or in a Future's callback, nobody does."""
        return self._client is not None and not self._client.is_foreign and not self._client.is_current

    def _note_commit(self, commit: CommitId) -> None:
        self._last = commit

    def _ended(self) -> None:
        """All saves have ended, and there will be no more: give up the store, the arenas, and what views them."""
        self._repo.close()
        self._staging.close()
        self._here = None
        if not self._untold and (
            self._pushes is None or not self._pushes.has_failure
        ):  # else the exit handler still has something to tell
            leaving.spare(self)

    def _taken_failure(self) -> SaveFailed | None:
        """The oldest failure that nobody was told of, unless that is another process's to tell."""
        return None if self._client is None or self._client.is_foreign else self._untold.taken()

    def _taken_push_failure(self) -> PushFailed | None:
        return None if self._pushes is None or not self._turns.is_owner else self._pushes.taken_failure()

    def _losses(self) -> list[str]:
        return self._untold.losses(self._taken_push_failure())
