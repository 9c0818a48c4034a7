"""Content of commits, got from a remote: trees, then those below them, then all chunks at once.

What cannot be had, and what is not what trees say it is, is followed back to the items that need it.
"""

from collections.abc import Collection, Iterable, Iterator, Mapping
from dataclasses import dataclass

from ...batches import batches
from ...errors import Corrupt, NotFound
from ...format.objects import Kind, TreeNode
from ...ids import CommitId, ObjectId, TreeId, short
from ...limits import SWEEP_KEYS
from ...reading.closure import trees_below
from ...repository import Repository
from ...upkeep.absences import Absence, Absences, expected_items, first_for
from .contents import Content
from .obtaining import Obtained, Obtaining
from .saying import Said, lengths_in


class HolesFound(Exception):
    """Something was swept since it was found here, or came. Internal: it is fetched again."""


class Gathering:
    """Gets content. For one thread.

    Args:
        repository: the store.
        obtaining: gets objects.
        closed: trees that are here with all below them, and need not be looked into.
    """

    def __init__(self, repository: Repository, obtaining: Obtaining, closed: Collection[TreeId]) -> None:
        self.obtained = Obtained()
        self._repo = repository
        self._obtaining = obtaining
        self._closed = closed

    def gather(self, contents: Iterable[Content]) -> None:
        """Get all that the trees of some commits reach and that is not here; as far as it can be had.

        Raises:
            HolesFound: something was swept meanwhile.
            RemoteError: the remote failed. What was got by then stays.
            OSError: the disk failed; likewise.
        """
        roots = {tree for content in contents for tree in content.trees.values()}.difference(self._closed)
        said = Said()
        below = self._descend(roots, said)
        self._descend(below.difference(roots, self._closed), said)  # and no deeper: sub-trees have none
        self.obtained.add(self._obtaining.obtain(said.lengths))
        self._require_true(said)

    def lacking(self, contents: Mapping[CommitId, Content]) -> Iterator[tuple[CommitId, str, str]]:
        """Of each item that cannot be whole the commit, its name, and what is missing in words.

        Raises:
            HolesFound: something was swept meanwhile.
        """
        if not self.obtained.lacking:
            return
        known: dict[TreeId, str | None] = dict.fromkeys(self._closed)
        for commit_id, content in contents.items():
            for item, tree in content.trees.items():
                problem = self._problem(tree, known)
                if problem is not None:
                    yield commit_id, item, problem

    def _descend(self, trees: set[TreeId], said: Said) -> set[TreeId]:
        """Get trees and hear what they say; returns those below them."""
        self.obtained.add(self._obtaining.obtain(trees))
        below: set[TreeId] = set()
        for tree, node in self._nodes(trees):
            problem = said.hear(tree, node)
            if problem is not None:
                self.obtained.lacking[tree] = problem
            below.update(subtree.tree for subtree in node.subtrees)
        return below

    def _require_true(self, said: Said) -> None:
        """See that what trees name is what they say it is: they are the word of whoever pushed them."""
        for tree, node in self._nodes(said.unheard().intersection(self._closed)):  # shared with what is here
            said.hear(tree, node)
        for tree, problem in said.lies_about_trees():
            self.obtained.lacking.setdefault(tree, problem)
        false: set[tuple[ObjectId, int]] = set()
        for batch in batches(said.lengths, SWEEP_KEYS):
            for chunk, places in self._repo.index.places_of_each(batch).items():
                if places:
                    held = places[0].raw_bytes if places[0].kind is Kind.CHUNK else None
                    false.update((chunk, length) for length in said.lengths_of(chunk) if length != held)
        if false:
            for tree, node in self._nodes(said.heard):
                found = next((pair[0] for pair in lengths_in(node) if pair in false), None)
                if found is not None:
                    self.obtained.lacking[tree] = f"tree {short(tree)}: {found.hex()} is not the chunk it should be"

    def _nodes(self, trees: Iterable[TreeId]) -> Iterator[tuple[TreeId, TreeNode]]:
        for tree in sorted(trees):
            if tree not in self.obtained.lacking:
                try:
                    yield tree, self._node(tree)
                except Corrupt as error:  # whole as an object, but no tree
                    self.obtained.lacking[tree] = str(error)

    def _node(self, tree: TreeId) -> TreeNode:
        try:
            return self._repo.reader.tree_node(tree)
        except (NotFound, Corrupt) as error:
            if self._obtaining.missing([tree]):
                raise HolesFound(str(error)) from error
            raise

    def _problem(self, tree: TreeId, known: dict[TreeId, str | None]) -> str | None:
        """What keeps a tree from being whole."""
        if tree in known:
            return known[tree]
        lacking = self.obtained.lacking
        problem = lacking.get(tree)
        if problem is None:
            node = self._node(tree)
            chunks = (chunk for _, entry in node.entries for chunk in entry.chunks)
            problem = next((lacking[chunk] for chunk in chunks if chunk in lacking), None)
            below = (self._problem(subtree.tree, known) for subtree in node.subtrees)
            problem = problem or next((each for each in below if each is not None), None)
        known[tree] = problem
        return problem


def give_up(
    contents: Mapping[CommitId, Content],
    lacking: Iterable[tuple[CommitId, str, str]],
    permits: Mapping[CommitId, Collection[Absence]],
    remote: str,
) -> dict[CommitId, str]:
    """Do without what the remote's own records permit to be missing. Pure.

    Args:
        contents: what of each commit is to be here; changed.
        lacking: items that cannot be whole, as :meth:`Gathering.lacking` tells.
        permits: the remote's records.
        remote: what it is called, for messages.

    Returns:
        Commits that lack what nobody permits to be missing, and why.
    """
    damaged: dict[CommitId, str] = {}
    for commit_id, item, problem in lacking:
        record = first_for(permits.get(commit_id, ()), item)
        if record is None:
            what = f"commit {short(commit_id)}: its item {item!r} cannot be fetched from {remote}"
            damaged[commit_id] = f"{what}: {problem}"
        else:
            contents[commit_id].give_up(commit_id, item, record)
    return damaged


@dataclass(frozen=True, slots=True)
class Closed:
    """What need not be looked into, since commits that are here and kept are known to have it.

    Attributes:
        trees: their trees.
        records: their absence records, when that was so: whatever takes the content of one away adds some before.
    """

    trees: frozenset[TreeId]
    records: Mapping[CommitId, tuple[Absence, ...]]

    def require(self, absences: Absences) -> None:
        """See that it is still so.

        Raises:
            HolesFound: one was pruned or collected meanwhile.
        """
        for commit_id, records in self.records.items():
            if absences.records(commit_id) != records:
                raise HolesFound(f"commit {short(commit_id)}, which something of this is shared with, lost its content")


def closed_by(repository: Repository, commits: Iterable[CommitId]) -> Closed:
    """What some commits have that are here, but for what records permit and for what cannot be read."""
    records = {commit_id: repository.absences.records(commit_id) for commit_id in commits}
    trees: set[TreeId] = set()
    for commit_id in records:
        try:
            roots = expected_items(repository.commit(commit_id), repository.absences, commit_id).values()
            trees.update(trees_below(roots, repository.reader.tree_node))
        except (NotFound, Corrupt):
            continue
    return Closed(frozenset(trees), records)
