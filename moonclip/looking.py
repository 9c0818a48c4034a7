"""What a manager tells of the history of its store."""

from collections.abc import Iterable, Iterator
from itertools import islice

from store.history.walks import first_parents
from store.ids import CommitId

from .descriptions import Description, Snapshot, describe, snapshots
from .policy import Policy
from .upkeep import Upkeep


class Looking(Upkeep):
    """Looking at history, as methods of a manager."""

    _policy: Policy

    def log(self, rev: str | None = None, *, limit: int | None = None) -> Iterator[Snapshot]:
        """Commits that a revision reaches, newest first. A paused iterator stands in nobody's way.

        Args:
            rev: where to begin; the bound branch's tip if ``None``.
            limit: how many at most.
        """
        self._recorder.wait()
        tip = self._binding.current() if rev is None else self._resolved(rev)
        ids = (row.id for row in self._repo.log([tip] if tip else []))
        return self._snapshots(islice(ids, limit))

    def list_snapshots(self) -> list[Snapshot]:
        """Commits of the bound branch, oldest first; of a merge only the first parent's line."""
        self._recorder.wait()
        tip = self._binding.current()
        rows = first_parents(self._repo.lookup, tip) if tip else iter(())
        return list(self._snapshots(row.id for row in rows))[::-1]

    def describe(self, rev: str | None = None) -> Description:
        """Shapes, dtypes, raw and stored bytes of each tensor of a commit, without reading any.

        Raises:
            NotFound: ``rev`` names nothing.
        """
        self._recorder.wait()
        return describe(self._repo, self._commit_at(rev), self._policy)

    def _snapshots(self, ids: Iterable[CommitId]) -> Iterator[Snapshot]:
        """Holds the manager, not only its store: that is closed once nobody has the manager any more."""
        yield from snapshots(self._repo, ids, self._policy)
