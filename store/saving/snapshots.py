"""A save by several ranks, seen from the one that creates and publishes it.

    with repo.create_snapshot(request, world_size=4) as snapshot:
        ...                                  # tell the ranks its id; each calls ``ranks.save_rank``
        commit = snapshot.finalize()

The creator holds a lease from before it tells anybody the snapshot's id, which is the lease's name, until the branch is
on the commit. While it is held, packs that parts name are kept; once it is not, parts and packs are garbage, which
whoever opens the store next, or gc, removes. No clock is asked: a creator may be suspended for as long as it likes.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from contextlib import suppress
from dataclasses import replace
from pathlib import Path
from types import TracebackType
from typing import TYPE_CHECKING, NamedTuple, Self

from ..errors import Busy, Conflict, Corrupt, Incompatible, MoonclipError, NotFound, PartsOutdated
from ..format.entries import Entry
from ..format.objects import TreeNode
from ..format.pack import PackTable
from ..format.values import Plain
from ..ids import CommitId, ObjectId, PackId, TreeId
from ..index import Place
from ..limits import STORE_ATTEMPTS
from ..naming.refs import NotDurable
from ..reading.closure import trees_below
from ..reading.packs import PackGone, pack_path
from ..upkeep.retiring import take_away
from .assembly import Assembled, assemble
from .bases import Bases, LastSave
from .descriptions import Description
from .ingest import Ingest, Known
from .inputs import ItemInput
from .leases import Lease, acquire_lease
from .lines import Line
from .packseries import PackSeries
from .partfiles import (
    begin_parts,
    copy_part,
    gone,
    packs_of_parts,
    ranks_handed_in,
    read_parts,
    release_parts,
    write_part,
)
from .parts import Part
from .phases import Phases
from .publish import Approve, HolesFound, add_to_index, move_branch
from .rankindex import Excerpt, excerpt_of
from .saver import SaveRequest, require_legal

if TYPE_CHECKING:
    from ..repository import Repository


class _Nothing:
    """What is asked of the index once it was wrong: everything is stored again."""

    def places_below(self, object_ids: Collection[ObjectId]) -> Mapping[ObjectId, list[Place]]:
        return {object_id: [] for object_id in object_ids}


class _Stored(NamedTuple):
    """What ranks have stored.

    Attributes:
        items: what it comes to.
        tables: the packs that hold it.
        storers: ranks whose parts name a pack.
        parts: as they were handed in.
    """

    items: Mapping[str, Assembled]
    tables: Sequence[PackTable]
    storers: Mapping[PackId, Collection[int]]
    parts: Sequence[Part]

    def ranks_of(self, holes: HolesFound) -> list[int]:
        """Ranks whose packs are gone, or that counted on objects which are."""
        found = {rank for pack in holes.packs for rank in self.storers.get(pack, ())}
        for part in self.parts if holes.objects else ():
            chunks = (chunk for item in part.items.values() for each in item.entries.values() for chunk in each.chunks)
            if not holes.objects.isdisjoint(chunks):
                found.add(part.rank)
        return sorted(found)


class Snapshot:
    """A snapshot in the making. Made by :func:`create_snapshot`; a context manager that gives it up if not published.

    For one thread. In a forked child it is not the child's: there it can only be let go of.

    Attributes:
        id: what ranks are told: 32 hex digits.
        world_size: how many ranks there are.
        last: once it is published, what the next request may name as its last save, so that the parent's trees need not
            be read again. It holds no entries: ranks remember those.
    """

    def __init__(self, repository: "Repository", request: SaveRequest, world_size: int, lease: Lease) -> None:
        self.id = lease.name
        self.world_size = world_size
        self.last: LastSave | None = None
        self._repo = repository
        self._root: Path = repository.layout.root
        self._request = request
        self._lease = lease
        self._begun = 0
        self._first = 0
        self._taken: list[str] = []
        self._line = Line(request, repository.index, repository.absences, repository.reader)

    @property
    def branch(self) -> str:
        """Where it is to be committed, short name."""
        return self._request.branch

    def missing_ranks(self) -> list[int]:
        """Ranks that have not handed in their part yet, in order."""
        there = set(ranks_handed_in(self._root, self._repo.files, self.id))
        return [rank for rank in range(self.world_size) if rank not in there]

    def take_over(self, rank: int, apart: str | None) -> None:
        """Take what a rank has stored apart as its part of this snapshot. Its place there goes once this is published.

        Args:
            rank: which.
            apart: the id of its ``apart.Apart``; ``None`` if it has nothing to store.

        Raises:
            SnapshotGone: the rank let go of it, or ended.
            Corrupt: it is damaged.
            OSError: it could not be read or written.
        """
        if apart is None:
            write_part(self._root, self._repo.files, self.id, Part(rank, (), {}))
            return
        copy_part(self._root, self._repo.files, apart, self.id, rank)
        self._taken.append(apart)

    def describe(self, metadata: Mapping[str, Plain], first: int = 0) -> None:
        """Say what is known only once ranks have stored.

        Args:
            metadata: what the commit carries in place of what was asked for.
            first: the rank that says in which order things lie, also such as other ranks store.

        Raises:
            Incompatible: the metadata cannot be stored.
        """
        request = replace(self._request, metadata=metadata)
        require_legal(request)
        self._request = request
        self._first = first

    def finalize(self, approve: Approve | None = None) -> CommitId:
        """Publish what the ranks have stored, as one commit, if ``approve`` lets it once all is durable.

        Where this fails before the commit has a name, the snapshot stays in the making: mend what is told, and finalize
        again.

        Raises:
            BaseException: what ``approve`` raises. Refs are as before.
            PartsMissing: ranks have not handed in their part; names them.
            PartsOutdated: what ranks counted on was swept meanwhile; have those that it names store theirs ``again``.
            Incompatible: the parts do not fit together: a hole or an overlap in a tensor, values that differ.
            Conflict: the branch moved meanwhile; the error names where the commit was kept.
            Corrupt: a part or the branch's file is damaged.
            SnapshotGone: it was published or given up before.
            NotDurable: the commit is made and the branch on it, but the disk failed to make that durable.
            OSError: writing failed. Refs are as before.
        """
        if not self._lease.is_ours:
            raise gone(self.id)
        repo = self._repo
        stored = self._stored(read_parts(self._root, repo.files, self.id, self.world_size))
        commit, trees = self._publish(stored)
        request = self._request
        if approve is not None:
            approve(commit)  # whatever it raises, a Conflict too: the commit has no name yet
        try:
            move_branch(repo.refs, request.branch, request.left or request.parent, commit, request.message)
        except (Conflict, Corrupt, NotDurable):  # the commit has a name: nothing is left to do for this snapshot
            self._end()
            raise
        self.last = LastSave({}, {}, self._line.ordinal, commit, trees)
        self._end()
        return commit

    def abandon(self) -> None:
        """Give it up, unless it is published: what ranks stored is removed. Again does nothing.

        Raises nothing: what cannot be removed is garbage, and gc finds it.
        """
        if not self._lease.is_ours:
            self._lease.release()
            return
        try:
            self._remove_all()
        finally:
            self._lease.release()

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.abandon()

    def _remove_all(self) -> None:
        files, packs = self._repo.files, frozenset[PackId]()
        with suppress(MoonclipError, OSError):
            packs = packs_of_parts(self._root, files, self.id)
        release_parts(self._root, files, self.id)
        for pack in packs:  # not those that the index refers to, if it came to that
            with suppress(MoonclipError, OSError):
                self._take_away(self._repo.packs.table(pack))

    def _end(self) -> None:
        """It is published: parts are not needed any more, nor is the lease."""
        for each in (self.id, *self._taken):
            release_parts(self._root, self._repo.files, each)
        self._lease.release()

    # --- publishing -------------------------------------------------------------------------------------------------

    def _stored(self, parts: Sequence[Part]) -> _Stored:
        items = assemble(sorted(parts, key=lambda part: part.rank != self._first))
        storers: dict[PackId, list[int]] = {}
        for part in parts:
            for pack in part.packs:
                storers.setdefault(pack, []).append(part.rank)
        tables, lost = [], []
        for pack in storers:
            try:
                tables.append(self._repo.packs.table(pack))
            except (PackGone, Corrupt):
                lost.append(pack)
        stored = _Stored(items, tables, storers, parts)
        if lost:
            raise self._outdated(stored.ranks_of(HolesFound("gone", packs=lost)))
        return stored

    def _publish(self, stored: _Stored) -> tuple[CommitId, frozenset[TreeId]]:
        """Steps 2 and 3 of a commit, see ``publish``: trees and commit go into a pack of the creator's own."""
        known: Known = self._repo.index
        for _ in range(STORE_ATTEMPTS):
            directory, lease = self._repo.layout.packs, self._lease
            packs = PackSeries(self._repo.files, directory, lease.name, lease.add_pack, self._begun)
            try:
                return self._attempt(stored, packs, known)
            except HolesFound as holes:
                for table in packs.published:
                    with suppress(MoonclipError, OSError):
                        self._take_away(table)
                ranks = stored.ranks_of(holes)
                if ranks:
                    raise self._outdated(ranks) from holes
                known = _Nothing()
            finally:
                packs.abandon()
                self._begun = packs.begun
        raise Busy("objects are swept as fast as this snapshot finds them stored; try again when gc is done")

    def _attempt(self, stored: _Stored, packs: PackSeries, known: Known) -> tuple[CommitId, frozenset[TreeId]]:
        repo, no_bases = self._repo, Bases(self._repo.reader, {}, {})
        ingest = Ingest(known, packs, no_bases, None, repo.threads, Phases(), self._is_intact)
        inputs = [ItemInput(name, {}, item.ties) for name, item in sorted(stored.items.items())]
        entries: dict[str, Mapping[str, Entry]] = {name: item.entries for name, item in stored.items.items()}
        commit = self._request.commit(ingest.trees(inputs, entries))
        commit_id = ingest.commit(commit)
        self._lease.add_commit(commit_id)
        tables = [*stored.tables, *packs.publish()]

        def load(tree: TreeId) -> TreeNode:
            return ingest.nodes.get(tree) or repo.reader.tree_node(tree)

        add_to_index(repo.index, tables, self._is_there, commit, load, self._line.closed_trees)
        return commit_id, frozenset(ingest.nodes)

    def _is_there(self, pack: PackId) -> bool:
        return self._repo.files.exists(pack_path(self._repo.layout.packs, pack))

    def _is_intact(self, tree: TreeId) -> bool:
        try:
            self._repo.reader.tree_node(tree)
        except (NotFound, Corrupt):
            return False
        return True

    def _take_away(self, table: PackTable) -> None:
        object_ids = [entry.id for entry in table.entries]
        take_away(self._repo.index, self._repo.layout, self._repo.files, self._lease, table.id, object_ids)

    def _outdated(self, ranks: Sequence[int]) -> PartsOutdated:
        return PartsOutdated(
            f"what ranks {', '.join(map(str, ranks))} counted on was removed since they stored their parts of snapshot"
            f" {self.id}; have them store these again, in full, and finalize once more",
            snapshot=self.id,
            ranks=list(ranks),
        )


