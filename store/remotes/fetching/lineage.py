"""The commits of a remote, put together with those that are here.

What is *settled* is here and reached by something that keeps it, so that nothing about it need be asked. All else that
wanted tips reach is looked at, whether a fetch that was killed had brought some of it or not.
"""

from collections.abc import Collection, Iterable, Sequence
from functools import cached_property

from ...errors import Corrupt, Incompatible, NotFound
from ...format.objects import Commit
from ...history.walks import newest_first
from ...ids import CommitId, short
from ...repository import Repository
from ...upkeep.roots import read_roots
from .catalogue import Catalogue


class Lineage:
    """What some commits of a remote are made of. For one thread.

    Args:
        repository: the store.
        catalogue: what the remote has.
        url: of the remote, for messages.

    Attributes:
        commits: commits that are not settled, each after its parents.
        broken: commits that cannot be had, or that have such an ancestor, and why.
    """

    def __init__(self, repository: Repository, catalogue: Catalogue, url: str) -> None:
        self.commits: dict[CommitId, Commit] = {}
        self.broken: dict[CommitId, str] = {}
        self._repo = repository
        self._catalogue = catalogue
        self._url = url
        self._read: dict[CommitId, Commit] = {}

    @cached_property
    def settled(self) -> frozenset[CommitId]:
        """Commits that something here keeps. Cost: 10 µs each.

        Raises:
            Corrupt: what is kept is not known, since a ref, reflog, pin or lease is damaged.
        """
        roots = read_roots(self._repo).commits
        return frozenset(row.id for row in newest_first(self._repo.index, roots))

    def add(self, tips: Iterable[CommitId]) -> None:
        """Add what some commits reach. Raises as :attr:`settled` does."""
        waiting = [(tip, False) for tip in tips]
        entered: set[CommitId] = set()
        while waiting:
            commit_id, is_left = waiting.pop()
            if is_left:
                self._leave(commit_id)
            elif commit_id not in entered and not self._is_known(commit_id):
                entered.add(commit_id)
                waiting.append((commit_id, True))
                commit = self._find(commit_id)
                waiting += [(parent, False) for parent in (commit.parents if commit else ())]

    def parents(self, commit_id: CommitId) -> Sequence[CommitId]:
        """Parents of a commit that is settled or was added; none of one that cannot be had."""
        if commit_id in self._read:
            return self._read[commit_id].parents
        row = self._repo.index.commit(commit_id)
        return row.parents if row else ()

    def contains(self, commit_id: CommitId, ancestor: CommitId) -> bool:
        """Whether a commit is another, or has it among its ancestors."""
        return ancestor in self.reached([commit_id], ancestor)

    def reached(self, tips: Iterable[CommitId], until: CommitId | None = None) -> set[CommitId]:
        """All that some commits reach, themselves among it; no more than it takes to come to ``until``."""
        seen: set[CommitId] = set()
        waiting = list(tips)
        while waiting and until not in seen:
            commit_id = waiting.pop()
            if commit_id not in seen:
                seen.add(commit_id)
                waiting += self.parents(commit_id)
        return seen

    def within(self, tips: Iterable[CommitId], depth: int) -> set[CommitId]:
        """Commits that lie less than ``depth`` steps behind a tip."""
        seen: set[CommitId] = set()
        level = set(tips)
        for _ in range(depth):
            seen |= level
            level = {parent for commit_id in level for parent in self.parents(commit_id)} - seen
            if not level:
                break
        return seen

    def spoil(self, damaged: dict[CommitId, str]) -> None:
        """Hear of commits whose content cannot be had; they and all that is made on them are broken."""
        self.broken |= damaged
        for commit_id in self.commits:
            self._inherit(commit_id)

    def sound(self) -> dict[CommitId, Commit]:
        """Commits that are not settled and not broken, each after its parents."""
        return {commit_id: commit for commit_id, commit in self.commits.items() if commit_id not in self.broken}

    # --- how --------------------------------------------------------------------------------------------------------

    def _is_known(self, commit_id: CommitId) -> bool:
        known: Collection[CommitId] = self.settled
        return commit_id in self.commits or commit_id in self.broken or commit_id in known

    def _leave(self, commit_id: CommitId) -> None:
        """All that a commit reaches was looked at."""
        if commit_id in self._read:
            self.commits[commit_id] = self._read[commit_id]
            self._inherit(commit_id)

    def _inherit(self, commit_id: CommitId) -> None:
        broken = next((parent for parent in self.commits[commit_id].parents if parent in self.broken), None)
        if broken is not None:
            self.broken.setdefault(commit_id, self.broken[broken])

    def _find(self, commit_id: CommitId) -> Commit | None:
        if commit_id not in self._read:
            try:
                commit = self._catalogue.commit(commit_id)
                if commit is None and self._catalogue.refresh():  # a listing may be older than the ref
                    commit = self._catalogue.commit(commit_id)
                self._read[commit_id] = self._repo.reader.commit(commit_id) if commit is None else commit
            except NotFound:
                nowhere = f"commit {short(commit_id)} is nowhere on {self._url}"
                self.broken[commit_id] = nowhere + self._catalogue.doubts()
            except (Corrupt, Incompatible) as error:
                self.broken[commit_id] = f"commit {short(commit_id)} of {self._url} cannot be read: {error}"
        return self._read.get(commit_id)
