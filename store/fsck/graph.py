"""What refs promise: every commit they reach, its trees, their chunks, and the bases of those."""

from collections.abc import Callable, Iterator
from functools import partial
from typing import TypeVar

from ..entries import Entry, TensorEntry, ValueEntry
from ..errors import MoonclipError
from ..ids import CommitId, ObjectId, TreeId, short
from ..limits import MAX_CHAIN_DEPTH
from ..objects import Kind
from ..refnames import RefName
from ..refs import RefStore
from ..repository import Repository
from .findings import Report, Stock

T = TypeVar("T")

_AFFECTED_SHOWN = 8


def read_roots(repository: Repository, report: Report) -> set[CommitId]:
    """What refs and reflogs name. A damaged one goes to the report; the others count all the same."""
    refs = repository.refs

    def attempt(read: Callable[[], set[T]]) -> set[T]:
        try:
            return read()
        except MoonclipError as error:
            report.find("ref", str(error))
            return set()

    attempt(lambda: {refs.head()})
    roots = attempt(refs.roots)
    for name in sorted({*refs.names(), *refs.logged_names()}):
        roots |= attempt(partial(_held_by, refs, name))
    return roots


def _held_by(refs: RefStore, name: RefName) -> set[CommitId]:
    commit = refs.read(name)
    return set() if commit is None else {commit}


def check_graph(repository: Repository, roots: set[CommitId], stock: Stock, report: Report) -> None:
    """Walk from some commits; missing and damaged objects go to the report with what they affect."""
    _Walk(repository, stock, report).run(roots)


class _Walk:
    def __init__(self, repository: Repository, stock: Stock, report: Report) -> None:
        self._repository = repository
        self._stock = stock
        self._report = report
        self._affected: dict[ObjectId, list[str]] = {}
        self._problems: dict[TreeId, tuple[tuple[str, ObjectId], ...]] = {}
        self._reasons: dict[ObjectId, str] = dict(stock.lost)

    def run(self, roots: set[CommitId]) -> None:
        seen: set[CommitId] = set()
        waiting = list(roots)
        while waiting:
            commit = waiting.pop()
            if commit not in seen:
                seen.add(commit)
                waiting += self._check_commit(commit)
        self._report.commit_count = len(seen)
        for object_id, reason in self._reasons.items():
            kind = "object" if object_id in self._stock.lost else "missing"
            self._report.find(kind, reason, object_id, _abridged(self._affected.get(object_id, [])))

    def _check_commit(self, commit_id: CommitId) -> tuple[CommitId, ...]:
        """Check one commit's trees; returns its parents."""
        problem = self._problem(commit_id, Kind.COMMIT, None)
        if problem is not None:
            self._affected.setdefault(problem, []).append(f"commit {short(commit_id)}")
            return ()
        try:
            commit = self._repository.commit(commit_id)
        except MoonclipError as error:  # whole as an object, but no commit
            self._reasons[commit_id] = str(error)
            return ()
        for item, root in commit.items.items():
            for name, object_id in self._tree_problems(root):
                self._affected.setdefault(object_id, []).append(f"{short(commit_id)} {item}::{name}")
        return commit.parents

    def _tree_problems(self, tree: TreeId) -> tuple[tuple[str, ObjectId], ...]:
        """(name, object) for everything in a tree that cannot be read. Each tree is looked at once."""
        if tree not in self._problems:
            self._problems[tree] = tuple(self._look_into(tree))
        return self._problems[tree]

    def _look_into(self, tree: TreeId) -> Iterator[tuple[str, ObjectId]]:
        problem = self._problem(tree, Kind.TREE, None)
        if problem is not None:
            yield "(all its tensors)", problem
            return
        try:
            node = self._repository.reader.tree_node(tree)
        except MoonclipError as error:  # whole as an object, but no tree
            self._reasons[tree] = str(error)
            yield "(all its tensors)", tree
            return
        for subtree in node.subtrees:
            yield from self._tree_problems(subtree.tree)
        for name, entry in node.entries:
            for chunk, cut in _chunks(entry):
                problem = self._problem(chunk, Kind.CHUNK, cut)
                if problem is not None:
                    yield name, problem

    def _problem(self, object_id: ObjectId, kind: Kind, raw_bytes: int | None) -> ObjectId | None:
        """The object, this one or a base below it, for which it cannot be read; ``None`` if it can be."""
        copies = self._stock.intact.get(object_id)
        if copies and any(entry.kind != kind or raw_bytes not in (None, entry.raw_bytes) for _, entry in copies):
            self._reasons[object_id] = f"object {object_id.hex()} is not the {kind.name.lower()} its tree says it is"
            return object_id
        return self._chain_problem(object_id, kind, {})

    def _chain_problem(
        self, object_id: ObjectId, kind: Kind, failed: dict[ObjectId, ObjectId], depth: int = 0
    ) -> ObjectId | None:
        """What keeps an object or a base below it from being read, by whichever copies; ``None`` if nothing does."""
        copies = self._stock.intact.get(object_id)
        if not copies:
            self._reasons.setdefault(object_id, f"{kind.name.lower()} {object_id.hex()} is in no pack")
            return object_id
        if object_id in failed or depth > MAX_CHAIN_DEPTH:
            return failed.get(object_id, object_id)
        failed[object_id] = object_id  # for as long as it is being looked at: who comes back here is in a cycle
        for _, entry in copies:
            problem = entry.base and self._chain_problem(entry.base, kind, failed, depth + 1)
            if problem is None:
                return None
            failed[object_id] = problem
        self._reasons.setdefault(
            failed[object_id], f"the delta chain of chunk {object_id.hex()} is too deep or a cycle"
        )
        return failed[object_id]


def _chunks(entry: Entry) -> Iterator[tuple[ObjectId, int]]:
    if isinstance(entry, TensorEntry | ValueEntry):
        yield from zip(entry.chunks, entry.cuts, strict=True)


def _abridged(affected: list[str]) -> tuple[str, ...]:
    more = len(affected) - _AFFECTED_SHOWN
    return tuple(affected[:_AFFECTED_SHOWN]) + ((f"and {more} more",) if more > 0 else ())
