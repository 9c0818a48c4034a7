"""Commits that were fetched become commits of this store.

1. records of commits that had been here without their content are taken back, having seen, while nothing can be swept,
   that it is here now;
2. records say what may be missing of commits that are new;
3. index transactions, each for some commits and after their parents: everything that these need is here, and they are
   entered.

A crash in between leaves commits that nothing names and that are whole but for what records permit, and records of what
is here all the same. A rerun goes on from there.
"""

from collections.abc import Callable, Iterable, Mapping, Sequence

from ...batches import batches
from ...format.objects import Commit
from ...gc.scanning import chunk_ids, subtree_ids
from ...ids import CommitId, ObjectId, TreeId
from ...index import IndexWriter
from ...limits import FETCH_COMMITS
from ...reading.closure import missing_objects
from ...repository import Repository
from ...saving.leases import Lease
from ...saving.publish import row_of
from ...upkeep.absences import Absence
from .contents import Content
from .gathering import Closed, HolesFound

Lacking = Callable[[Sequence[ObjectId]], Sequence[ObjectId]]
"""Of some objects those of which there is no good copy."""


class Settling:
    """Enters commits. For one thread.

    Args:
        repository: the store.
        lease: keeps commits from gc until a ref names them.
        closed: what need not be looked into.
    """

    def __init__(self, repository: Repository, lease: Lease, closed: Closed) -> None:
        self._repo = repository
        self._lease = lease
        self._known = closed
        self._closed = set(closed.trees)

    def enter(self, commits: Mapping[CommitId, Commit], contents: Mapping[CommitId, Content]) -> None:
        """Steps 2 and 3.

        Args:
            commits: commits whose objects are here, each after its parents.
            contents: what of each is to be here.

        Raises:
            HolesFound: something was swept. What was entered before is whole.
            OSError: the disk failed; likewise.
        """
        self._repo.absences.replace({commit_id: contents[commit_id].records for commit_id in commits})
        for batch in batches(commits, FETCH_COMMITS):
            some = {commit_id: commits[commit_id] for commit_id in batch}
            self._name(some)
            self._enter(some, contents)

    def restore(self, commits: Mapping[CommitId, Commit], contents: Mapping[CommitId, Content]) -> None:
        """Step 1. Waits for a gc, repack or check that is at work.

        Args:
            commits: commits that have a row in the index.
            contents: what of each is to be here.

        Raises:
            HolesFound: something was swept. The records stand.
            OSError: the disk failed; likewise.
        """
        if not commits:
            return
        self._name(commits)
        records: dict[CommitId, Sequence[Absence]] = {each: contents[each].records for each in commits}
        with self._repo.files.lock_exclusive(self._repo.layout.root / "gc.lock"):  # nothing is swept meanwhile
            self._closed |= self._require((contents[each] for each in commits), self._lacking)
            self._repo.absences.replace(records)

    # --- how --------------------------------------------------------------------------------------------------------

    def _name(self, commits: Mapping[CommitId, Commit]) -> None:
        """Have the lease name commits, by those that reach all of them."""
        above = {parent for commit in commits.values() for parent in commit.parents}
        for commit_id in commits:
            if commit_id not in above:
                self._lease.add_commit(commit_id)

    def _lacking(self, object_ids: Sequence[ObjectId]) -> list[ObjectId]:
        return [each for each, places in self._repo.index.places_of_each(object_ids).items() if not places]

    def _enter(self, commits: Mapping[CommitId, Commit], contents: Mapping[CommitId, Content]) -> None:
        wanted = [contents[commit_id] for commit_id in commits]

        def add(writer: IndexWriter) -> set[TreeId]:
            seen = self._require(wanted, writer.lacking)
            for commit in commits.values():
                writer.add_commit(row_of(commit))
            return seen

        self._closed |= self._repo.index.write(add)

    def _require(self, contents: Iterable[Content], lacking: Lacking) -> set[TreeId]:
        """See that everything is here; returns the trees that were looked into."""
        self._known.require(self._repo.absences)
        seen: set[TreeId] = set()
        level = {tree for content in contents for tree in content.trees.values()} - self._closed
        while level:
            trees = sorted(level)
            self._require_objects(trees, trees, lacking)
            seen |= level
            below: set[TreeId] = set()
            chunks: set[ObjectId] = set()
            for encoded in self._repo.reader.encoded_trees(trees):
                chunks.update(chunk_ids(encoded))
                below.update(subtree_ids(encoded))
            self._require_objects(sorted(chunks), trees, lacking)
            level = below - seen - self._closed
        return seen

    def _require_objects(self, object_ids: Sequence[ObjectId], trees: Sequence[TreeId], lacking: Lacking) -> None:
        """See that objects are here that trees seem to name; to take a tree apart, which tells for sure, takes long."""
        if lacking(object_ids):
            missing = missing_objects(trees, self._repo.reader.tree_node, lacking, self._closed)
            if missing:
                raise HolesFound(f"{len(missing)} objects are gone, the first is {missing[0].hex()}")
