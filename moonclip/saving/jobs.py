"""A save between its capture and its commit, and the Future that its caller holds."""

import os
import sys
import time
from collections.abc import Callable
from concurrent.futures import Future
from contextlib import suppress
from dataclasses import dataclass, field, replace
from queue import SimpleQueue

from store.errors import MoonclipError, NotUnchanged, SaveFailed
from store.ids import CommitId
from store.naming.tags import Better
from store.saving.arenas import Arena
from store.saving.ingest import Counts
from store.saving.saver import SaveRequest
from store.upkeep.retention import Keep
from store.worker.messages import Order, Outcome

from ..capture.capturing import Capture
from .binding import Binding


class SaveFuture(Future[str]):
    """The commit's hex id once it is durable. It cannot be cancelled.

    Attributes:
        profile: where the time went, in seconds by phase, complete once it is done: ``wait`` (for the save before),
            ``flatten``, ``capture`` and ``handover`` as they blocked the caller, ``written`` from the hand-over until
            the save was durable, ``finalize`` if there is such a callback; beside these, the engine's own phases.
        counts: chunks and bytes, likewise; ``None`` if it did not come to that.
        commit: the commit's hex id, once it is made: also where the Future has an error because something failed that
            comes after it.
    """

    def __init__(self) -> None:
        super().__init__()
        self.profile: dict[str, float] = {}
        self.counts: Counts | None = None
        self.commit: str | None = None
        self.set_running_or_notify_cancel()


@dataclass(slots=True)
class SaveJob:
    """A save that is to be made.

    Attributes:
        binding: its branch and tip when it is made: the save before may still move them.
        request: what to commit, without items.
        capture: the items.
        last: commit of the last save, if its arena still holds what was committed then.
        tag: name of a tag to put on the commit.
        overwrite: whether that tag may be moved, or when.
        keep: what to keep of all commits once it is made; ``None`` for everything.
        on_commit: told of the commit.
        on_failure: told of what went wrong, before the Future is.
        submit: has a save made in the background.
        is_awaited: whether its caller waits until a worker has it: all is captured, and there is such a process.
        finalize: told of the commit once it is published, before the Future is; ``None`` if nobody is.
        future: what the caller holds.
    """

    binding: Binding
    request: SaveRequest
    capture: Capture
    last: CommitId | None
    tag: str | None
    overwrite: bool | Better
    keep: Keep | None
    on_commit: Callable[[CommitId], None]
    on_failure: Callable[[SaveFailed], None]
    submit: Callable[["SaveJob"], None]
    is_awaited: bool = False
    finalize: Callable[[CommitId], None] | None = None
    future: SaveFuture = field(default_factory=SaveFuture)
    _handed_over_ns: int = 0
    _is_given: bool = False
    _gifts: "SimpleQueue[None]" = field(default_factory=SimpleQueue)  # no handler of a signal finds it half locked

    def order(self) -> tuple[Order, Arena]:
        """Wait until the state is captured.

        Returns:
            What to save, and the arena that it lies in.

        Raises:
            StateChanged: a tensor was altered before it was copied.
            BaseException: whatever else ended the copying.
        """
        self.capture.wait()
        self._handed_over_ns = time.perf_counter_ns()
        self.request = replace(self.request, items=self.capture.items, parent=self.binding.tip, left=self.binding.left)
        arena = self.capture.arena
        last = self.last if self.capture.keeps_last else None
        return Order(self.request, arena.number, last, self.tag, self.overwrite, self.keep), arena

    def given(self) -> None:
        """Hear that a worker has it, and makes it even if this process is killed; or that there is none."""
        if self.is_awaited and not self._is_given:
            self.future.profile["handover"] = (time.perf_counter_ns() - self._handed_over_ns) / 1e9
        self._let_go()

    def await_given(self) -> None:
        """Wait for that, unless it is still being captured; then it is given away once it is."""
        if self.is_awaited:
            self._gifts.get()

    def settle(self, outcome: Outcome) -> None:
        """Tell whoever waits what became of it.

        A save that was refused because the store no longer has what it calls unchanged is made again, with the bytes.
        """
        self._let_go()  # it may have ended before there was anything to give
        if isinstance(outcome.error, NotUnchanged) and self.capture.fill is not None:
            try:
                self.capture.fill()
                self.submit(self)
                return
            except BaseException as error:  # noqa: BLE001 - belongs to the Future, as whatever ends a save
                outcome = Outcome(error=error)
        fault = self.conclude(outcome)
        if fault is None:
            assert outcome.commit is not None
            self.future.set_result(outcome.commit.hex())
            return
        failure = failure_of(self.request.step, fault, self.future.commit)
        self.on_failure(failure)
        self.future.set_exception(failure)

    def _let_go(self) -> None:
        if not self._is_given:
            self._is_given = True
            self._gifts.put(None)

    def conclude(self, outcome: Outcome) -> BaseException | None:
        """Draw the conclusions for the saves that follow, and tell of a commit.

        Returns:
            What is wrong with the save after that.
        """
        error, self.future.counts = outcome.error, outcome.counts
        if outcome.commit is not None:
            self.binding.bind(self.binding.branch, outcome.commit)
            self.on_commit(outcome.commit)
            self.future.commit = outcome.commit.hex()
        elif outcome.error is not None:
            self.binding.follow(self.request, outcome.error)
        profile = self.future.profile
        if self._handed_over_ns:
            profile["written"] = (time.perf_counter_ns() - self._handed_over_ns) / 1e9
        profile |= outcome.seconds
        if outcome.commit is not None and error is None and self.finalize is not None:
            error = finalized(self.finalize, outcome.commit, profile)
        if os.environ.get("MOONCLIP_PROFILE", "") not in {"", "0"}:
            with suppress(OSError, ValueError):  # nobody reads it; the Future's callers still wait
                _print_profile(self.request.step, profile)
        return error


def finalized(
    finalize: Callable[[CommitId], None], commit: CommitId, profile: dict[str, float]
) -> BaseException | None:
    """Tell a person of a commit; gives what that raised, and puts into the profile how long it took."""
    started_ns = time.perf_counter_ns()
    try:
        finalize(commit)
    except BaseException as error:  # noqa: BLE001 - belongs to the save's Future
        return error
    finally:
        profile["finalize"] = (time.perf_counter_ns() - started_ns) / 1e9
    return None


def failure_of(step: int | None, error: BaseException, commit: str | None = None) -> SaveFailed:
    """What is told of a save that failed.

    Args:
        step: its step.
        error: what failed.
        commit: hex id of what was committed all the same.
    """
    what = "a save without a step" if step is None else f"the save of step {step}"
    reason = str(error) if isinstance(error, MoonclipError) else f"{type(error).__name__}: {error}"
    if commit is not None:
        reason = f"{reason}; it is committed all the same, as {commit[:8]}"
    failure = SaveFailed(f"{what} failed: {reason}", step=step, **({} if commit is None else {"commit": commit}))
    failure.__cause__ = error
    return failure


def _print_profile(step: int | None, profile: dict[str, float]) -> None:
    if sys.stderr is None:  # print would take stdout for it
        return
    title = "a save" if step is None else f"the save of step {step}"
    lines = [f"moonclip: {title}", *(f"  {phase:10} {seconds:9.4f} s" for phase, seconds in profile.items())]
    print("\n".join(lines), file=sys.stderr, flush=True)
