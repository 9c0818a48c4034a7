"""One save, from inputs to a commit that people see."""

import logging
import time
from collections.abc import Mapping, Sequence
from contextlib import ExitStack, suppress
from dataclasses import dataclass, field, replace

from ..disk.files import Files
from ..errors import Busy, Corrupt, Incompatible, MoonclipError, NotFound
from ..format.entries import Entry, check_name
from ..format.objects import Commit
from ..format.trees import Tree
from ..format.values import Plain
from ..ids import ID_BYTES, CommitId, ObjectId, PackId, TreeId
from ..index import Version
from ..layout import Layout
from ..limits import STORE_ATTEMPTS
from ..naming.refnames import branch_name
from ..naming.refs import RefStore
from ..parallel import Threads
from ..reading.closure import Load
from ..reading.lookup import Index
from ..reading.packs import pack_path
from ..reading.reader import ObjectReader
from ..upkeep.absences import Absences
from ..upkeep.retiring import take_away
from .bases import Bases, Buffers, ItemEntries, LastSave, Places
from .ingest import Counts, Ingest
from .inputs import ItemInput, TensorInput
from .leases import Lease, acquire_lease
from .lines import Line
from .packseries import PackSeries
from .phases import Phases
from .publish import Approve, HolesFound, add_to_index, move_branch
from .restarts import chains_among

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
        left: where the branch is if that is not the parent but a damaged commit, which the branch leaves behind.
        merged: further parents, whose content went into this one. If the branch does not exist yet, the first of them
            is what the commit comes after.
    """

    items: Sequence[ItemInput]
    branch: str
    parent: CommitId | None = None
    step: int | None = None
    message: str = ""
    metadata: Mapping[str, Plain] = field(default_factory=dict)
    last: LastSave | None = None
    merged: tuple[CommitId, ...] = ()
    left: CommitId | None = None

    @property
    def parents(self) -> tuple[CommitId, ...]:
        """Parents of the commit."""
        return (*((self.parent,) if self.parent else ()), *self.merged)

    @property
    def previous(self) -> CommitId | None:
        """The first parent: what the commit comes after on its line, and is stored against."""
        return next(iter(self.parents), None)

    def commit(self, trees: Mapping[str, TreeId]) -> Commit:
        """The commit, made now, of these items."""
        return Commit(
            items=trees,
            parents=self.parents,
            step=self.step,
            time_ns=time.time_ns(),
            branch=self.branch,
            message=self.message,
            metadata=self.metadata,
        )


@dataclass(frozen=True, slots=True)
class Saved:
    """What became of a save.

    Attributes:
        commit: the commit's id.
        last: what the next save can compare with, as long as the inputs' buffers stay unaltered.
        counts: chunks and bytes.
        seconds: where its time went, by phase: CPU seconds summed over threads for ``plan``, ``compare``, ``hash``,
            ``lookup``, ``encode``, ``write`` (checksums and the copy into blocks; a thread of its own waits for the
            disk) and ``trees``; seconds on the clock for ``sync`` (packs), ``index``, ``ref`` and ``lease``.
    """

    commit: CommitId
    last: LastSave
    counts: Counts
    seconds: Mapping[str, float]


_Stored = tuple[CommitId, LastSave, Counts]
"""What is known of a save once it is in the index."""


class Saver:
    """Runs one save on a store.

    Args:
        files: does the I/O.
        layout: where things lie.
        index: what is stored.
        absences: what may be missing.
        refs: what moves.
        reader: reads parents and bases.
        threads: run the chunks.
    """

    def __init__(
        self,
        files: Files,
        layout: Layout,
        index: Index,
        absences: Absences,
        refs: RefStore,
        reader: ObjectReader,
        threads: Threads,
    ) -> None:
        self._files = files
        self._layout = layout
        self._index = index
        self._absences = absences
        self._refs = refs
        self._reader = reader
        self._threads = threads
        self._phases = Phases()

    def save(self, request: SaveRequest, approve: Approve | None = None) -> Saved:
        """Store and commit, if ``approve`` lets it once all is durable.

        Raises:
            BaseException: what ``approve`` raises. Refs are as before; gc takes what was stored.
            Incompatible: an input that cannot be stored. Nothing was written that anything refers to.
            NotUnchanged: an input is said to be as in the last save, whose chunks are not there any more; likewise.
            NotFound: there is no commit ``request.parent``.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
            Corrupt: the branch's file is damaged; likewise.
            NotDurable: the commit is made and the branch on it, but the disk failed to make that durable.
            OSError: writing failed. Refs are as before.
        """
        require_legal(request)
        waiting = self._phases.waiting
        with ExitStack() as stack:
            with waiting("lease"):
                lease = stack.enter_context(acquire_lease(self._layout.root, self._files))
                for parent in request.merged:
                    lease.add_commit(parent)  # from here on gc keeps it, whatever else names it
            commit, last, counts = self._store(request, lease)
            with waiting("ref"):
                if approve is not None:
                    approve(commit)
                move_branch(self._refs, request.branch, request.left or request.parent, commit, request.message)
        return Saved(commit, last, counts, self._phases.seconds)

    def _store(self, request: SaveRequest, lease: Lease) -> _Stored:
        """Steps 2 and 3; again without bases when gc took something that the attempt counted on."""
        with self._phases.computing("plan"):
            line = Line(request, self._index, self._absences, self._reader)
            bases, last = self._bases(request, line), request.last
        for _ in range(STORE_ATTEMPTS):
            packs = PackSeries(self._files, self._layout.packs, lease.name, lease.add_pack)
            try:
                return self._attempt(request, lease, packs, bases, last, line)
            except HolesFound:
                self._take_away(packs, lease)
                bases, last = Bases(self._reader, {}, {}), None
            finally:
                packs.abandon()
        raise Busy("objects are swept as fast as this save finds them stored; try again when gc is done")

    def _attempt(
        self, request: SaveRequest, lease: Lease, packs: PackSeries, bases: Bases, last: LastSave | None, line: Line
    ) -> _Stored:
        ordinal = line.ordinal
        turn = None if line.is_second else ordinal
        version = self._index.version()
        known = _known(last, version)
        ingest = Ingest(self._index, packs, bases, turn, self._threads, self._phases, self._is_intact, known)
        entries = ingest.chunks(request.items)
        with self._phases.computing("trees"):
            commit = request.commit(ingest.trees(request.items, entries))
            commit_id = ingest.commit(commit)
        with self._phases.waiting("lease"):
            lease.add_commit(commit_id)
        with self._phases.waiting("sync"):
            tables = packs.publish()
        with self._phases.waiting("index"):
            load = self._load_from(ingest)
            added = add_to_index(self._index, tables, self._is_there, commit, load, line.closed_trees)
        trees, buffers = frozenset(ingest.nodes), _buffers(request.items)
        made = LastSave(entries, buffers, ordinal, commit_id, trees)
        if version is not None and added.version == version.next:  # else what was told may not be so any more
            with self._phases.computing("lookup"):
                places = _places(entries, {**known, **ingest.told, **added.places})
            made = replace(made, places=places, version=added.version)
        return commit_id, made, ingest.counts

    def _take_away(self, packs: PackSeries, lease: Lease) -> None:
        """Make room for the next attempt. What cannot be taken away gc finds."""
        for table in packs.published:
            with suppress(MoonclipError, OSError):
                object_ids = [entry.id for entry in table.entries]
                take_away(self._index, self._layout, self._files, lease, table.id, object_ids)

    def _load_from(self, ingest: Ingest) -> Load:
        return lambda tree: ingest.nodes.get(tree) or self._reader.tree_node(tree)

    def _is_there(self, pack: PackId) -> bool:
        return self._files.exists(pack_path(self._layout.packs, pack))

    def _is_intact(self, tree: TreeId) -> bool:
        """Whether a tree that is stored can be read. One that can is taken up; all that is in it depends on it."""
        try:
            self._reader.tree_node(tree)
        except (NotFound, Corrupt) as error:
            _log.warning("a tree is damaged, and is stored again: %s", error)
            return False
        return True

    def _bases(self, request: SaveRequest, line: Line) -> Bases:
        last = request.last or LastSave({}, {}, 0)
        stored = line.expected
        entries = {
            item.name: last.entries.get(item.name) or self._entries(stored[item.name])
            for item in request.items
            if item.name in last.entries or item.name in stored
        }
        return Bases(self._reader, entries, last.buffers, last.entries)

    def _entries(self, root: TreeId) -> Mapping[str, Entry]:
        try:
            return dict(Tree(self._reader.tree_node(root), self._reader.tree_node))
        except (NotFound, Corrupt) as error:
            _log.warning("the parent of this save is damaged: %s", error)
            return {}


def require_legal(request: SaveRequest) -> None:
    """Refuse, before anything is written, whatever of the request itself cannot be read back.

    Looks at the names of items, not into them.

    Raises:
        Incompatible: a name, step, message or metadata that cannot be stored.
    """
    branch_name(request.branch)
    if request.step is not None and request.step < 0:
        raise Incompatible(f"a step is 0 or more, not {request.step}")
    names = [item.name for item in request.items]
    for name in names:
        check_name(name)
    if len(set(names)) != len(names):
        raise Incompatible(f"two items have one name, among {', '.join(map(repr, names))}")
    try:
        Commit.decode(request.commit(dict.fromkeys(names, _NO_TREE)).encode())
    except Corrupt as error:
        raise Incompatible(f"this cannot be committed: {error}") from error


_NO_TREE = TreeId(ObjectId(bytes(ID_BYTES)))


def _known(last: LastSave | None, version: Version | None) -> Places:
    """Places of what the last save holds, if nobody has written to the index since."""
    return last.places if last is not None and version is not None and last.version == version else {}


def _places(entries: ItemEntries, known: Places) -> Places:
    """Of the chunks of a save, and of the bases below them."""
    chunks = (chunk for by_name in entries.values() for entry in by_name.values() for chunk in entry.chunks)
    return chains_among(chunks, known)


def _buffers(items: Sequence[ItemInput]) -> Buffers:
    return {
        (item.name, name): given.data
        for item in items
        for name, given in item.entries.items()
        if isinstance(given, TensorInput) and isinstance(given.data, memoryview)
    }
