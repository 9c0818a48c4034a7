"""One save, from inputs to a commit that people see."""

import logging
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from .bases import Bases, Buffers, LastSave
from .closure import Load, trees_below
from .entries import Entry, check_name
from .errors import Busy, Corrupt, Incompatible, NotFound
from .files import Files
from .ids import ID_BYTES, CommitId, ObjectId, TreeId
from .ingest import Counts, Ingest
from .inputs import ItemInput, TensorInput
from .layout import Layout
from .leases import Lease, acquire_lease
from .limits import STORE_ATTEMPTS
from .lookup import Index
from .objects import Commit
from .packseries import PackSeries
from .parallel import Threads
from .publish import HolesFound, add_to_index, move_branch
from .reader import ObjectReader
from .refnames import branch_name
from .refs import RefStore
from .trees import Tree
from .values import Plain

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class SaveRequest:
    """What to commit, and where.

    Attributes:
        items: the things to store; their buffers stay unaltered until the save is done.
        branch: branch to move, short name.
        parent: where that branch is believed to be, ``None`` if it does not exist yet; becomes the commit's parent.
        step: training step, if there is one.
        message: what a person says of it.
        metadata: plain values by key, order kept.
        last: the last save from here, whose bytes are still in memory, or ``None``.
    """

    items: Sequence[ItemInput]
    branch: str
    parent: CommitId | None = None
    step: int | None = None
    message: str = ""
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    last: LastSave | None = None


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a save.

    Attributes:
        commit: the commit's id.
        last: what the next save can compare with, as long as the inputs' buffers stay unaltered.
        counts: chunks and bytes.
    """

    commit: CommitId
    last: LastSave
    counts: Counts


class Saver:
    """Runs saves on one store.

    Args:
        files: does the I/O.
        layout: where things lie.
        index: what is stored.
        refs: what moves.
        reader: reads parents and bases.
        threads: run the chunks.
    """

    def __init__(
        self, files: Files, layout: Layout, index: Index, refs: RefStore, reader: ObjectReader, threads: Threads
    ) -> None:
        self._files = files
        self._layout = layout
        self._index = index
        self._refs = refs
        self._reader = reader
        self._threads = threads

    def save(self, request: SaveRequest) -> Saved:
        """Store and commit.

        Raises:
            Incompatible: an input that cannot be stored. Nothing was written that anything refers to.
            NotFound: there is no commit ``request.parent``.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
            Corrupt: the branch's file is damaged; likewise.
            NotDurable: the commit is made and the branch on it, but the disk failed to make that durable.
            OSError: writing failed. Refs are as before.
        """
        require_legal(request)
        with acquire_lease(self._layout.root, self._files) as lease:
            saved = self._store(request, lease)
            move_branch(self._refs, request.branch, request.parent, saved.commit, request.message)
        return saved

    def _store(self, request: SaveRequest, lease: Lease) -> Saved:
        """Steps 2 and 3; again without bases when gc took something that the attempt counted on."""
        parent = self._parent(request)
        bases = self._bases(request, parent)
        for _ in range(STORE_ATTEMPTS):
            packs = PackSeries(self._files, self._layout.packs, lease.name, lease.add_pack)
            try:
                return self._attempt(request, lease, packs, bases, parent)
            except HolesFound:
                packs.remove()
                bases = Bases(self._reader, {}, {})
            finally:
                packs.abandon()
        raise Busy("objects are swept as fast as this save finds them stored; try again when gc is done")

    def _attempt(
        self, request: SaveRequest, lease: Lease, packs: PackSeries, bases: Bases, parent: Commit | None
    ) -> Saved:
        ordinal = self._ordinal(request)
        # The second commit of a line, a fine-tune on its base say, finds no chain that could be long.
        is_second = parent is not None and not parent.parents
        ingest = Ingest(self._index, packs, bases, None if is_second else ordinal, self._threads)
        entries = ingest.chunks(request.items)
        commit = _commit(request, ingest.trees(request.items, entries))
        commit_id = ingest.commit(commit)
        lease.add_commit(commit_id)
        tables = packs.publish()
        add_to_index(self._index, tables, commit, self._load_from(ingest), self._closed_trees(parent))
        return Saved(commit_id, LastSave(entries, _buffers(request.items), ordinal), ingest.counts)

    def _load_from(self, ingest: Ingest) -> Load:
        return lambda tree: ingest.nodes.get(tree) or self._reader.tree_node(tree)

    def _parent(self, request: SaveRequest) -> Commit | None:
        """The parent, or ``None`` also if it is damaged: what was saved earlier must not keep a run from saving."""
        try:
            return self._reader.commit(request.parent) if request.parent else None
        except Corrupt as error:
            _log.warning("the parent of this save is damaged: %s", error)
            return None

    def _ordinal(self, request: SaveRequest) -> int:
        """Counted here while a run saves: arrivals from several runs in turn would fall into step with each other."""
        if request.last is not None:
            return request.last.ordinal + 1
        row = self._index.commit(request.parent) if request.parent else None
        return row.sequence + 1 if row else 0

    def _closed_trees(self, parent: Commit | None) -> set[TreeId]:
        """Tree objects of the parent: it is closed, so whatever the new commit shares with it is."""
        try:
            return set(trees_below(parent, self._reader.tree_node)) if parent else set()
        except (NotFound, Corrupt) as error:
            _log.warning("the parent of this save is damaged: %s", error)
            return set()

    def _bases(self, request: SaveRequest, parent: Commit | None) -> Bases:
        last = request.last or LastSave({}, {}, 0)
        stored = parent.items if parent else {}
        entries = {
            item.name: last.entries.get(item.name) or self._entries(stored[item.name])
            for item in request.items
            if item.name in last.entries or item.name in stored
        }
        return Bases(self._reader, entries, last.buffers)

    def _entries(self, root: TreeId) -> Mapping[str, Entry]:
        try:
            return dict(Tree(self._reader.tree_node(root), self._reader.tree_node))
        except (NotFound, Corrupt) as error:
            _log.warning("the parent of this save is damaged: %s", error)
            return {}


def _commit(request: SaveRequest, trees: Mapping[str, TreeId]) -> Commit:
    return Commit(
        items=trees,
        parents=(request.parent,) if request.parent else (),
        step=request.step,
        time_ns=time.time_ns(),
        branch=request.branch,
        message=request.message,
        metadata=request.metadata,
    )


def require_legal(request: SaveRequest) -> None:
    """Refuse, before anything is written, whatever of the request itself cannot be read back.

    Looks at the names of items, not into them.

    Raises:
        Incompatible: a name, step, message or metadata that cannot be stored.
    """
    branch_name(request.branch)
    names = [item.name for item in request.items]
    for name in names:
        check_name(name)
    if len(set(names)) != len(names):
        raise Incompatible(f"two items have one name, among {', '.join(map(repr, names))}")
    try:
        Commit.decode(_commit(request, dict.fromkeys(names, _NO_TREE)).encode())
    except Corrupt as error:
        raise Incompatible(f"this cannot be committed: {error}") from error


_NO_TREE = TreeId(ObjectId(bytes(ID_BYTES)))


def _buffers(items: Sequence[ItemInput]) -> Buffers:
    return {
        (item.name, name): given.data
        for item in items
        for name, given in item.entries.items()
        if isinstance(given, TensorInput)
    }
