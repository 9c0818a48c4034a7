"""Trees and commits: what they hold and their one canonical encoding. Pure.

Spec: docs/format.md §2 and §4.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from enum import IntEnum
from itertools import groupby, pairwise
from math import prod
from typing import Any, cast

from . import canonical, values
from .canonical import Node
from .dtypes import dtype as dtype_of
from .errors import Corrupt, Incompatible
from .ids import ID_BYTES, Buffer, ChunkId, CommitId, ObjectId, TreeId, commit_id, tree_id
from .limits import MAX_CHUNK_BYTES, MAX_INLINE_BYTES, MAX_INLINE_VALUE_BYTES, MAX_NAME_BYTES
from .values import Plain


class Kind(IntEnum):
    """Kind of a stored object. The value is the format's code."""

    CHUNK = 1
    TREE = 2
    COMMIT = 3


@dataclass(frozen=True, slots=True)
class Piece:
    """A box of a global tensor and the chunks that hold it, in C order of the box.

    Attributes:
        offsets: first index of the box in each dim of the global tensor.
        sizes: extent of the box in each dim.
        cuts: bytes of each chunk, as it was cut.
        chunks: ids, as many as ``cuts``.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]
    cuts: tuple[int, ...]
    chunks: tuple[ChunkId, ...]


@dataclass(frozen=True, slots=True)
class TensorEntry:
    """One tensor, complete in itself.

    Attributes:
        position: its place among its siblings in what the user saved.
        dtype: dtype name, see ``store.dtypes``.
        shape: global shape.
        pieces: boxes that tile ``shape``; empty when inline.
        inline: the bytes themselves, if at most ``MAX_INLINE_BYTES`` (zero-size tensors too), else ``None``.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    pieces: tuple[Piece, ...] = ()
    inline: bytes | None = None

    @property
    def size_bytes(self) -> int:
        """Raw bytes of the whole tensor."""
        return prod(self.shape) * dtype_of(self.dtype).item_bytes

    @property
    def chunks(self) -> tuple[ChunkId, ...]:
        """Every chunk, piece after piece."""
        return tuple(chunk for piece in self.pieces for chunk in piece.chunks)

    @property
    def cuts(self) -> tuple[int, ...]:
        """Bytes of each chunk in ``chunks``."""
        return tuple(cut for piece in self.pieces for cut in piece.cuts)


@dataclass(frozen=True, slots=True)
class ValueEntry:
    """A value: its canonical encoding, inline or, when it is large, cut into chunks.

    Attributes:
        position: its place among its siblings.
        inline: canonical encoding of a typed value (``store.values``), or ``None`` when it is in chunks.
        cuts: bytes of each chunk.
        chunks: ids of the chunks that hold the encoding.
    """

    position: int
    inline: bytes | None = None
    cuts: tuple[int, ...] = ()
    chunks: tuple[ChunkId, ...] = ()

    @property
    def size_bytes(self) -> int:
        """Bytes of the value's encoding."""
        return len(self.inline) if self.inline is not None else sum(self.cuts)


@dataclass(frozen=True, slots=True)
class ContainerEntry:
    """A container that holds tensors somewhere below; its children are entries whose names continue its own.

    Attributes:
        position: its place among its siblings.
        container: what it is (``"dict"``, ``"list"``, ...); the layer above gives the word meaning.
        info: what else is needed to build it (a default factory, a class name), a plain value.
    """

    position: int
    container: str
    info: Plain = None

    @property
    def chunks(self) -> tuple[ChunkId, ...]:
        """None of its own."""
        return ()


Entry = TensorEntry | ValueEntry | ContainerEntry


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
        node: dict[str, Node] = {}
        if self.ties:
            node["ties"] = [list(names) for names in self.ties]
        if self.subtrees:
            node["subtrees"] = [[s.first_name, s.entry_count, s.tree] for s in self.subtrees]
        else:
            node["entries"] = [[name, _entry_node(entry)] for name, entry in self.entries]
        return canonical.encode(node)

    @classmethod
    def decode(cls, data: Buffer, what: str = "tree") -> "TreeNode":
        """Inverse of :meth:`encode`.

        Raises:
            Corrupt: not the canonical encoding of a well-formed tree.
        """
        node = canonical.decode(data, what)
        tree = _parse(what, lambda: _tree_from(node, what))
        if tree.encode() != data:
            raise Corrupt(f"{what}: not the canonical encoding of its content")
        return tree


