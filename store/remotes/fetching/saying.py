"""What trees say of the objects that they name. Pure.

Whoever pushes a tree writes it, and its hash fits whatever it says: that chunks are of a length, that sub-trees hold so
many names from one name on, that a value is one. A reader would find out when something is loaded; a fetch finds out
before anything refers to it.
"""

from collections.abc import Iterator, Sequence

from ...errors import Corrupt
from ...format import values
from ...format.entries import ContainerEntry, ValueEntry
from ...format.objects import SubTree, TreeNode
from ...ids import ObjectId, TreeId, short


class Said:
    """What some trees say.

    Attributes:
        heard: those trees.
        lengths: of each chunk that they name the length in bytes.
    """

    def __init__(self) -> None:
        self.heard: set[TreeId] = set()
        self.lengths: dict[ObjectId, int] = {}
        self._other_lengths: dict[ObjectId, set[int]] = {}
        self._below: dict[TreeId, Sequence[SubTree]] = {}
        self._held: dict[TreeId, tuple[str, int] | None] = {}

    def hear(self, tree: TreeId, node: TreeNode) -> str | None:
        """Hear a tree; returns what is wrong with it in itself."""
        self.heard.add(tree)
        self._held[tree] = (node.entries[0][0], len(node.entries)) if node.entries else None
        if node.subtrees:
            self._below[tree] = node.subtrees
        for chunk, length_bytes in lengths_in(node):
            if self.lengths.setdefault(chunk, length_bytes) != length_bytes:
                self._other_lengths.setdefault(chunk, set()).add(length_bytes)
        return _fault(tree, node)

    def lengths_of(self, chunk: ObjectId) -> set[int]:
        """Every length that a chunk is said to have."""
        return {self.lengths[chunk], *self._other_lengths.get(chunk, ())}

    def unheard(self) -> set[TreeId]:
        """Trees below these that were not heard."""
        return {subtree.tree for subtrees in self._below.values() for subtree in subtrees} - self.heard

    def lies_about_trees(self) -> Iterator[tuple[TreeId, str]]:
        """Trees that do not say what those below them hold, or name such as have others below them; and in words."""
        for tree, subtrees in self._below.items():
            for subtree in subtrees:
                said = subtree.first_name, subtree.entry_count
                if subtree.tree in self._held and self._held[subtree.tree] != said:
                    yield tree, f"tree {short(tree)}: {subtree.tree.hex()} does not hold the names that it says"
                    break


def lengths_in(node: TreeNode) -> Iterator[tuple[ObjectId, int]]:
    """Each chunk that a tree names, and its length in bytes."""
    for _, entry in node.entries:
        if not isinstance(entry, ContainerEntry):
            yield from zip(entry.chunks, entry.cuts, strict=True)


def _fault(tree: TreeId, node: TreeNode) -> str | None:
    for name, entry in node.entries:
        if isinstance(entry, ValueEntry) and entry.inline is not None:
            try:
                values.decode(entry.inline, f"tree {short(tree)}: value {name!r}")
            except Corrupt as error:
                return str(error)
    return None
