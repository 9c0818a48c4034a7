"""Trees: entries by name, split into objects of about 64 KiB, and read back one object at a time.

A leaf ends after a name whose hash says so, so that adding or removing a tensor moves no boundary but the nearest;
whether a leaf changes then depends only on its own entries.

Spec: docs/format.md §4.4.
"""

from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from fnmatch import translate
from re import compile as compile_pattern

from blake3 import blake3

from ..errors import Corrupt, NotFound
from ..ids import TreeId, tree_id
from ..limits import LEAF_BOUNDARY_MODULUS, LEAF_MAX_BYTES, LEAF_MIN_BYTES
from .entries import Entry, check_name, encode_entry
from .objects import SubTree, TreeNode

Ties = tuple[tuple[str, ...], ...]

_Leaf = list[tuple[str, Entry, bytes]]
"""Name, entry and encoding of both."""

_NODE_BYTES = len(TreeNode(entries=()).encode())
"""*format* Each entry counts as long as a tree of it alone: this much more than itself."""


@dataclass(frozen=True, slots=True)
class TreeObject:
    """A tree object to be stored: its id and canonical encoding."""

    id: TreeId
    encoded: bytes
    node: TreeNode


def build(entries: Mapping[str, Entry], ties: Ties = ()) -> list[TreeObject]:
    """Split the entries of an item into tree objects.

    Args:
        entries: name to entry, in any order.
        ties: groups of names of one tensor.

    Returns:
        The objects, sub-trees first, the root last.

    Raises:
        Incompatible: a name is too long or no UTF-8.
    """
    for name in entries:
        check_name(name)
    ordered = sorted(entries.items(), key=lambda pair: pair[0].encode())
    leaves = list(_leaves(ordered))
    if len(leaves) <= 1:
        return [
            _object(TreeNode(entries=tuple(ordered), ties=ties), [encoded for leaf in leaves for *_, encoded in leaf])
        ]
    objects = [
        _object(TreeNode(entries=tuple((name, entry) for name, entry, _ in leaf)), [encoded for *_, encoded in leaf])
        for leaf in leaves
    ]
    subtrees = tuple(SubTree(leaf[0][0], len(leaf), subtree.id) for leaf, subtree in zip(leaves, objects, strict=True))
    return [*objects, _object(TreeNode(subtrees=subtrees, ties=ties), ())]


def _object(node: TreeNode, encoded_entries: Sequence[bytes]) -> TreeObject:
    encoded = node.encode_with(encoded_entries)
    return TreeObject(tree_id(encoded), encoded, node)


def _leaves(ordered: list[tuple[str, Entry]]) -> Iterator[_Leaf]:
    leaf: _Leaf = []
    leaf_bytes = 0
    for name, entry in ordered:
        encoded = encode_entry(name, entry)
        leaf.append((name, entry, encoded))
        leaf_bytes += _NODE_BYTES + len(encoded)
        if leaf_bytes >= LEAF_MAX_BYTES or (leaf_bytes >= LEAF_MIN_BYTES and _is_boundary(name)):
            yield leaf
            leaf, leaf_bytes = [], 0
    if leaf:
        yield leaf


def _is_boundary(name: str) -> bool:
    digest = blake3(name.encode()).digest(4)
    return int.from_bytes(digest, "little") % LEAF_BOUNDARY_MODULUS == 0


class Tree:
    """An item's tree, read lazily: sub-trees are fetched as names are asked for.

    Args:
        root: the root object.
        load: reads another tree object by id (may raise whatever reading an object raises).
    """

    def __init__(self, root: TreeNode, load: Callable[[TreeId], TreeNode]) -> None:
        self._root = root
        self._load = load

    @property
    def ties(self) -> Ties:
        """Groups of names of one tensor."""
        return self._root.ties

    def __len__(self) -> int:
        """Number of entries, without reading sub-trees."""
        return sum(s.entry_count for s in self._root.subtrees) or len(self._root.entries)

    def __iter__(self) -> Iterator[tuple[str, Entry]]:
        """All (name, entry), in name order."""
        if not self._root.subtrees:
            yield from self._root.entries
        for subtree in self._root.subtrees:
            yield from self._leaf(subtree)

    def __contains__(self, name: str) -> bool:
        return self._find(name) is not None

    def __getitem__(self, name: str) -> Entry:
        """The entry of that name.

        Raises:
            NotFound: there is none.
        """
        entry = self._find(name)
        if entry is None:
            raise NotFound(f"no entry {name!r} in this tree", name=name)
        return entry

    def matching(self, pattern: str) -> Iterator[tuple[str, Entry]]:
        """Entries whose name matches a glob (``*`` also matches ``/``), in name order."""
        matches = compile_pattern(translate(pattern)).match
        return ((name, entry) for name, entry in self if matches(name))

    def _find(self, name: str) -> Entry | None:
        entries = self._root.entries
        if self._root.subtrees:
            key = name.encode()
            covering = [s for s in self._root.subtrees if s.first_name.encode() <= key]
            entries = self._leaf(covering[-1]) if covering else ()
        return next((entry for entry_name, entry in entries if entry_name == name), None)

    def _leaf(self, subtree: SubTree) -> tuple[tuple[str, Entry], ...]:
        leaf = self._load(subtree.tree)
        if [name for name, _ in leaf.entries[:1]] != [subtree.first_name] or len(leaf.entries) != subtree.entry_count:
            raise Corrupt(
                f"tree {subtree.tree.hex()} does not hold the names its parent says", object=subtree.tree.hex()
            )
        return leaf.entries
