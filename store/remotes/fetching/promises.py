"""What a remote has promised: content that is not here, that a record permits to be missing, and that comes when read.

A tree is fetched with all tree objects below it; from then on the chunks that it names are *promised*, and whoever
reads some of them gets those that are not here, at once, before the read goes on as ever. Nothing else that is missing
is fetched: it is damage, and is told of.

What came so stays under its record: to gc it is a cache, which it empties, and what is read after that is fetched
again. Of a commit that a branch, tag or pin names the record goes as soon as all of an item has been read, and is
here: then gc keeps it.
"""

import logging
import os
import threading
from collections.abc import Callable, Collection, Iterable, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial

from ...batches import batches
from ...errors import Busy, Corrupt, MoonclipError, NotFound, Pruned, ReadOnly
from ...format.objects import Commit, TreeNode
from ...format.trees import Tree
from ...ids import ChunkId, CommitId, ObjectId, TreeId, short
from ...index import BrokenIndex
from ...limits import LOOKUP_ATTEMPTS, SWEEP_KEYS
from ...naming.refnames import BRANCHES, TAGS
from ...reading.closure import missing_objects
from ...reading.reader import ObjectReader
from ...repository import Repository
from ...saving.leases import acquire_lease
from ...upkeep.absences import WHOLE, first_for
from ..remote import Remote, open_remote
from .catalogue import Catalogue
from .obtaining import Obtaining

_log = logging.getLogger(__name__)

_Part = tuple[CommitId, str]
"""An item of a commit."""


@dataclass(slots=True)
class _Process:
    """What one process has of its own: a forked child has no use for its parent's locks and connections.

    Attributes:
        fetching: held while something is fetched, so that two threads that read the same fetch it once.
        noting: held while it is noted what was read.
        links: remotes that were opened, and what is known of their packs.
    """

    fetching: threading.Lock = field(default_factory=threading.Lock)
    noting: threading.Lock = field(default_factory=threading.Lock)
    links: dict[str, tuple[Remote, Catalogue]] = field(default_factory=dict)


