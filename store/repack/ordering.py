"""In which order objects lie well: as loads read them, newest commits first, and bases right before their deltas."""

import logging
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field

from ..errors import MoonclipError
from ..ids import CommitId, ObjectId, TreeId
from ..index import Place
from ..repository import Repository
from ..upkeep.absences import expected_items

_log = logging.getLogger(__name__)

Bases = Mapping[ObjectId, ObjectId | None]


@dataclass(slots=True)
class Plan:
    """Chunks to be encoded anew.

    Attributes:
        bases: each against which chunk, or ``None``.
        saved_bytes: what that is expected to save at once, and
        released_bytes: what bases take that nothing needs from then on.
    """

    bases: dict[ObjectId, ObjectId | None] = field(default_factory=dict)
    saved_bytes: int = 0
    released_bytes: int = 0


def ranks(repository: Repository, commits: Iterable[CommitId], bases: Bases | None) -> dict[ObjectId, int]:
    """Of everything that some commits reach its place in the order: commit, trees, chunks by item and name.

    Args:
        repository: the store.
        commits: in the order in which their loads matter.
        bases: what chunks are to be stored against; others are as they are stored. ``None`` leaves out what is but a
            base.

    Cost: reads each tree object once; looks each chunk up once.
    """
    walk = _Walk(repository, bases)
    for commit in commits:
        walk.add(commit)
    return walk.ranks


class _Walk:
    def __init__(self, repository: Repository, bases: Bases | None) -> None:
        self.ranks: dict[ObjectId, int] = {}
        self._repo = repository
        self._bases = bases

    def add(self, commit_id: CommitId) -> None:
        self._rank(commit_id)
        try:
            commit = self._repo.commit(commit_id)
        except MoonclipError as error:
            _log.warning("a commit is damaged: %s", error)
            return
        for root in expected_items(commit, self._repo.absences, commit_id).values():
            try:
                chunks = list(self._chunks(root))
            except MoonclipError as error:
                _log.warning("a tree is damaged, and what it names stays in no order: %s", error)
                continue
            self._add_chunks(chunks)

    def _chunks(self, tree: TreeId) -> Iterator[ObjectId]:
        """Chunks of a tree that was not seen yet; its tree objects are ranked on the way."""
        if tree in self.ranks:
            return
        node = self._repo.reader.tree_node(tree)
        self._rank(tree)
        for subtree in node.subtrees:
            yield from self._chunks(subtree.tree)
        for _, entry in node.entries:
            yield from entry.chunks

    def _add_chunks(self, chunks: Sequence[ObjectId]) -> None:
        new = [chunk for chunk in chunks if chunk not in self.ranks]
        places = self._repo.index.places_below(new) if self._bases is not None else {}
        for chunk in new:
            chain = [chunk]
            while (base := self._base(chain[-1], places)) is not None and base not in self.ranks and base not in chain:
                chain.append(base)
            for each in reversed(chain):
                self._rank(each)

    def _base(self, chunk: ObjectId, places: Mapping[ObjectId, Sequence[Place]]) -> ObjectId | None:
        if self._bases is None:
            return None
        if chunk in self._bases:
            return self._bases[chunk]
        known = places.get(chunk)
        return known[0].base if known else None

    def _rank(self, object_id: ObjectId) -> None:
        self.ranks.setdefault(object_id, len(self.ranks))
