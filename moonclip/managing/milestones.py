"""Saves that stand out: the best so far, which has a name that moves, and the last of a run."""

import logging
import math
import time
from collections.abc import Callable, Mapping
from concurrent.futures import Future, wait
from threading import Thread
from typing import TYPE_CHECKING, Any, Final, SupportsFloat

from store.errors import DeadlinePassed, Incompatible, MoonclipError, PushFailed, SaveFailed
from store.format.canonical import Node
from store.limits import FINAL_REPACK_BYTES
from store.naming.refnames import tag_name
from store.naming.tags import Better, is_lower_better
from store.repack import repack
from store.repository import Repository

from ..saving.jobs import SaveFuture
from .givens import placed, tell_of_slips

if TYPE_CHECKING:
    from ..ranks.recorder import RankRecorder
    from ..ranks.talk import Talk
    from ..saving.recording import Recorder
    from .remoteargs import Link

_log = logging.getLogger("moonclip")

BEST: Final = "best"
"""Tag of the best commit, unless another is asked for."""


class Milestones:
    """The best save and the last one, as methods of a manager."""

    _repo: Repository
    _recorder: "Recorder | RankRecorder"
    _talk: "Talk | None"
    _link: "Link | None"
    save: Callable[..., SaveFuture]
    sync_now: Callable[[], Any]
    _final_push: Thread | None = None

    def save_best(
        self,
        step: int,
        metric: SupportsFloat | None,
        *objects: Any,
        metric_name: str = "val_loss",
        lower_is_better: bool | None = None,
        tag: str = BEST,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        rng: bool = False,
        **items: Any,
    ) -> SaveFuture | None:
        """Save if a metric is better than that of every save before it, and have a tag point at the commit.

            mgr.save_best(step, val_loss, model=model, optimizer=optimizer)
            mgr.load("best", model=model)

        The tag's commit remembers the metric and which way is better, so the best is known to whoever opens the store
        next; a save that failed never was the best. It waits for the saves under way. If another run saves something
        better under the same tag meanwhile, the tag stays there.

        Args:
            step: training step.
            metric: the number. One that is NaN or infinite is never best. Of several ranks rank 0's counts; the others
                may give ``None``.
            *objects: model, optimizer, scheduler and scaler may be given by position.
            metric_name: what the number is called in the commit's metadata.
            lower_is_better: whether it is a loss; else the higher the better. If ``None``, as the tag's commit says, or
                for the first: true.
            tag: name of the tag; a branch of experiments may want one of its own.
            metadata: more values to keep with the commit.
            message: what a person should know of it.
            rng: see :meth:`save`.
            **items: items by name.

        Returns:
            The commit's hex id once it is durable; ``None`` if the metric is no better.

        Raises:
            Conflict: the tag exists, and its commit says nothing of such a metric, or was the best the other way round.
            Incompatible: the metric is no number; or see :meth:`save`, which raises more.
            SaveFailed: an earlier save failed.
        """
        tell_of_slips(Milestones.save_best, items)
        given = placed(objects, items)
        with self._recorder.exclusively():
            self._recorder.wait()
            better = self._said_by_rank_0(lambda: self._if_better(metric, metric_name, tag, is_lower=lower_is_better))
        if better is None:
            return None
        said = {**(metadata or {}), **better.metadata()}
        return self.save(tag, step=step, metadata=said, message=message, overwrite=better, rng=rng, **given)

    def save_final(
        self,
        step: int | None = None,
        *objects: Any,
        deadline_s: float | None = None,
        tag: str | None = None,
        metadata: Mapping[str, Any] | None = None,
        message: str = "",
        rng: bool = False,
        **items: Any,
    ) -> str:
        """Save for the last time: wait until that is durable, push it to the manager's remote, tidy up a small store.

        A save that failed before does not keep this one from being made; it is raised once this one is.

        Args:
            step: training step.
            *objects: model, optimizer, scheduler and scaler may be given by position.
            deadline_s: be back in so many seconds. The commit comes first; a push is begun in the time that is left and
                goes on after it, until the process ends: what it brought by then counts, and its branches move last.
                :meth:`close` waits for it. Nothing is tidied up. Copying the state takes the time it takes.
            tag: a tag to put on the commit; it is moved if it exists.
            metadata: values to keep with the commit, beside ``"final": True``.
            message: what a person should know of it.
            rng: see :meth:`save`.
            **items: items by name.

        Returns:
            The commit's hex id. It is durable.

        Raises:
            SaveFailed: this save failed, or an earlier one.
            DeadlinePassed: it is not durable yet. It is still being written, even if this process is killed. Or the
                save before it is, and this one was not begun.
            PushFailed: an earlier push failed, of which nobody was told.
            RemoteError: the remote does not take it; it is durable here.
            Incompatible: see :meth:`save`, which raises more.
        """
        until = None if deadline_s is None else time.monotonic() + deadline_s
        tell_of_slips(Milestones.save_final, items)
        said = {**(metadata or {}), "final": True}
        given = placed(objects, items)
        if until is not None:
            self._recorder.hurry()
        earlier = self._earlier_failure(step, until)
        try:
            future = self.save(tag, step=step, metadata=said, message=message, overwrite=True, rng=rng, **given)
            commit = self._durable(future, step, until)
            self._send(until)
        except Exception as failure:
            if earlier is not None:
                failure.add_note(f"before that, {earlier}")
            raise
        if until is None and self._is_first:
            _tidy_up(self._repo)
        if earlier is not None:
            raise earlier
        return commit

    # --- how --------------------------------------------------------------------------------------------------------

    @property
    def _is_first(self) -> bool:
        """Whether this is rank 0, or alone."""
        return self._talk is None or self._talk.group.rank == 0

    def _durable(self, future: SaveFuture, step: int | None, until: float | None) -> str:
        if wait([future], _left_s(until)).not_done:
            goes_on = ", also if this process is killed" if self._talk is None else ""
            told = f"the final save of step {step} is not durable yet; it is being written{goes_on}"
            raise DeadlinePassed(told, step=step)
        self._recorder.raise_failure()  # its own: the future's would be told once more
        return future.result()

    def _said_by_rank_0(self, choose: Callable[[], Better | None]) -> Better | None:
        if self._talk is None:
            return choose()

        def spelled() -> Node:  # ranks exchange no floats
            chosen = choose()
            return None if chosen is None else [chosen.key, chosen.number.hex(), chosen.is_lower]

        said = self._talk.decide(spelled)
        return None if said is None else Better(said[0], float.fromhex(said[1]), said[2])

    def _if_better(self, metric: Any, name: str, tag: str, *, is_lower: bool | None) -> Better | None:
        """A metric as a number, if it is better than the tag's."""
        number = _number(metric, name)
        if not math.isfinite(number):
            _log.warning("%s is %s, which is never best: nothing was saved", name, number)
            return None
        best = self._repo.refs.read(tag_name(tag))
        if is_lower is None:
            known = is_lower_better(self._repo, best, name)
            is_lower = True if known is None else known
        better = Better(name, number, is_lower)
        return better if better.beats(self._repo, best, tag) else None

    def _earlier_failure(self, step: int | None, until: float | None) -> MoonclipError | None:
        with self._recorder.exclusively():  # a callback of a Future, which would wait for itself, is told so
            if not self._all_say(is_over=self._recorder.wait(_left_s(until))):
                told = f"the final save of step {step} was not begun: the one before it is not durable yet"
                raise DeadlinePassed(f"{told}; that one goes on", step=step)
        try:
            self._recorder.raise_failure()
        except (SaveFailed, PushFailed) as failure:
            return failure
        return None

    def _all_say(self, *, is_over: bool) -> bool:
        """Whether all ranks say so: where one does not go on, the others would wait for it in what comes next."""
        if self._talk is None:
            return is_over
        return bool(self._talk.exchange(lambda: is_over, lambda said: [all(said)] * len(said)))

    def _send(self, until: float | None) -> None:
        """Push to the manager's remote, and be back within the time that is left."""
        if self._link is None or not self._is_first:
            return
        if until is None:
            self.sync_now()
            return
        pushed: Future[None] = Future()
        self._final_push = Thread(target=_settle, args=(pushed, self.sync_now), name="moonclip-final-push", daemon=True)
        self._final_push.start()
        if wait([pushed], _left_s(until)).not_done:
            _log.warning("the final commit is durable, but not all of it is pushed yet: that goes on until the end")
            pushed.add_done_callback(_tell)
            return
        pushed.result()

    def _await_final_push(self) -> None:
        """Wait for a push that outlasted its deadline; it may not even have had its turn yet."""
        if self._final_push is not None:
            with self._recorder.exclusively():  # a callback of a Future, for which the push waits, is told so
                pass
            self._final_push.join()


def _number(metric: Any, name: str) -> float:
    try:
        return float(metric.item() if hasattr(metric, "item") else metric)  # a loss still has its graph
    except (TypeError, ValueError, RuntimeError, OverflowError) as error:
        raise Incompatible(f"{name} is {metric!r:.60}, which is no number: {error}") from error


def _settle(done: Future[None], act: Callable[[], Any]) -> None:
    try:
        act()
    except BaseException as failure:  # noqa: BLE001 - whoever waits raises it
        done.set_exception(failure)
    else:
        done.set_result(None)


def _tell(pushed: Future[None]) -> None:
    """Say what became of a push that nobody waits for any more."""
    failure = pushed.exception()
    if failure is None:
        _log.info("the final commit is pushed")
    else:
        _log.warning("the final commit is not pushed: %s", failure)


def _left_s(until: float | None) -> float | None:
    return None if until is None else max(0.0, until - time.monotonic())


def _tidy_up(repo: Repository) -> None:
    """Put small packs together where that takes little time. Nobody waits for it, so a failure is only told."""
    if repo.packs.total_bytes() > FINAL_REPACK_BYTES:
        return
    try:
        repack(repo)
    except (MoonclipError, OSError) as error:
        _log.warning("small packs were not put together after the final save: %s", error)