class Promises:
    """Fetches what is read. Thread-safe, also beside forks.

    Args:
        repository: the store. If it was opened for reading only, what is fetched is stored, and read, by way of
            another handle: what is read stays what it is.
    """

    def __init__(self, repository: Repository) -> None:
        self._repo = repository
        self._writing: Repository | None = None
        self._processes: dict[int, _Process] = {}
        self._promised: dict[ChunkId, str] = {}
        self._unread: dict[_Part, set[ObjectId]] = {}

    def tree(self, commit: Commit, commit_id: CommitId, item: str, origin: str) -> Tree:
        """The tree of an item that may be missing; fetched, as far as it is, with all below it.

        Args:
            commit: the commit.
            commit_id: its id.
            item: the item's name.
            origin: name of the remote that has it.

        Raises:
            Pruned: the remote does not have it either, and by right.
            Corrupt: the remote cannot give it.
            Busy: gc takes it away as fast as it is fetched.
            Incompatible: the remote needs a newer version.
            ReadOnly: it is not here, and the store cannot be written from here.
            RemoteError: the remote failed.
            OSError: the disk failed.
        """
        nodes: dict[TreeId, TreeNode] = {}
        level = [commit.items[item]]
        while level:
            try:
                nodes |= self._nodes(level, origin)
            except Corrupt:
                if self._missing(level):
                    self._require_promised(commit_id, item, origin)
                raise
            below = [subtree.tree for tree in level for subtree in nodes[tree].subtrees]
            level = [tree for tree in dict.fromkeys(below) if tree not in nodes]
        chunks = {chunk for node in nodes.values() for _, entry in node.entries for chunk in entry.chunks}
        with self._process.noting:
            self._promised |= dict.fromkeys(chunks, origin)
        self._note_opened((commit_id, item), chunks)
        return Tree(nodes[commit.items[item]], nodes.__getitem__)

    def is_awaited(self, chunk: ChunkId) -> bool:
        """Whether a chunk is promised and not here."""
        return chunk in self._promised and bool(self._missing([chunk]))

    def bring(self, chunks: Iterable[ChunkId]) -> None:
        """Fetch those of some chunks that are promised and not here. Raises as :meth:`tree` does, but for Pruned."""
        promised = [chunk for chunk in dict.fromkeys(chunks) if chunk in self._promised]
        if promised:
            by_origin: dict[str, list[ObjectId]] = {}
            for chunk in self._missing(promised):
                by_origin.setdefault(self._promised[ChunkId(chunk)], []).append(chunk)
            for origin, missing in by_origin.items():
                self._obtain(missing, origin)
            self._note_read(promised)

    def reading(self, chunks: Collection[ChunkId], read: Callable[[ObjectReader], None]) -> None:
        """Read chunks, those that are promised and not here being fetched before.

        Args:
            chunks: what is read.
            read: reads them; called again if gc took some of them away before they were read.

        Raises:
            NotFound: one that nobody promised is not here. Otherwise as :meth:`bring`, and what ``read`` raises.
        """
        promised = [chunk for chunk in chunks if chunk in self._promised]
        for _ in range(LOOKUP_ATTEMPTS):
            self.bring(promised)
            try:
                return read(self._at.reader)
            except (NotFound, Corrupt):  # swept meanwhile; or damaged here, and then it is as good as not here
                if not self._missing(promised):
                    raise
        raise _swept()

    def close(self) -> None:
        """Close connections; what is promised and not here cannot be read any more."""
        for remote, _ in self._process.links.values():
            remote.close()
        self._process.links.clear()
        if self._writing is not None:
            self._writing.close()

    # --- fetching ---------------------------------------------------------------------------------------------------

    @property
    def _at(self) -> Repository:
        """Where things are read."""
        return self._writing or self._repo

    @property
    def _process(self) -> _Process:
        return self._processes.setdefault(os.getpid(), _Process())

    def _missing(self, object_ids: Sequence[ObjectId]) -> list[ObjectId]:
        """Those that are not here."""
        try:
            return _lacking(self._at, object_ids)
        except BrokenIndex:
            return []  # who reads seeks it in the packs

    def _nodes(self, trees: Sequence[TreeId], origin: str) -> dict[TreeId, TreeNode]:
        """Tree objects, those that are not here being fetched."""
        for _ in range(LOOKUP_ATTEMPTS):
            missing = self._missing(trees)
            if missing:
                self._obtain(missing, origin)
            try:
                return {tree: self._at.reader.tree_node(tree) for tree in trees}
            except (NotFound, Corrupt):
                if not self._missing(trees):
                    raise
        raise _swept()

    def _obtain(self, wanted: Sequence[ObjectId], origin: str) -> None:
        with self._process.fetching:
            store = self._writable()
            missing = self._missing(wanted)  # another thread may have fetched them
            if not missing:
                return
            _log.info("reading %d objects from %s", len(missing), origin)
            try:
                remote, catalogue = self._link(origin)
                with acquire_lease(store.layout.root, store.files) as lease:
                    got = Obtaining(store, remote, catalogue, lease, None).obtain(missing)
            except BaseException:
                self._unlink(origin)  # it may have been interrupted anywhere
                raise
        if got.lacking:
            object_id, why = next(iter(got.lacking.items()))
            raise Corrupt(
                f"what is read is not here, and {origin} does not give {len(got.lacking)} objects of it: {why}",
                object=object_id.hex(),
                origin=origin,
            )

    def _writable(self) -> Repository:
        """The store, so that what is fetched can be put there.

        Raises:
            ReadOnly: it cannot.
        """
        if not self._at.read_only:
            return self._at
        store = Repository.open(self._repo.layout.root, files=self._repo.files)
        if store.read_only:
            store.close()
            raise ReadOnly(
                f"what is read is not here, and the store at {self._repo.layout.root}, which cannot be written from"
                " here, cannot take what would be fetched; read it where it can be written",
                path=str(self._repo.layout.root),
            )
        self._writing = store
        return store

    def _link(self, origin: str) -> tuple[Remote, Catalogue]:
        links = self._process.links
        if origin not in links:
            opener = self._repo.remote_openers.get(origin)
            remote = open_remote(self._repo, origin) if opener is None else opener()
            links[origin] = remote, Catalogue(remote)
            remote.format()  # raises if it needs a newer version
        return links[origin]

    def _unlink(self, origin: str) -> None:
        link = self._process.links.pop(origin, None)
        if link is not None:
            link[0].close()

    def _require_promised(self, commit_id: CommitId, item: str, origin: str) -> None:
        """See that the remote's own records do not permit it to lack an item.

        Raises:
            Pruned: they do.
        """
        with self._process.fetching:
            absent = self._link(origin)[0].absent()
        record = first_for((each for each in absent if each.commit == commit_id), item)
        if record is not None:
            raise Pruned(
                f"the item {item!r} of commit {short(commit_id)} is not here, and was not pushed to {origin} either:"
                f" there it is {record.why}; pick another revision, see `moonclip log`",
                commit=commit_id.hex(),
                item=item,
                why=record.why.value,
                origin=origin,
            )

    # --- what has been read -----------------------------------------------------------------------------------------

    def _note_opened(self, part: _Part, chunks: set[ChunkId]) -> None:
        """Hear what there is to read of an item, if its record is to go once that is here."""
        if not self._at.read_only:
            with suppress(Corrupt):  # a damaged ref is no fault of who reads
                if part[0] in _named(self._at):
                    unread = set(_lacking(self._at, list(chunks)))
                    with self._process.noting:
                        self._unread[part] = unread
                    self._note_read(())

    def _note_read(self, chunks: Collection[ChunkId]) -> None:
        """Hear that chunks are here, and take back the records of what is whole by now."""
        with self._process.noting:
            for unread in self._unread.values():
                unread.difference_update(chunks)
            whole = [part for part, unread in self._unread.items() if not unread]
            for part in whole:
                del self._unread[part]
        for commit_id, item in whole:
            with suppress(MoonclipError, OSError):  # reading must not fail for it: then the record stands
                self._keep(commit_id, item)

    def _keep(self, commit_id: CommitId, item: str) -> None:
        """Take back the record of an item that is whole."""
        store = self._at
        with store.files.lock_exclusive(store.layout.root / "gc.lock", blocking=False):  # nothing is swept meanwhile
            record = store.absences.reason(commit_id, item)
            if record is None:
                return
            commit, is_all = store.commit(commit_id), record.item == WHOLE
            roots = list(commit.items.values()) if is_all else [commit.items[item]]
            if not missing_objects(roots, store.reader.tree_node, partial(_lacking, store)):
                store.absences.withdraw(commit_id, None if is_all else [item])


def _lacking(store: Repository, object_ids: Sequence[ObjectId]) -> list[ObjectId]:
    """Objects of which the index knows no good copy. Packs are not asked: most of what is sought is in none."""
    missing: list[ObjectId] = []
    for batch in batches(object_ids, SWEEP_KEYS):
        missing += [each for each, places in store.index.places_of_each(batch).items() if not places]
    return missing


def _named(store: Repository) -> set[CommitId]:
    """Commits that policies do not prune: what was read of them is wanted for longer."""
    refs = [store.refs.list(f"{kind}/") for kind in (BRANCHES, TAGS)]
    return {commit for found in refs for commit in found.values()} | store.pins.all().keys()


def _swept() -> Busy:
    return Busy("objects are swept as fast as they are fetched to be read; try again when gc is done")
