"""What a person is told of every save and load that has ended."""

import logging
import time
from collections.abc import Callable, Iterator, Mapping
from concurrent.futures import Future, InvalidStateError
from contextlib import contextmanager, suppress
from dataclasses import dataclass, field
from typing import Literal

from store.errors import SaveFailed
from store.format.objects import Commit
from store.saving.ingest import Counts

from .jobs import SaveFuture

_log = logging.getLogger("moonclip")


@dataclass(frozen=True, slots=True)
class Event:
    """A save or load that has ended, well or not. Of several ranks each tells of its own part.

    Attributes:
        kind: which of the two.
        step: the training step, if there is one.
        commit: full id, hex; ``None`` if it did not come to one.
        seconds: where the time went, by phase. Of a save see :attr:`SaveFuture.profile`. Of a load: ``wait`` for
            pending saves and the commit, ``compare`` with the targets, ``read`` and ``place`` what is no tensor.
        given_bytes: tensors that were handed to a save, or read by a load; those that sit in trees are not counted.
        new_bytes: those that the store did not have.
        stored_bytes: what they take in packs, compressed, with trees and commit.
        waited_s: how long the caller waited for the save before, seconds.
        blocked_s: how long it was kept beyond that, seconds: a save until its state was captured and handed over, or
            durable without ``async_save``; a load to its end.
        error: what ended it.
    """

    kind: Literal["save", "load"]
    step: int | None
    commit: str | None
    seconds: Mapping[str, float]
    given_bytes: int
    new_bytes: int
    stored_bytes: int
    waited_s: float
    blocked_s: float
    error: BaseException | None = None


@dataclass(slots=True)
class Loading:
    """A load, as it goes on. Of one thread.

    Attributes:
        commit: what is loaded, once it is known.
        seconds: by phase.
        read_bytes: of tensors.
    """

    commit: Commit | None = None
    seconds: dict[str, float] = field(default_factory=dict)
    read_bytes: int = 0

    @contextmanager
    def phase(self, name: str) -> Iterator[None]:
        """Count the seconds that pass inside."""
        started = time.perf_counter()
        try:
            yield
        finally:
            self.seconds[name] = self.seconds.get(name, 0.0) + time.perf_counter() - started


class Reports:
    """Tells of what has ended. What the callback raises is logged, and costs nothing else.

    Args:
        on_event: told; ``None`` for nobody.
        in_background: whether saves go on after their caller has been let go.
    """

    def __init__(self, on_event: Callable[[Event], None] | None, *, in_background: bool) -> None:
        self._on_event = on_event
        self._in_background = in_background

    @contextmanager
    def saving(self, step: int | None, future: SaveFuture) -> Iterator[None]:
        """Hand the save over inside of this. What is refused before is told of as well."""
        if self._on_event is None:
            yield
            return
        future.add_done_callback(lambda done: self._saved(step, future, done))
        try:
            yield
        except BaseException as error:
            is_under_way = self._in_background and (isinstance(error, SaveFailed) or not isinstance(error, Exception))
            if not (future.done() or is_under_way):  # an earlier save failed, or an interrupt came: this one goes on
                with suppress(InvalidStateError):  # the save's own thread may be as far meanwhile
                    future.set_exception(error)
            raise

    @contextmanager
    def loading(self) -> Iterator[Loading]:
        """Load inside of this."""
        loading = Loading()
        started = time.perf_counter()
        error: BaseException | None = None
        try:
            yield loading
        except BaseException as raised:
            error = raised
            raise
        finally:
            self._loaded(loading, time.perf_counter() - started, error)

    def _saved(self, step: int | None, future: SaveFuture, done: "Future[str]") -> None:
        profile, counts, error = dict(future.profile), future.counts or Counts(), done.exception()
        blocked = ("flatten", "capture", "handover" if self._in_background else "written")
        self._tell(
            Event(
                kind="save",
                step=step,
                commit=future.commit if error is not None else done.result(),
                seconds=profile,
                given_bytes=counts.raw_bytes,
                new_bytes=counts.new_raw_bytes,
                stored_bytes=counts.stored_bytes,
                waited_s=profile.get("wait", 0.0),
                blocked_s=sum(profile.get(phase, 0.0) for phase in blocked),
                error=error,
            )
        )

    def _loaded(self, loading: Loading, seconds: float, error: BaseException | None) -> None:
        waited_s, commit = loading.seconds.get("wait", 0.0), loading.commit
        self._tell(
            Event(
                kind="load",
                step=None if commit is None else commit.step,
                commit=None if commit is None else commit.id.hex(),
                seconds=dict(loading.seconds),
                given_bytes=loading.read_bytes,
                new_bytes=0,
                stored_bytes=0,
                waited_s=waited_s,
                blocked_s=seconds - waited_s,
                error=error,
            )
        )

    def _tell(self, event: Event) -> None:
        if self._on_event is None:
            return
        try:
            self._on_event(event)
        except Exception:  # noqa: BLE001 - what is only told of must not fail for that
            _log.exception("on_event ended with an error; the %s that it was told of did not", event.kind)
