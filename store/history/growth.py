"""What commits added to the store: the trees and chunks that none of their parents has."""

from collections.abc import Callable, Collection, Mapping
from functools import lru_cache
from typing import Final

from ..errors import NotFound
from ..format.objects import Commit, Kind
from ..ids import CommitId, ObjectId, TreeId
from ..reading.reader import ObjectReader

_KEPT_NODES: Final = 4_096
"""Trees whose content is remembered: a commit's parent is mostly asked for next."""


class Added:
    """Sums for commits, one after another.

    Args:
        reader: reads trees, and finds chunks.
        items: of a commit, those whose trees are here.
    """

    def __init__(self, reader: ObjectReader, items: Callable[[Commit, CommitId], Mapping[str, TreeId]]) -> None:
        self._reader = reader
        self._items = items
        self._node = lru_cache(_KEPT_NODES)(self._read)

    def stored_bytes(self, commit_id: CommitId, commit: Commit) -> int:
        """What a commit's new objects take in packs, as they are stored now; itself included.

        Cost: reads the commit's trees and its parents', and looks up what is new.

        Raises:
            NotFound: a tree or chunk is missing.
            Corrupt: one is damaged.
        """
        new = self._reached(commit_id, commit)
        for parent in commit.parents:
            try:
                new -= self._reached(parent, self._reader.commit(parent))
            except NotFound:
                continue  # history that was fetched only so far back: what came from beyond is new here
        places = [self._reader.place(object_id, kind) for object_id, kind in new]
        return sum(place.stored_bytes for place in (*places, self._reader.place(commit_id, Kind.COMMIT)))

    def _reached(self, commit_id: CommitId, commit: Commit) -> set[tuple[ObjectId, Kind]]:
        reached: set[tuple[ObjectId, Kind]] = set()
        waiting = list(self._items(commit, commit_id).values())
        while waiting:
            tree = waiting.pop()
            subtrees, chunks = self._node(tree)
            reached.add((tree, Kind.TREE))
            reached.update((chunk, Kind.CHUNK) for chunk in chunks)
            waiting += subtrees
        return reached

    def _read(self, tree: TreeId) -> tuple[list[TreeId], Collection[ObjectId]]:
        node = self._reader.tree_node(tree)
        return [subtree.tree for subtree in node.subtrees], {
            chunk for _, entry in node.entries for chunk in entry.chunks
        }
