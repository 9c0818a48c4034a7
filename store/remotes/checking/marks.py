"""What a remote's refs need: every commit they reach, its trees and their chunks.

What is here is read from here, also where the remote lacks it: what a tree that is lost there holds is then known, and
may be lost there as well.
"""

from collections.abc import Callable, Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass, field

from ...errors import Corrupt, NotFound
from ...format.objects import Commit, TreeNode
from ...gc.scanning import chunk_ids, subtree_ids
from ...ids import CommitId, ObjectId, TreeId, short
from ...repository import Repository
from ...upkeep.absences import Absence, Why, expected_items, first_for
from ..holdings import Holdings
from ..idx import decoded_commit
from .treereading import TreeReading

Tips = Mapping[CommitId, Collection[str]]
"""Commits, and what names them, in words."""


class Permits:
    """What may be missing, as all stores that pushed there say. See :class:`~store.upkeep.absences.Absences`.

    Args:
        records: theirs.
    """

    def __init__(self, records: Iterable[Absence]) -> None:
        self._records: dict[CommitId, tuple[Absence, ...]] = {}
        for record in records:
            self._records[record.commit] = (*self._records.get(record.commit, ()), record)

    def records(self, commit: CommitId) -> tuple[Absence, ...]:
        """The records of a commit."""
        return self._records.get(commit, ())

    def reason(self, commit: CommitId, item: str | None = None) -> Absence | None:
        """The record that says that a commit lacks an item, or, if ``None``, all of them."""
        return first_for(self.records(commit), item)

    def is_shallow(self, commit: CommitId) -> bool:
        """Whether the commit itself may be missing."""
        return any(record.why is Why.SHALLOW for record in self.records(commit))


@dataclass(slots=True)
class Marks:
    """What was reached.

    Attributes:
        commits: commits that could be read.
        required: objects that have to be there, bases aside.
        permitted: objects that need not be, but are not to be removed if they are.
        unreadable: commits and trees that are needed and can be read nowhere, and why.
    """

    commits: dict[CommitId, Commit] = field(default_factory=dict)
    required: set[ObjectId] = field(default_factory=set)
    permitted: set[ObjectId] = field(default_factory=set)
    unreadable: dict[ObjectId, str] = field(default_factory=dict)

    def lost(self, readable: Collection[ObjectId]) -> set[ObjectId]:
        """Objects that have to be there and cannot be read."""
        return self.required.difference(readable)


Keep = Callable[[TreeId, bytes], None]
"""Given each tree object that has to be there."""


def mark(
    tips: Iterable[CommitId],
    repo: Repository,
    holdings: Holdings,
    permits: Permits,
    trees: TreeReading,
    readable: Collection[ObjectId],
    keep: Keep | None = None,
) -> Marks:
    """Follow commits as far as they lead.

    Args:
        tips: the commits.
        repo: the store.
        holdings: what the remote has.
        permits: what may be missing there.
        trees: reads tree objects.
        readable: what can be read of the remote, :meth:`Holdings.readable`.
        keep: given each tree object that has to be there.

    Cost: 100 µs a commit and tree object, half a microsecond a chunk; a request for 8 MiB of trees that are not here.
    """
    marks = Marks()
    roots: list[TreeId] = []
    others: list[TreeId] = []
    for commit_id, commit in _commits(tips, repo, holdings, permits, marks):
        needed = expected_items(commit, permits, commit_id)
        roots += needed.values()
        others += (tree for item, tree in commit.items.items() if item not in needed)
    _descend(roots, trees, marks.required, set(), readable, keep)
    marks.unreadable.update(trees.unreadable)
    _descend(others, trees, marks.permitted, marks.required, readable, None)
    return marks


def _commits(
    tips: Iterable[CommitId], repo: Repository, holdings: Holdings, permits: Permits, marks: Marks
) -> Iterator[tuple[CommitId, Commit]]:
    waiting = list(tips)
    while waiting:
        commit_id = waiting.pop()
        if commit_id in marks.required:
            continue
        stored = holdings.commit(commit_id)
        if stored is None and permits.is_shallow(commit_id):
            continue
        marks.required.add(commit_id)
        try:
            commit = repo.commit(commit_id) if stored is None else decoded_commit(commit_id, stored)
        except (NotFound, Corrupt) as error:
            why = f"commit {short(commit_id)} is in no pack of the remote" if stored is None else str(error)
            marks.unreadable[commit_id] = why
            continue
        marks.commits[commit_id] = commit
        waiting += commit.parents
        yield commit_id, commit


def _descend(
    roots: Iterable[TreeId],
    trees: TreeReading,
    found: set[ObjectId],
    known: Collection[ObjectId],
    readable: Collection[ObjectId],
    keep: Keep | None,
) -> None:
    """Add trees, those below them, and their chunks."""
    waiting = _new(roots, found, known)
    while waiting:
        found.update(waiting)
        below: list[TreeId] = []
        for tree, encoded in trees.read(waiting):
            if keep is not None:
                keep(tree, encoded)
            found.update(_chunks(encoded, readable))
            below += subtree_ids(encoded)
        waiting = _new(below, found, known)


def _new(trees: Iterable[TreeId], found: Collection[ObjectId], known: Collection[ObjectId]) -> list[TreeId]:
    return [tree for tree in dict.fromkeys(trees) if tree not in found and tree not in known]


def _chunks(encoded: bytes, readable: Collection[ObjectId]) -> list[ObjectId]:
    """The chunks of a tree object. Ids that merely look like it, in a name, are told apart where one is not there."""
    chunks = chunk_ids(encoded)
    if all(chunk in readable for chunk in chunks):
        return chunks
    try:
        entries = TreeNode.decode(encoded).entries
    except Corrupt:  # whole as an object, but no tree: that is told by who looks at what trees say
        return chunks
    return [chunk for _, entry in entries for chunk in entry.chunks]
