"""Trees and commits: what they hold and their one canonical encoding. Pure.

Spec: docs/format.md §2 and §4.
"""

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import pairwise
from typing import Any

from ..errors import Corrupt, Incompatible
from ..ids import Buffer, CommitId, TreeId, commit_id
from ..limits import MAX_TREE_NODES
from . import canonical, fields, values
from .canonical import Node
from .entries import Entry, decode_entry, encode_entry
from .entryforms import read_leaf
from .values import Plain


class Kind(IntEnum):
    """Kind of a stored object. The value is the format's code."""

    CHUNK = 1
    TREE = 2
    COMMIT = 3


@dataclass(frozen=True, slots=True)
class SubTree:
    """A run of a tree's entries, by name range, kept as an object of its own."""

    first_name: str
    entry_count: int
    tree: TreeId


@dataclass(frozen=True, slots=True)
class TreeNode:
    """One stored tree object: either entries, or sub-trees whose name ranges follow one another.

    Attributes:
        entries: (name, entry), sorted by the name's UTF-8 bytes, names unique.
        subtrees: sub-trees in name order; a node has either these or entries.
        ties: groups of names of one tensor; only on the root of an item's tree.
    """

    entries: tuple[tuple[str, Entry], ...] = ()
    subtrees: tuple[SubTree, ...] = ()
    ties: tuple[tuple[str, ...], ...] = ()

    def encode(self) -> bytes:
        """Canonical encoding, whose hash is the tree's id."""
        return self.encode_with([encode_entry(name, entry) for name, entry in self.entries])

    def encode_with(self, encoded_entries: Sequence[bytes]) -> bytes:
        """The same, where the encodings of the entries are at hand."""
        key, held = "entries", canonical.join_list(encoded_entries)
        if self.subtrees:
            key, held = "subtrees", canonical.encode([[s.first_name, s.entry_count, s.tree] for s in self.subtrees])
        if not self.ties:
            return canonical.template(key) % held
        return canonical.template(key, "ties") % (held, canonical.encode([list(names) for names in self.ties]))

    @classmethod
    def decode(cls, data: Buffer, what: str = "tree") -> "TreeNode":
        """Inverse of :meth:`encode`.

        Raises:
            Corrupt: not the canonical encoding of a well-formed tree.
        """
        leaf = read_leaf(bytes(data))
        if leaf is not None:
            entries, ties = leaf
            return cls(entries, ties=ties)
        node = canonical.parse(data, what, MAX_TREE_NODES)
        tree: TreeNode = _build(what, lambda: _tree_from(node, what))
        _require_same(tree, data, what)
        return tree


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint.

    Attributes:
        items: item name to its tree.
        parents: commits this one came from; none for the first, two for a merge.
        step: training step, or ``None``.
        time_ns: when it was made, nanoseconds since the epoch, by the saver's clock. Decides only what policies by age
            keep.
        branch: branch it was committed on.
        message: what a person said of it.
        metadata: the user's mapping, order kept, plain values.
    """

    items: Mapping[str, TreeId]
    parents: tuple[CommitId, ...] = ()
    step: int | None = None
    time_ns: int = 0
    branch: str = ""
    message: str = ""
    metadata: Mapping[str, Plain] = field(default_factory=dict)

    def encode(self) -> bytes:
        """Canonical encoding, whose hash is the commit's id."""
        return canonical.encode(
            {
                "branch": self.branch,
                "items": dict(self.items),
                "message": self.message,
                "metadata": [[key, values.to_node(value)] for key, value in self.metadata.items()],
                "parents": list(self.parents),
                "step": self.step,
                "time_ns": self.time_ns,
            }
        )

    @property
    def id(self) -> CommitId:
        """Hash of the canonical encoding."""
        return commit_id(self.encode())

    @classmethod
    def decode(cls, data: Buffer, what: str = "commit") -> "Commit":
        """Inverse of :meth:`encode`.

        Raises:
            Corrupt: not the canonical encoding of a well-formed commit.
        """
        node = canonical.parse(data, what, MAX_TREE_NODES)
        commit: Commit = _build(what, lambda: _commit_from(node, what))
        _require_same(commit, data, what)
        return commit


# --- decoding: shape is checked here, so that readers never meet a surprise -----------------------------------------


def _require_same(decoded: TreeNode | Commit, data: Buffer, what: str) -> None:
    """One encoding a value: what does not encode back to ``data`` was not written by a conforming writer."""
    try:
        again = decoded.encode()
    except Incompatible as error:
        raise Corrupt(f"{what}: {error}") from error
    fields.require(again == data, what, "not the canonical encoding of its content")


def _build(what: str, build: Callable[[], Any]) -> Any:
    try:
        return build()
    except Corrupt:
        raise
    except fields.MALFORMED as error:
        raise Corrupt(f"{what}: malformed ({type(error).__name__}: {error})") from error


def _tree_from(node: Node, what: str) -> TreeNode:
    ties = tuple(tuple(fields.text(name, what) for name in names) for names in node.get("ties", []))
    fields.require("ties" not in node or (len(ties) > 0 and all(len(t) > 1 for t in ties)), what, "empty ties")
    if "subtrees" in node:
        subtrees = tuple(
            SubTree(fields.text(n, what), fields.count(c, what), TreeId(fields.object_id(t, what)))
            for n, c, t in node["subtrees"]
        )
        fields.require(len(subtrees) > 0, what, "no sub-trees")
        _require_sorted([s.first_name for s in subtrees], what)
        return TreeNode(subtrees=subtrees, ties=ties)
    entries = tuple(
        (fields.text(name, what), decode_entry(body, f"{what}: {name!r}")) for name, body in node["entries"]
    )
    _require_sorted([name for name, _ in entries], what)
    return TreeNode(entries=entries, ties=ties)


def _require_sorted(names: list[str], what: str) -> None:
    encoded = [name.encode() for name in names]
    fields.require(all(a < b for a, b in pairwise(encoded)), what, "names not sorted and unique")


def _commit_from(node: Node, what: str) -> Commit:
    step = node["step"]
    fields.require(step is None or (type(step) is int and -(2**63) <= step < 2**63), what, "step is not an integer")
    items = {fields.text(name, what): TreeId(fields.object_id(tree, what)) for name, tree in node["items"].items()}
    metadata = {fields.text(key, what): values.from_node(value, what) for key, value in node["metadata"]}
    return Commit(
        items=items,
        parents=tuple(CommitId(fields.object_id(parent, what)) for parent in node["parents"]),
        step=step,
        time_ns=fields.count(node["time_ns"], what),
        branch=fields.text(node["branch"], what),
        message=fields.text(node["message"], what),
        metadata=metadata,
    )
