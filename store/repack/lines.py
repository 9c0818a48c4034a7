"""Lines: the chunks that stood in one place of a tensor, one after another, in all commits that are live."""

import logging
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from functools import lru_cache

from ..errors import MoonclipError
from ..format.dtypes import Element, dtype
from ..format.entries import TensorEntry
from ..format.objects import TreeNode
from ..ids import CommitId, ObjectId, TreeId
from ..index import CommitRow
from ..repository import Repository
from ..upkeep.absences import expected_items

_log = logging.getLogger(__name__)

_LEAVES: int = 512
"""Leaves of trees that are remembered: commits next to each other share those that did not change."""

_Key = tuple[str, str, int, int, Element]
"""Item, entry, number of the chunk within it, length, element: what makes a place."""


@dataclass(slots=True)
class Line:
    """The chunks of one place.

    Attributes:
        element: what they are made of.
        raw_bytes: length of each.
        chunks: in order of arrival.
        parents: of each the number of the chunk that it took the place of, or ``None``; an earlier one.
        tips: numbers of those that are in a tip.
    """

    element: Element
    raw_bytes: int
    chunks: list[ObjectId] = field(default_factory=list)
    parents: list[int | None] = field(default_factory=list)
    tips: set[int] = field(default_factory=set)

    def hubs(self, most: int) -> list[int]:
        """Tips, those that took nobody's place, and those whose place several took: the last ones, if too many."""
        heirs = Counter(parent for parent in self.parents if parent is not None)
        found = [number for number, parent in enumerate(self.parents) if parent is None or heirs[number] > 1]
        return sorted({*found, *self.tips})[-most:]


class Lines:
    """Finds the lines of a history. A chunk that stands in several places belongs to the first of them.

    Args:
        repository: the store.
    """

    def __init__(self, repository: Repository) -> None:
        self._repo = repository
        self._lines: dict[_Key, Line] = {}
        self._numbers: dict[ObjectId, tuple[Line, int]] = {}
        self._places = lru_cache(_LEAVES)(self._places_in)

    def of(self, rows: Sequence[CommitRow], tips: Iterable[CommitId]) -> list[Line]:
        """All lines.

        Args:
            rows: commits, parents before children.
            tips: those that are to stay cheap to read.

        Cost: reads every tree of every commit; a tuple in memory for each place of the commits whose children are yet
        to come, and one for each chunk.
        """
        marked = set(tips)
        child_counts = Counter(parent for row in rows for parent in row.parents[:1])
        held: dict[CommitId, dict[_Key, ObjectId]] = {}
        for row in rows:
            parent = row.parents[0] if row.parents else None
            before = held.get(parent, {}) if parent is not None else {}
            now = dict(self._chunks(row.id))
            for key, chunk in now.items():
                self._add(key, chunk, before.get(key), is_tip=row.id in marked)
            if child_counts[row.id]:
                held[row.id] = now
            if parent in held:
                child_counts[parent] -= 1
                if not child_counts[parent]:
                    del held[parent]
        return list(self._lines.values())

    def _add(self, key: _Key, chunk: ObjectId, before: ObjectId | None, *, is_tip: bool) -> None:
        if chunk not in self._numbers:
            line = self._lines.setdefault(key, Line(key[4], key[3]))
            parent = self._numbers.get(before) if before is not None else None
            self._numbers[chunk] = line, len(line.chunks)
            line.chunks.append(chunk)
            line.parents.append(parent[1] if parent is not None and parent[0] is line else None)
        if is_tip:
            line, number = self._numbers[chunk]
            line.tips.add(number)

    def _chunks(self, commit_id: CommitId) -> Iterator[tuple[_Key, ObjectId]]:
        try:
            commit = self._repo.commit(commit_id)
            for item, root in expected_items(commit, self._repo.absences, commit_id).items():
                yield from self._below(item, root)
        except MoonclipError as error:
            _log.warning("a commit is damaged, and what of it can be read stays as it is: %s", error)

    def _below(self, item: str, tree: TreeId) -> Iterator[tuple[_Key, ObjectId]]:
        node = self._repo.reader.tree_node(tree)
        for subtree in node.subtrees:
            yield from self._places(item, subtree.tree)
        yield from _places_of(item, node)

    def _places_in(self, item: str, leaf: TreeId) -> list[tuple[_Key, ObjectId]]:
        return list(_places_of(item, self._repo.reader.tree_node(leaf)))


def _places_of(item: str, node: TreeNode) -> Iterator[tuple[_Key, ObjectId]]:
    for name, entry in node.entries:
        if isinstance(entry, TensorEntry):
            element = dtype(entry.stored_dtype).element
            for number, (chunk, cut) in enumerate(zip(entry.chunks, entry.cuts, strict=True)):
                yield (item, name, number, cut, element), chunk