def create_snapshot(
    repository: "Repository", request: SaveRequest, world_size: int, *, ranks_remember: bool = False
) -> Snapshot:
    """Begin a save by several ranks.

    Args:
        repository: the store, writable.
        request: where it is to be committed. Its items come from the ranks: it has none itself. Its last save, if it
            has one, is what ``Snapshot.last`` of the snapshot before gave.
        world_size: how many ranks there are.
        ranks_remember: every rank will compare with its own last save. Unless that is so, they are told where the
            parent's content lies.

    Raises:
        Incompatible: something of the request cannot be stored, or there is no rank. Nothing was written.
        NotFound: there is no such parent.
        OSError: writing failed.

    Cost: for ranks that do not remember, a look-up and about 100 bytes for each chunk of the parent.
    """
    require_legal(request)
    if request.items or world_size < 1:
        raise Incompatible(f"a snapshot has at least one rank, and all its items from ranks; got {world_size} ranks")
    line = Line(request, repository.index, repository.absences, repository.reader)
    trees = {} if ranks_remember else line.expected
    excerpt = _excerpt(repository, trees.values())
    told = Description(world_size, line.ordinal, line.is_second, trees, excerpt, request.branch)
    lease = acquire_lease(repository.layout.root, repository.files)
    snapshot = Snapshot(repository, request, world_size, lease)
    try:
        for parent in request.merged:
            lease.add_commit(parent)  # from here on gc keeps it, whatever else names it
        begin_parts(repository.layout.root, repository.files, lease.name, told.encode())
    except BaseException:
        snapshot.abandon()
        raise
    return snapshot


def _excerpt(repository: "Repository", roots: Iterable[TreeId]) -> Excerpt:
    """Where trees lie, the chunks in them, and all below those; what cannot be read nobody can count on."""
    try:
        trees = list(trees_below(list(roots), repository.reader.tree_node))
        nodes = [repository.reader.tree_node(tree) for tree in trees]
    except (NotFound, Corrupt):
        return {}
    sought: set[ObjectId] = {chunk for node in nodes for _, entry in node.entries for chunk in entry.chunks}
    return excerpt_of(repository.index.places_below(sought.union(trees)))
