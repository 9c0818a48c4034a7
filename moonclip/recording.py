"""From a person's items to a commit: copied in the caller's time, stored and committed in the background's."""

import operator
import os
import threading
import time
from collections.abc import Iterator, Mapping
from concurrent.futures import Future
from contextlib import contextmanager
from dataclasses import dataclass, replace
from typing import Any

from store.bases import LastSave
from store.entries import check_name
from store.errors import Conflict, Incompatible, MoonclipError, SaveFailed
from store.ids import CommitId, from_hex
from store.inputs import ItemInput
from store.refnames import tag_name
from store.refs import NotDurable
from store.repository import Repository
from store.saving import SaveRequest, require_legal
from store.values import Plain

from .binding import Binding
from .entries import FlatState
from .items import state_of
from .policy import Policy
from .saver import SaveThread
from .staging import Staging
from .state import flatten
from .values import to_plain


@dataclass(frozen=True, slots=True)
class Wish:
    """What a person asked to be committed.

    Attributes:
        items: by name.
        tag: name of a tag to put on the commit.
        overwrite: whether that tag may be moved.
        step: training step.
        metadata: values by name.
        message: what to say of the commit.
    """

    items: Mapping[str, Any]
    tag: str | None = None
    overwrite: bool = False
    step: int | None = None
    metadata: Mapping[str, Any] | None = None
    message: str = ""


