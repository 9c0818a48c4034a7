"""What dropping something would free, told beforehand."""

from collections.abc import Collection, Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Final

from ..batches import batches
from ..ids import CommitId, ObjectId, TreeId
from ..index import Place
from ..repository import Repository
from .absences import expected_items
from .prune import Drop
from .roots import live_commits, read_roots

_BATCH: Final = 4096
"""Objects looked up in one transaction: enough that it costs nothing, few enough to hold no old pages for long."""


def measured(repository: Repository, drops: Sequence[Drop]) -> list[Drop]:
    """Drops with what each would free, the objects of several counted with the first of them.

    An object is freed if no commit that stays needs it, be it as the base of a delta.

    Cost: reads every tree that is live, and looks up each object once; 100 bytes of memory for each.

    Raises:
        NotFound: a tree is missing.
        Corrupt: one is damaged, or a root is.
    """
    if not drops:
        return []
    walk = _Walk(repository)
    going = {drop.row.id: drop for drop in drops}
    for row in live_commits(repository.lookup, read_roots(repository).commits):
        walk.take(walk.staying_trees(row.id, going.get(row.id)))
    walk.take_bases()
    return [replace(drop, freed_bytes=walk.stored_bytes(walk.take(walk.dropped_trees(drop)))) for drop in drops]


class _Walk:
    """A walk over trees, in which each object is met once."""

    def __init__(self, repository: Repository) -> None:
        self._repo = repository
        self._taken: set[ObjectId] = set()

    def staying_trees(self, commit_id: CommitId, drop: Drop | None) -> list[TreeId]:
        """Roots of a commit's items that stay."""
        if drop is not None and drop.items is None:
            return []
        dropped = set() if drop is None else set(drop.items or ())
        return [tree for item, tree in self._expected(commit_id) if item not in dropped]

    def dropped_trees(self, drop: Drop) -> list[TreeId]:
        """Roots of the items that are dropped."""
        return [tree for item, tree in self._expected(drop.row.id) if drop.items is None or item in drop.items]

    def take(self, roots: Iterable[TreeId]) -> set[ObjectId]:
        """Trees, and chunks in them, that were not met before: below a tree that was, there are none."""
        found: set[ObjectId] = set()
        waiting = list(roots)
        while waiting:
            tree = waiting.pop()
            if tree not in self._taken:
                node = self._repo.reader.tree_node(tree)
                new = {tree, *(chunk for _, entry in node.entries for chunk in entry.chunks)} - self._taken
                self._taken |= new
                found |= new
                waiting += [subtree.tree for subtree in node.subtrees]
        return found

    def take_bases(self) -> None:
        """Take what all that was met is stored against, and that in turn."""
        waiting: Collection[ObjectId] = self._taken.copy()
        while waiting:
            waiting = {place.base for place in self._places(waiting) if place.base is not None} - self._taken
            self._taken |= waiting

    def stored_bytes(self, objects: Iterable[ObjectId]) -> int:
        """What some objects take in packs."""
        return sum(place.stored_bytes for place in self._places(objects))

    def _expected(self, commit_id: CommitId) -> Iterable[tuple[str, TreeId]]:
        return expected_items(self._repo.commit(commit_id), self._repo.absences, commit_id).items()

    def _places(self, objects: Iterable[ObjectId]) -> Iterator[Place]:
        """Of each object the copy that is cheapest to read."""
        for batch in batches(objects, _BATCH):
            found = self._repo.lookup.places_of_each(batch)
            yield from (copies[0] for copies in found.values() if copies)
