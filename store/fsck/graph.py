"""What refs promise: every commit they reach, its trees, their chunks, and the bases of those.

Trees and commits are read from the packs, not by way of the index, and each proves by being read that it is the
canonical encoding of something well-formed: that pieces tile their tensor and are cut into whole elements is part of
that (``store.format.entries``).
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Protocol

from ..errors import MoonclipError
from ..format import values
from ..format.dtypes import Element, dtype
from ..format.entries import Entry, TensorEntry, ValueEntry
from ..format.objects import Commit, Kind, SubTree, TreeNode
from ..ids import Buffer, ChunkId, CommitId, ObjectId, TreeId, short
from ..limits import MAX_CHAIN_DEPTH
from ..upkeep.absences import Records, Why, expected_items
from .findings import Report, Stock
from .roots import Named

_AFFECTED_SHOWN = 8


@dataclass(frozen=True, slots=True)
class Need:
    """An object that has to be here.

    Attributes:
        kind: what it is.
        element: the words it consists of, if it is a chunk.
    """

    kind: Kind
    element: Element = Element.INT8


@dataclass(slots=True)
class Graph:
    """What was walked.

    Attributes:
        commits: commits that were reached and could be read.
        live: all objects that were reached; not bases, as which ones there are hangs on the copy.
        problems: objects that cannot be read, are not here, or are not what belongs there; and why.
        needs: of these, what each should be.
        affected: what cannot be read for each of them.
        affected_commits: commits something of which cannot be read.
    """

    commits: dict[CommitId, Commit] = field(default_factory=dict)
    live: set[ObjectId] = field(default_factory=set)
    problems: dict[ObjectId, tuple[str, str]] = field(default_factory=dict)
    needs: dict[ObjectId, Need] = field(default_factory=dict)
    affected: dict[ObjectId, list[str]] = field(default_factory=dict)
    affected_commits: set[CommitId] = field(default_factory=set)

    def tell(self, report: Report) -> None:
        """Put all that is wrong into the report."""
        report.commit_count = len(self.commits)
        report.affected = self.affected_commits
        for object_id, (kind, reason) in self.problems.items():
            report.find(kind, reason, object_id, _abridged(self.affected.get(object_id, [])))


class Objects(Protocol):
    """Gives whole objects by id, as ``store.fsck.shelf.Shelf`` does for a store; raises MoonclipError if it cannot."""

    def commit(self, commit_id: CommitId) -> Commit:
        """Read a commit."""
        ...

    def tree_node(self, tree: TreeId) -> TreeNode:
        """Read a tree object."""
        ...

    def chunk(self, chunk: ChunkId) -> Buffer:
        """Decode a chunk."""
        ...


def walk(absences: Records, roots: Named, stock: Stock, shelf: Objects, *, full: bool) -> Graph:
    """Walk from some commits.

    Args:
        absences: what may be absent.
        roots: the commits, and who names them.
        stock: what the packs hold.
        shelf: reads it.
        full: also decode values that are kept in chunks.
    """
    walking = _Walk(absences, stock, shelf, full=full)
    walking.run(roots)
    return walking.graph


class _Walk:
    def __init__(self, absences: Records, stock: Stock, shelf: Objects, *, full: bool) -> None:
        self._absences = absences
        self._stock = stock
        self._shelf = shelf
        self._full = full
        self.graph = Graph(problems={each: ("object", reason) for each, reason in stock.lost.items()})
        self._leaves: dict[TreeId, tuple[str, int] | None] = {}
        self._below: dict[TreeId, tuple[tuple[str, ObjectId], ...]] = {}

    def run(self, roots: Named) -> None:
        named = {commit: list(who) for commit, who in roots.items()}
        seen: set[CommitId] = set()
        waiting = list(roots)
        while waiting:
            commit = waiting.pop()
            if commit in seen:
                continue
            seen.add(commit)
            for parent in self._check_commit(commit, named):
                named.setdefault(parent, []).append(f"parent of {short(commit)}")
                waiting.append(parent)

    def _check_commit(self, commit_id: CommitId, named: Named) -> tuple[CommitId, ...]:
        """Check one commit's trees; returns its parents."""
        if commit_id not in self._stock.damaged and commit_id not in self._stock.intact and self._is_shallow(commit_id):
            return ()
        commit = self._commit(commit_id)
        if not isinstance(commit, Commit):
            who = ", ".join(dict.fromkeys(named[commit_id]))
            self._affect(commit, commit_id, f"commit {short(commit_id)} ({who})")
            return ()
        self.graph.commits[commit_id] = commit
        for item, root in expected_items(commit, self._absences, commit_id).items():
            for name, object_id in self._tree_problems(root):
                self._affect(object_id, commit_id, f"{short(commit_id)} {item}::{name}")
        return commit.parents

    def _commit(self, commit_id: CommitId) -> Commit | ObjectId:
        """A commit, or what keeps it from being read."""
        problem = self._problem(commit_id, Need(Kind.COMMIT), None)
        if problem is not None:
            return problem
        try:
            return self._shelf.commit(commit_id)
        except MoonclipError as error:  # whole as an object, but no commit
            return self._wrong(commit_id, str(error))

    def _is_shallow(self, commit_id: CommitId) -> bool:
        record = self._absences.reason(commit_id)
        return record is not None and record.why is Why.SHALLOW

    def _affect(self, object_id: ObjectId, commit: CommitId, what: str) -> None:
        self.graph.affected.setdefault(object_id, []).append(what)
        self.graph.affected_commits.add(commit)

    # --- trees ------------------------------------------------------------------------------------------------------

    def _tree_problems(self, tree: TreeId) -> tuple[tuple[str, ObjectId], ...]:
        """(name, object) for everything in a tree that cannot be read. Each tree is looked at once."""
        if tree not in self._below:
            self._below[tree] = tuple(self._look_into(tree))
        return self._below[tree]

    def _look_into(self, tree: TreeId) -> Iterator[tuple[str, ObjectId]]:
        node = self._node(tree)
        if not isinstance(node, TreeNode):
            yield "(all its tensors)", node
            return
        self._leaves[tree] = None if node.subtrees else (node.entries[0][0] if node.entries else "", len(node.entries))
        for subtree in node.subtrees:
            yield from self._tree_problems(subtree.tree)
            if not self._is_as_said(subtree):
                yield "(all its tensors)", self._wrong(subtree.tree, "it does not hold the names its parent says")
        for name, entry in node.entries:
            yield from ((name, problem) for problem in self._entry_problems(tree, name, entry))

    def _node(self, tree: TreeId) -> TreeNode | ObjectId:
        """A tree object, or what keeps it from being read."""
        problem = self._problem(tree, Need(Kind.TREE), None)
        if problem is not None:
            return problem
        try:
            return self._shelf.tree_node(tree)
        except MoonclipError as error:  # whole as an object, but no tree
            return self._wrong(tree, str(error))

    def _is_as_said(self, subtree: SubTree) -> bool:
        """Whether a leaf holds the names that its parent says; one that cannot be read has been told."""
        said = (subtree.first_name, subtree.entry_count)
        return subtree.entry_count > 0 and self._leaves.get(subtree.tree, said) == said

    def _entry_problems(self, tree: TreeId, name: str, entry: Entry) -> Iterator[ObjectId]:
        if not isinstance(entry, TensorEntry | ValueEntry):
            return
        need = Need(Kind.CHUNK, dtype(entry.stored_dtype).element if isinstance(entry, TensorEntry) else Element.INT8)
        is_here = True
        for chunk, cut in zip(entry.chunks, entry.cuts, strict=True):
            problem = self._problem(chunk, need, cut)
            if problem is not None:
                is_here = False
                yield problem
        if isinstance(entry, ValueEntry) and is_here and (self._full or entry.inline is not None):
            problem = self._value_problem(tree, name, entry)
            if problem is not None:
                yield problem

    def _value_problem(self, tree: TreeId, name: str, entry: ValueEntry) -> ObjectId | None:
        """What is wrong with the encoding of a value. Nothing that it says is run."""
        try:
            chunks = (self._shelf.chunk(ChunkId(chunk)) for chunk in entry.chunks)
            values.decode(b"".join(chunks) if entry.inline is None else entry.inline, f"value {name!r}")
        except MoonclipError as error:
            return self._wrong(entry.chunks[0] if entry.chunks else tree, str(error))
        return None

    # --- objects ----------------------------------------------------------------------------------------------------

    def _problem(self, object_id: ObjectId, need: Need, raw_bytes: int | None) -> ObjectId | None:
        """The object, this one or a base below it, for which it cannot be read; ``None`` if it can be."""
        copies = self._stock.intact.get(object_id)
        if copies and any(entry.kind != need.kind or raw_bytes not in (None, entry.raw_bytes) for _, entry in copies):
            self.graph.live.add(object_id)
            return self._wrong(object_id, f"it is not the {need.kind.name.lower()} its tree says it is")
        return self._chain_problem(object_id, need, {})

    def _wrong(self, object_id: ObjectId, reason: str) -> ObjectId:
        """Tell of an object that is whole, but not what belongs there."""
        self.graph.problems.setdefault(object_id, ("content", f"object {object_id.hex()}: {reason}"))
        return object_id

    def _chain_problem(
        self, object_id: ObjectId, need: Need, failed: dict[ObjectId, ObjectId], depth: int = 0
    ) -> ObjectId | None:
        """What keeps an object or a base below it from being read, by whichever copies; ``None`` if nothing does."""
        if depth == 0:
            self.graph.live.add(object_id)
        copies = self._stock.intact.get(object_id)
        if not copies:
            if depth == 0:
                self._tell_missing(object_id, need)
            return object_id
        if object_id in failed or depth > MAX_CHAIN_DEPTH:
            return failed.get(object_id, object_id)
        failed[object_id] = object_id  # for as long as it is being looked at: who comes back here is in a cycle
        for _, entry in copies:
            problem = entry.base and self._chain_problem(entry.base, need, failed, depth + 1)
            if problem is None:
                return None
            failed[object_id] = problem
        if depth == 0 and not self._stock.intact.get(failed[object_id]):
            self._tell_missing(failed[object_id], need)
        elif depth == 0:  # further down another copy may do: repack leaves cycles among copies for a while
            deep = f"the delta chain of chunk {object_id.hex()} is too deep or a cycle"
            self.graph.problems.setdefault(failed[object_id], ("object", deep))
            self.graph.needs.setdefault(failed[object_id], need)
        return failed[object_id]

    def _tell_missing(self, object_id: ObjectId, need: Need) -> None:
        """Tell of an object that is needed; not of bases of copies beside which there is another."""
        self.graph.problems.setdefault(
            object_id, ("missing", f"{need.kind.name.lower()} {object_id.hex()} is in no pack")
        )
        self.graph.needs[object_id] = need


def _abridged(affected: list[str]) -> tuple[str, ...]:
    more = len(affected) - _AFFECTED_SHOWN
    return tuple(affected[:_AFFECTED_SHOWN]) + ((f"and {more} more",) if more > 0 else ())