class Recorder:
    """Saves of one manager. Thread-safe; saves take turns.

    Args:
        repo: the store.
        binding: the branch to commit to; its tip moves with each save.
        policy: whether unknown objects may be pickled.
        in_background: whether saves are written by a thread of their own.

    Attributes:
        last_wait_ns: how long the last save waited for the one before it.
        last_blocked_ns: how long it took its caller beyond that.
    """

    def __init__(self, repo: Repository, binding: Binding, policy: Policy, *, in_background: bool) -> None:
        self._repo = repo
        self._binding = binding
        self._policy = policy
        self._pid = os.getpid()
        self._lock = threading.RLock()  # re-entered by a handler that runs before the holder is known
        self._holder: int | None = None
        self._staging = Staging(repo.threads)
        self._last_save: LastSave | None = None
        self._thread = SaveThread() if in_background else None
        self._is_closed = False
        self.last_wait_ns = 0
        self.last_blocked_ns = 0

    def save(self, wish: Wish) -> Future[str]:
        """Copy the items and hand them over.

        Raises:
            Conflict: the tag exists. Incompatible: something cannot be stored. Nothing was copied.
            SaveFailed: an earlier save failed; this one is under way.
            MoonclipError: closed, a forked child, or in a callback of a Future.
            ReadOnly: the store cannot be written from here.
        """
        self._require_owner()
        self._repo.require_writable()
        with self.exclusively():
            started_ns = time.perf_counter_ns()
            self.wait()
            waited_ns = time.perf_counter_ns()
            request, states = self._described(wish)
            # The capture goes where the save before the last one lies: if it is not committed, whatever ends it, the
            # arenas no longer hold what the last save's entries say.
            last, self._last_save = self._last_save, None
            request = replace(request, items=self._staging.capture(states), last=last)
            failure = self._taken_failure()  # before this save can add its own
            future = self._hand_over(request, wish)
            self.last_wait_ns = waited_ns - started_ns
            self.last_blocked_ns = time.perf_counter_ns() - waited_ns
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
        if self._thread is not None and self._thread.is_current:
            raise MoonclipError(
                "a callback of a save's Future runs in the saving thread, so it cannot save, resume or close"
            )
        if self._pid != os.getpid():
            yield
            return
        if self._holder == threading.get_ident():
            raise MoonclipError(
                "this thread is in the middle of a save or resume of this manager, which a signal handler interrupted;"
                " set a flag in the handler, and save from the training loop"
            )
        with self._lock:
            try:
                self._holder = threading.get_ident()
                yield
            finally:
                self._holder = None

    def wait(self) -> None:
        """Wait until all saves have ended.

        Raises:
            MoonclipError: closed.
        """
        if self._is_closed:
            raise MoonclipError("this manager is closed; open another")
        if self._thread is not None:
            self._thread.wait()

    def raise_failure(self) -> None:
        """Tell of a save that failed, if nobody was told yet.

        Raises:
            SaveFailed: one did.
        """
        failure = self._taken_failure()
        if failure is not None:
            raise failure

    def close(self) -> None:
        """Wait until all saves have ended, end the thread and close the store; again does nothing.

        Raises:
            MoonclipError: called in a callback of a Future.
        """
        with self.exclusively():
            if self._is_closed:
                return
            if self._thread is not None:
                self._thread.close()
            self._is_closed = True
            self._repo.close()

    def abandon(self) -> None:
        """Close the store once all saves have ended, for a manager that was dropped. Does not wait, takes no lock."""
        if self._thread is None:
            self._repo.close()
        else:
            self._thread.stop(self._repo.close)

    def set_tag(self, name: str, commit: CommitId, *, overwrite: bool) -> None:
        """Put a tag on a commit.

        Raises:
            Conflict: it exists and is not to be moved. Incompatible: no legal name.
        """
        if not overwrite:
            self._require_free_tag(name)
        ref = tag_name(name)
        self._repo.set_ref(ref, self._repo.refs.read(ref) if overwrite else None, commit, "tag")

    # --- how --------------------------------------------------------------------------------------------------------

    def _described(self, wish: Wish) -> tuple[SaveRequest, dict[str, FlatState]]:
        """The request without its tensors, and where those are. Refuses all that cannot be stored; copies nothing."""
        if not wish.items:
            raise Incompatible("there is nothing to save; name at least one item, as in save(model=model)")
        if wish.tag is not None and not wish.overwrite:
            self._require_free_tag(wish.tag)
        request = SaveRequest(
            items=[ItemInput(item, {}) for item in wish.items],
            branch=self._binding.branch,
            step=None if wish.step is None else operator.index(wish.step),
            message=wish.message,
            metadata=_plain_metadata(wish.metadata or {}, self._policy),
        )
        require_legal(request)
        states = {item: flatten(state_of(obj), self._policy, item) for item, obj in wish.items.items()}
        for state in states.values():
            for name in state.entries:
                check_name(name)
        return request, states

    def _hand_over(self, request: SaveRequest, wish: Wish) -> Future[str]:
        def work() -> str:
            return self._commit(request, wish.tag, overwrite=wish.overwrite)

        if self._thread is not None:
            return self._thread.submit(work, request.step)
        future: Future[str] = Future()
        future.set_result(work())
        return future

    def _commit(self, request: SaveRequest, tag: str | None, *, overwrite: bool) -> str:
        """Store and commit what was captured. Runs alone: whoever alters the binding waits for it."""
        request = replace(request, parent=self._binding.tip)
        try:
            saved = self._repo.save(request)
        except BaseException as error:
            self._find_branch(request, error)
            raise
        self._binding.tip, self._last_save = saved.commit, saved.last
        if tag is not None:  # by itself: if it fails, the commit is made all the same and is the next one's parent
            self.set_tag(tag, saved.commit, overwrite=overwrite)
        return saved.commit.hex()

    def _find_branch(self, request: SaveRequest, error: BaseException) -> None:
        """After a save that failed: where its branch is now. The next save must go on from there, or all would fail."""
        kept = error.details.get("kept") if isinstance(error, MoonclipError) else None
        if isinstance(error, MoonclipError) and kept is not None:
            self._binding.bind(kept, CommitId(from_hex(error.details["commit"])))
        elif isinstance(error, NotDurable) or not isinstance(error, MoonclipError):
            self._binding.adopt(request)

    def _taken_failure(self) -> SaveFailed | None:
        return None if self._thread is None else self._thread.take_failure()

    def _require_free_tag(self, name: str) -> None:
        if self._repo.refs.read(tag_name(name)) is not None:
            raise Conflict(f"tag {name!r} exists; choose another name or pass overwrite=True to move it", tag=name)

    def _require_owner(self) -> None:
        if self._pid != os.getpid():
            raise MoonclipError(
                f"this manager belongs to process {self._pid}, of which this one ({os.getpid()}) is a fork; only its"
                " owner saves. Make a manager of its own in this process, on a branch of its own"
            )


def _plain_metadata(metadata: Mapping[str, Any], policy: Policy) -> dict[str, Plain]:
    if not all(isinstance(key, str) for key in metadata):
        raise Incompatible("metadata needs text for keys")
    return {key: to_plain(value, policy, f"metadata {key!r}") for key, value in metadata.items()}
