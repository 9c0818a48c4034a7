"""What a manager tells of the history of its store."""

from collections.abc import Iterable, Iterator
from itertools import islice
from pathlib import Path
from typing import Any

from store.history.stats import Stats, collect
from store.history.walks import first_parents
from store.ids import CommitId, from_hex

from ..loading.descriptions import Description, Snapshot, describe, snapshots
from ..loading.lastgood import Resumed
from ..state.policy import Policy
from .statistics import lines
from .upkeep import Revision, Upkeep


class Looking(Upkeep):
    """Looking at history, as methods of a manager."""

    _policy: Policy
    _resumed: Resumed | None

    @property
    def root(self) -> Path:
        """Directory of the store, absolute."""
        return self._repo.layout.root.absolute()

    def log(self, rev: Revision | None = None, *, limit: int | None = None) -> Iterator[Snapshot]:
        """Commits that a revision reaches, newest first. A paused iterator stands in nobody's way.

        Args:
            rev: where to begin; the bound branch's tip if ``None``.
            limit: how many at most.
        """
        self._recorder.wait()
        tip = self._binding.current() if rev is None else self._resolved(rev)
        ids = (row.id for row in self._repo.log([tip] if tip else []))
        return self._snapshots(islice(ids, limit))

    def snapshot(self, rev: Revision | None = None) -> Snapshot:
        """What a commit says of itself; reads nothing of what it holds.

        Args:
            rev: the commit, or what ``save`` returned; the bound branch's tip if ``None``.

        Raises:
            NotFound: ``rev`` names nothing, or the branch has no commit yet.
            SaveFailed: ``rev`` is a save that failed.
        """
        self._recorder.wait()
        (found,) = self._snapshots([self._resolved(rev)])
        return found

    def list_snapshots(self) -> list[Snapshot]:
        """Commits of the bound branch, oldest first; of a merge only the first parent's line."""
        self._recorder.wait()
        tip = self._binding.current()
        rows = first_parents(self._repo.lookup, tip) if tip else iter(())
        return list(self._snapshots(row.id for row in rows))[::-1]

    def describe(self, rev: Revision | None = None) -> Description:
        """Shapes, dtypes, raw and stored bytes of each tensor of a commit, without reading any.

        Raises:
            NotFound: ``rev`` names nothing.
        """
        self._recorder.wait()
        return describe(self._repo, self._commit_at(rev), self._policy)

    def describe_latest(self) -> Description:
        """The bound branch's tip: :meth:`describe` without a revision.

        Raises:
            NotFound: the branch has no commit yet.
        """
        return self.describe()

    def stats(self) -> Stats:
        """What all commits hold that branches, tags and reflogs reach, and what is stored of it. Reads no tensor.

        Raises:
            Corrupt: something is damaged that says so.
        """
        self._recorder.wait()
        return collect(self._repo)

    def print_stats(self) -> None:
        """Print that as a table, as ``moonclip stats`` does."""
        print("\n".join(lines(self.stats())))

    @property
    def last_resume_metadata(self) -> dict[str, Any]:
        """What the commit says of itself that the last :meth:`resume` loaded; nothing if it loaded none."""
        if self._resumed is None or self._resumed.commit is None:
            return {}
        (found,) = self._snapshots([CommitId(from_hex(self._resumed.commit))])
        return dict(found.metadata)

    def _snapshots(self, ids: Iterable[CommitId]) -> Iterator[Snapshot]:
        """Holds the manager, not only its store: that is closed once nobody has the manager any more."""
        yield from snapshots(self._repo, ids, self._policy)
