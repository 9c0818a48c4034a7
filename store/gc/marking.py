"""What has to stay: from commits over their trees to chunks, and to what copies of these are stored against."""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from typing import Final, TypeVar

from ..batches import batches
from ..errors import Corrupt, NotFound
from ..format import canonical
from ..format.objects import Commit
from ..ids import CommitId, ObjectId, TreeId, short
from ..repository import Repository
from ..upkeep.absences import expected_items
from .scanning import chunk_ids, subtree_ids

T = TypeVar("T")

LOOKUP_BATCH: Final = 4096
"""Objects looked up in one transaction: enough that it costs nothing, few enough to hold no old pages for long."""

_READ_BATCH: Final = 32
"""Commits read one after another, then their trees: of packs that are still open from that."""


class Marks:
    """Everything that has to stay. For one thread.

    Objects that a bad copy alone is known of, or none, may be among them; so may, rarely, ids that name nothing.

    Args:
        repository: the store.
        parents: of commits, as far as they are known; others are looked up.

    Attributes:
        commits: commits that were reached.
        objects: they, and whatever they need.

    Memory: some 100 bytes an object.
    """

    def __init__(self, repository: Repository, parents: Mapping[CommitId, Sequence[CommitId]]) -> None:
        self.commits: set[CommitId] = set()
        self.objects: set[ObjectId] = set()
        self._repo = repository
        self._parents = parents
        self._added: set[ObjectId] | None = None

    def add(self, commits: Iterable[CommitId], advance: Callable[[int], None] = lambda _: None) -> None:
        """Mark commits, their ancestors, trees and chunks, but for what may be absent. Those unknown are passed over.

        Bases are not marked: who walks over all places anyway meets them there.

        Args:
            commits: which.
            advance: told how many commits were dealt with.

        Raises:
            Corrupt: a commit or tree cannot be read: what it needs is not known.

        Cost: 60 µs a commit, 90 a tree object, and half a microsecond a chunk.
        """
        for batch in batches(list(self._unmarked(commits)), _READ_BATCH):
            try:
                self._add_commits(batch)
            except (NotFound, Corrupt) as error:
                raise _unknown(batch, error) from error
            advance(len(batch))

    def add_whole(self, commits: Iterable[CommitId]) -> None:
        """The same, and the bases of what was not marked yet. Raises as :meth:`add` does."""
        self._added = set()
        try:
            self.add(commits)
            self.add_bases(self.bases_of(self._added))
        finally:
            self._added = None

    def add_bases(self, bases: Collection[ObjectId]) -> None:
        """Mark what copies are stored against, what good copies of these are stored against, and so on."""
        waiting = set(bases) - self.objects
        while waiting:
            self.objects |= waiting
            waiting = self.bases_of(waiting)

    def bases_of(self, objects: Iterable[ObjectId]) -> set[ObjectId]:
        """What good copies of some objects are stored against and that is not marked."""
        found: set[ObjectId] = set()
        for batch in batches(objects, LOOKUP_BATCH):
            for places in self._repo.index.places_of_each(batch).values():
                found.update(place.base for place in places if place.base is not None)
        return found - self.objects

    def _unmarked(self, commits: Iterable[CommitId]) -> Iterator[CommitId]:
        """Some commits and their ancestors, those aside that are marked; they count as marked from now on."""
        waiting = list(commits)
        while waiting:
            commit = waiting.pop()
            if commit not in self.commits and (parents := self._parents_of(commit)) is not None:
                self.commits.add(commit)
                waiting += parents
                yield commit

    def _parents_of(self, commit: CommitId) -> Sequence[CommitId] | None:
        if commit not in self._parents:
            row = self._repo.lookup.commit(commit)
            return None if row is None else row.parents
        return self._parents[commit]

    def _add_commits(self, commits: Sequence[CommitId]) -> None:
        self._mark(commits)
        trees: list[TreeId] = []
        for commit, encoded in zip(commits, self._repo.reader.encoded_commits(commits), strict=True):
            items = canonical.parse(encoded, f"commit {short(commit)}")["items"]
            trees += expected_items(Commit(items), self._repo.absences, commit).values()
        while trees := list(dict.fromkeys(tree for tree in trees if tree not in self.objects)):
            self._mark(trees)
            trees = [each for encoded in self._repo.reader.encoded_trees(trees) for each in self._look_into(encoded)]

    def _look_into(self, tree: bytes) -> list[TreeId]:
        """Mark the chunks of a tree, and give the trees below it."""
        self._mark(chunk_ids(tree))
        return subtree_ids(tree)

    def _mark(self, objects: Sequence[ObjectId]) -> None:
        if self._added is not None:
            self._added.update(each for each in objects if each not in self.objects)
        self.objects.update(objects)


def _unknown(commits: Sequence[CommitId], error: NotFound | Corrupt) -> Corrupt:
    among = f"commit {short(commits[0])}" if len(commits) == 1 else f"commits ({short(commits[0])} and others)"
    return Corrupt(
        f"what {among} need is not known, so nothing is removed: {error}; mend it (`moonclip fsck --repair`) or drop it"
        f" (`moonclip prune`), then run gc again",
        commits=[commit.hex() for commit in commits],
    )