@dataclass(frozen=True, slots=True)
class Commit:
    """A checkpoint.

    Attributes:
        items: item name to its tree.
        parents: commits this one came from; none for the first, two for a merge.
        step: training step, or ``None``.
        time_ns: when it was made, nanoseconds since the epoch, by the saver's clock (never used for decisions).
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
        node = canonical.decode(data, what)
        commit = _parse(what, lambda: _commit_from(node, what))
        if commit.encode() != data:
            raise Corrupt(f"{what}: not the canonical encoding of its content")
        return commit


def check_name(name: str) -> None:
    """Check the name of an entry or item.

    Raises:
        Incompatible: too long, or not encodable as UTF-8.
    """
    try:
        size_bytes = len(name.encode())
    except UnicodeEncodeError:
        raise Incompatible(f"name {name!r} cannot be written as UTF-8", name=name) from None
    if size_bytes > MAX_NAME_BYTES:
        raise Incompatible(f"name of {size_bytes} bytes is longer than {MAX_NAME_BYTES}: {name[:80]!r}…", name=name)


def root_id(node: TreeNode) -> TreeId:
    """Id of a tree object."""
    return tree_id(node.encode())


# --- encoding -----------------------------------------------------------------------------------------------------


def _entry_node(entry: Entry) -> Node:
    if isinstance(entry, TensorEntry):
        body: dict[str, Node] = {"dtype": entry.dtype, "position": entry.position, "shape": list(entry.shape)}
        if entry.inline is not None:
            body["inline"] = entry.inline
        else:
            body["pieces"] = [_piece_node(piece) for piece in entry.pieces]
        return {"tensor": body}
    if isinstance(entry, ValueEntry):
        if entry.inline is not None:
            return {"value": {"inline": entry.inline, "position": entry.position}}
        body = {"chunks": list(entry.chunks), "cuts": _runs(entry.cuts), "position": entry.position}
        return {"value": body}
    return {
        "container": {"info": values.to_node(entry.info), "position": entry.position, "type": entry.container},
    }


def _piece_node(piece: Piece) -> Node:
    return {
        "chunks": list(piece.chunks),
        "cuts": _runs(piece.cuts),
        "offsets": list(piece.offsets),
        "sizes": list(piece.sizes),
    }


def _runs(cuts: Iterable[int]) -> Node:
    """Run-length form of the cuts: ``[[bytes, count], ...]``."""
    return [[cut, sum(1 for _ in run)] for cut, run in groupby(cuts)]


# --- decoding: shape is checked here, so that readers never meet a surprise -----------------------------------------


def _parse(what: str, build: Any) -> Any:
    try:
        return build()
    except Corrupt:
        raise
    except (KeyError, ValueError, TypeError, IndexError, AttributeError, OverflowError) as error:
        raise Corrupt(f"{what}: malformed ({type(error).__name__}: {error})") from error


def _require(condition: bool, what: str, why: str) -> None:
    if not condition:
        raise Corrupt(f"{what}: {why}")


def _text(node: Node, what: str) -> str:
    _require(type(node) is str, what, f"text expected, got {node!r:.60}")
    return cast(str, node)


def _count(node: Node, what: str) -> int:
    _require(type(node) is int and 0 <= node < 2**63, what, f"count expected, got {node!r:.60}")
    return cast(int, node)


def _id(node: Node, what: str) -> ObjectId:
    _require(type(node) is bytes and len(node) == ID_BYTES, what, f"object id expected, got {node!r:.60}")
    return ObjectId(node)


def _tree_from(node: Node, what: str) -> TreeNode:
    ties = tuple(tuple(_text(name, what) for name in names) for names in node.get("ties", []))
    _require("ties" not in node or (len(ties) > 0 and all(len(t) > 1 for t in ties)), what, "empty ties")
    if "subtrees" in node:
        subtrees = tuple(
            SubTree(_text(n, what), _count(c, what), TreeId(_id(t, what))) for n, c, t in node["subtrees"]
        )
        _require(len(subtrees) > 0, what, "no sub-trees")
        _require_sorted([s.first_name for s in subtrees], what)
        return TreeNode(subtrees=subtrees, ties=ties)
    entries = tuple((_text(name, what), _entry_from(body, f"{what}: {name!r}")) for name, body in node["entries"])
    _require_sorted([name for name, _ in entries], what)
    return TreeNode(entries=entries, ties=ties)


def _require_sorted(names: list[str], what: str) -> None:
    encoded = [name.encode() for name in names]
    _require(all(a < b for a, b in pairwise(encoded)), what, "names not sorted and unique")


def _entry_from(node: Node, what: str) -> Entry:
    ((kind, body),) = node.items()
    position = _count(body["position"], what)
    if kind == "tensor":
        return _tensor_from(body, position, what)
    if kind == "value":
        if "inline" in body:
            _require(type(body["inline"]) is bytes, what, "inline bytes expected")
            _require(len(body["inline"]) <= MAX_INLINE_VALUE_BYTES, what, "inline value too large")
            return ValueEntry(position, inline=body["inline"])
        cuts, chunks = _chunks_from(body, what)
        return ValueEntry(position, cuts=cuts, chunks=chunks)
    if kind == "container":
        return ContainerEntry(position, _text(body["type"], what), values.from_node(body["info"], what))
    raise Corrupt(f"{what}: unknown kind of entry {kind!r}")


def _tensor_from(body: Node, position: int, what: str) -> TensorEntry:
    name, shape = _text(body["dtype"], what), tuple(_count(size, what) for size in body["shape"])
    try:
        item_bytes = dtype_of(name).item_bytes
    except Incompatible as error:
        raise Corrupt(f"{what}: {error}") from error
    size_bytes = prod(shape) * item_bytes
    if "inline" in body:
        inline = body["inline"]
        _require(type(inline) is bytes and len(inline) == size_bytes, what, "inline bytes do not fit the shape")
        _require(size_bytes <= MAX_INLINE_BYTES, what, "inline tensor too large")
        return TensorEntry(position, name, shape, inline=inline)
    pieces = tuple(_piece_from(piece, shape, item_bytes, what) for piece in body["pieces"])
    covered = sum(prod(piece.sizes) for piece in pieces) * item_bytes
    _require(covered == size_bytes, what, f"pieces cover {covered} of {size_bytes} bytes")
    return TensorEntry(position, name, shape, pieces=pieces)


def _piece_from(body: Node, shape: tuple[int, ...], item_bytes: int, what: str) -> Piece:
    offsets = tuple(_count(offset, what) for offset in body["offsets"])
    sizes = tuple(_count(size, what) for size in body["sizes"])
    _require(len(offsets) == len(sizes) == len(shape), what, "piece of another rank than its tensor")
    inside = all(o + s <= whole for o, s, whole in zip(offsets, sizes, shape, strict=True))
    _require(inside, what, "piece reaches outside its tensor")
    cuts, chunks = _chunks_from(body, what)
    _require(sum(cuts) == prod(sizes) * item_bytes, what, "chunks do not fill their piece")
    _require(all(cut % item_bytes == 0 for cut in cuts), what, "a chunk holds part of an element")
    return Piece(offsets, sizes, cuts, chunks)


def _chunks_from(body: Node, what: str) -> tuple[tuple[int, ...], tuple[ChunkId, ...]]:
    chunks = tuple(ChunkId(_id(chunk, what)) for chunk in body["chunks"])
    runs = [(_count(cut, what), _count(count, what)) for cut, count in body["cuts"]]
    _require(sum(count for _, count in runs) == len(chunks), what, "as many cuts as chunks expected")
    _require(all(0 < cut <= MAX_CHUNK_BYTES for cut, _ in runs), what, "chunk length out of range")
    return tuple(cut for cut, count in runs for _ in range(count)), chunks


def _commit_from(node: Node, what: str) -> Commit:
    step = node["step"]
    _require(step is None or (type(step) is int and -(2**63) <= step < 2**63), what, "step is not an integer")
    items = {_text(name, what): TreeId(_id(tree, what)) for name, tree in node["items"].items()}
    metadata = {_text(key, what): values.from_node(value, what) for key, value in node["metadata"]}
    return Commit(
        items=items,
        parents=tuple(CommitId(_id(parent, what)) for parent in node["parents"]),
        step=step,
        time_ns=_count(node["time_ns"], what),
        branch=_text(node["branch"], what),
        message=_text(node["message"], what),
        metadata=metadata,
    )
