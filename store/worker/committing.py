"""Making the saves of one trainer, one after another, in whichever process."""

from dataclasses import replace
from typing import NamedTuple

from ..disk.locks import FileLock
from ..ids import CommitId
from ..naming.tags import set_tag
from ..repository import Repository
from ..saving.bases import LastSave
from ..saving.inputs import located
from ..saving.publish import Approve
from ..saving.saver import SaveRequest
from ..saving.underway import saving
from .messages import Order, Outcome
from .tidying import Tidier


class _Last(NamedTuple):
    """The last save: its commit, the arena that its bytes lie in, and what is known of it."""

    commit: CommitId
    arena: int
    save: LastSave


class Committer:
    """Stores and commits, and remembers the last save: its bytes are the next one's delta bases. Not thread-safe.

    Args:
        repo: the store.

    Attributes:
        tidier: what is to be done after saves, when their callers have been told.
    """

    def __init__(self, repo: Repository) -> None:
        self.tidier = Tidier(repo)
        self._repo = repo
        self._last: _Last | None = None

    def commit(
        self, order: Order, memory: memoryview, approve: Approve | None = None, announced: FileLock | None = None
    ) -> Outcome:
        """Make a save.

        Args:
            order: the save.
            memory: the bytes of its arena; unaltered until the save after this one is done.
            approve: see :meth:`Repository.save`.
            announced: what says that this save is under way, if its trainer said so; it is closed here.

        Returns:
            The commit, or the error that ended the save. A tag that could not be set is an error beside a commit.
        """
        request = self._request(order, memory)
        self._last = None  # until this one is committed: its arena may be the one that the last save lies in
        outcome = Outcome()
        try:
            with saving(self._repo.layout.root, self._repo.files, request.branch, approve, announced) as ask:
                saved = self._repo.save(request, ask)
                self._last = _Last(saved.commit, order.arena, saved.last)
                outcome = Outcome(saved.commit, saved.counts, dict(saved.seconds))
                self.tidier.note(order.keep, saved.counts.stored_bytes)
                if order.tag is not None:  # if it fails, the commit is made all the same and is the next one's parent
                    set_tag(self._repo, order.tag, saved.commit, overwrite=order.overwrite)
        except Exception as error:  # noqa: BLE001 - whatever ends a save belongs to its outcome
            return outcome._replace(error=error)
        return outcome

    def forget(self, arenas: tuple[int, ...]) -> None:
        """Let go of the last save if it lies in one of these."""
        if self._last is not None and self._last.arena in arenas:
            self._last = None

    def _request(self, order: Order, memory: memoryview) -> SaveRequest:
        last = self._last
        is_intact = last is not None and last.commit == order.last and last.arena != order.arena
        items = located(order.request.items, memory)
        return replace(order.request, items=items, last=last.save if last is not None and is_intact else None)
