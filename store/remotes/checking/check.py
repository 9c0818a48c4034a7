"""Checking a remote: that all its refs promise is there, and, if asked, that every byte of it is what it should be.

Quick: what packs and their idx files say, and the trees; nothing of what chunks hold is read. Full: every pack is
downloaded, and every object decoded and compared with its hash. Nothing is altered there. What was found to be lost is
noted here: the next push sends it again.

A finding is something that a ref needs and that cannot be had, or a file that says nothing. A damaged copy of what is
whole elsewhere on the remote is a note: packs are never altered, so it stays until gc removes its pack.
"""

import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from typing import Final

from ...errors import Corrupt, NotFound
from ...format import whole
from ...format.objects import Commit, TreeNode
from ...fsck.findings import Report, Stock
from ...fsck.graph import Graph, walk
from ...ids import Buffer, ChunkId, CommitId, ObjectId, TreeId, short
from ...limits import MAX_REMOTE_KEYS, MAX_REMOTE_REF_BYTES, REMOTE_GRACE_SECONDS
from ...naming.refnames import BRANCHES, describe
from ...repository import Repository
from ..condemned import Condemned
from ..holdings import Holdings, read_holdings
from ..idx import decoded_commit
from ..losses import Losses, note, noted
from ..names import CONDEMNED, FORMAT, SCRATCH, PackName, RefKey, parse_absent, parse_ref
from ..packlist import Listing, all_keys, listing, sort_keys
from ..refcontent import decode_ref
from ..remote import Remote
from ..storages.storage import Stat
from .dead import needed_packs
from .hashing import Hashing
from .marks import Permits, mark
from .treereading import TreeReading

__all__ = ["Progress", "RemoteReport", "check_remote", "lost_objects"]

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do. What it raises ends the check."""

_GRACE_NS: Final = REMOTE_GRACE_SECONDS * 1_000_000_000


@dataclass(slots=True)
class RemoteReport(Report):
    """What a check of a remote saw.

    Attributes:
        url: the remote.
        lost: objects that refs need and that cannot be read there; the next push sends those that are here.
        condemned_count: packs that are about to be deleted.
        unfinished_count: uploads that were begun and are not done.
        foreign_count: keys that are none of ours.
    """

    url: str = ""
    lost: set[ObjectId] = field(default_factory=set)
    condemned_count: int = 0
    unfinished_count: int = 0
    foreign_count: int = 0


def check_remote(
    repo: Repository, remote: Remote, *, full: bool = False, progress: Progress | None = None
) -> RemoteReport:
    """Check a remote.

    Args:
        repo: a store that knows it. What is lost is noted there, if it can be written.
        remote: the remote.
        full: download everything, decode it, and compare hashes.
        progress: told how far it is.

    Returns:
        What was looked at and what is wrong. Damage is reported, not raised.

    Raises:
        RemoteError: the remote did not answer.
        Incompatible: it needs features that this version lacks.

    Cost: a request for each idx and ref, and for 8 MiB of trees that are not here; half a kilobyte of memory an object.
    """
    report = RemoteReport(full=full, url=remote.storage.url)
    if remote.format() is None:
        report.note("remote", f"{report.url} has no {FORMAT!r}: nothing was ever pushed there")
        return report
    return _Check(repo, remote, report, progress or _nobody_watches).run()


def lost_objects(repo: Repository, remote: Remote) -> set[ObjectId]:
    """Objects that refs of a remote need and that are not there, as far as listings and idx files say; and noted ones.

    What ``push`` takes as ``lost``.

    Raises:
        Corrupt: a ref is damaged, or the list of condemned packs.
        Incompatible: a newer version wrote something there.

    Cost: as :func:`check_remote`, but for idx files that are known here.
    """
    known = noted(repo, remote)
    refs, condemned = remote.refs(), remote.condemned()
    holdings = read_holdings(remote, listing(remote.storage), without=_doomed(condemned))
    holdings.drop(known.copies)
    trees, readable = TreeReading(repo, remote, holdings), holdings.readable()
    tips = [ref.commit for ref in refs.values() if ref.commit is not None]
    marks = mark(tips, repo, holdings, Permits(remote.absent()), trees, readable)
    return marks.lost(readable) | marks.unreadable.keys() | (known.objects - readable)


class _Check:
    def __init__(self, repo: Repository, remote: Remote, report: RemoteReport, progress: Progress) -> None:
        self._repo = repo
        self._remote = remote
        self._report = report
        self._progress = progress

    def run(self) -> RemoteReport:
        report, remote = self._report, self._remote
        keys = list(all_keys(remote.storage, "", MAX_REMOTE_KEYS))
        packs, others = sort_keys(keys)
        condemned = self._condemned()
        roots = self._roots(others)
        holdings = read_holdings(remote, packs, without=_doomed(condemned), afresh=True)
        stock = self._stock(holdings)
        hashing = self._look_into(holdings, stock)
        spots = {(damage.copy.pack.text, damage.copy.entry.id) for damage in hashing.damage}
        graph, lost = self._walk(roots, holdings, stock, hashing, spots)
        report.lost = lost
        report.last_good = _last_good(roots, graph)
        self._note_packs(packs, holdings, condemned, graph)
        self._note_others(others)
        if not self._repo.read_only:
            note(self._repo, remote, Losses(frozenset(lost), frozenset(spots)))
        return report

    # --- what there is ----------------------------------------------------------------------------------------------

    def _condemned(self) -> Condemned:
        try:
            condemned = self._remote.condemned()
        except Corrupt as error:
            self._report.find("remote", str(error))
            return Condemned()
        self._report.condemned_count = len(condemned.packs)
        return condemned

    def _roots(self, others: Sequence[Stat]) -> dict[CommitId, list[RefKey]]:
        """What refs name. A damaged one hides no other."""
        keys = {ref: stat.key for stat in others if (ref := parse_ref(stat.key)) is not None}
        roots: dict[CommitId, list[RefKey]] = {}
        for ref, found in self._remote.at_once(lambda ref: self._read_ref(keys[ref]), keys).items():
            if isinstance(found, str):
                self._report.find("ref", f"{describe(ref.name)} of the remote ({keys[ref]}): {found}")
            elif found is not None:
                roots.setdefault(found, []).append(ref)
        return roots

    def _read_ref(self, key: str) -> CommitId | str | None:
        """What a ref names, nothing, or what is wrong with it."""
        try:
            found = self._remote.storage.get(key, MAX_REMOTE_REF_BYTES)
            return None if found is None else decode_ref(found[0], key)
        except Corrupt as error:
            return str(error)

    def _stock(self, holdings: Holdings) -> Stock:
        """What the packs hold, as a check of a store has it; tells of packs that cannot be used."""
        report, stock = self._report, Stock()
        for name, idx in holdings.idxs.items():
            stock.tables[name.id] = idx.table.entries
            report.pack_count += 1
            report.object_count += len(idx.table.entries)
            report.stored_bytes += sum(entry.stored_bytes for entry in idx.table.entries)
        for object_id, copies in holdings.copies.items():
            stock.intact[object_id] = [(copy.pack.id, copy.entry) for copy in copies]
        return stock

    def _look_into(self, holdings: Holdings, stock: Stock) -> Hashing:
        """Find damaged copies: all of them in a full check, those found before in a quick one."""
        hashing = Hashing(self._remote.storage, holdings)
        if self._report.full:
            advance = _Meter(self._progress, hashing.size_bytes)
            hashing.check(self._repo.threads, advance.add)
            for problem in hashing.frames.values():
                self._report.note("pack", f"{problem}; what it holds is known from its idx all the same")
        else:
            for pack, object_id in noted(self._repo, self._remote).copies:
                hashing.add_known(pack, object_id)
        for copy, why in hashing.damage:
            stock.damaged[copy.entry.id] = why
        return hashing

    # --- what is needed ---------------------------------------------------------------------------------------------

    def _walk(
        self,
        roots: dict[CommitId, list[RefKey]],
        holdings: Holdings,
        stock: Stock,
        hashing: Hashing,
        spots: set[tuple[str, ObjectId]],
    ) -> tuple[Graph, set[ObjectId]]:
        """Follow the refs; returns what was reached, and what is lost of it."""
        holdings.drop(spots)
        trees, shelf = TreeReading(self._repo, self._remote, holdings), _Shelf(self._repo, holdings, hashing)
        readable, permits = holdings.readable(), Permits(self._remote.absent())
        self._progress("reading trees", 0, len(roots))
        marks = mark(roots, self._repo, holdings, permits, trees, readable, shelf.keep)
        self._progress("reading trees", len(roots), len(roots))
        for copy, why in trees.damaged:
            spots.add((copy.pack.text, copy.entry.id))
            stock.damaged[copy.entry.id] = why
        holdings.drop(spots)
        for _, object_id in spots:
            stock.intact[object_id] = [(copy.pack.id, copy.entry) for copy in holdings.copies_of(object_id)]
        stock.settle()
        named = {commit: [_who(ref) for ref in refs] for commit, refs in roots.items()}
        graph = walk(permits, named, stock, shelf, full=self._report.full)
        graph.tell(self._report)
        for object_id in sorted(stock.damaged.keys() - stock.lost.keys()):
            self._report.note("copy", f"{stock.damaged[object_id]}; another copy of it is whole")
        lost = marks.lost(holdings.readable()) | marks.unreadable.keys() | (graph.problems.keys() & graph.live)
        for fault in holdings.faults.values():
            if lost:
                self._report.find("pack", fault)
            else:
                self._report.note("pack", f"{fault}; nothing needs it, and `moonclip gc --remote` removes it")
        return graph, lost

    # --- what is worth knowing --------------------------------------------------------------------------------------

    def _note_packs(self, packs: Listing, holdings: Holdings, condemned: Condemned, graph: Graph) -> None:
        needed = needed_packs(holdings, packs, graph.live, ())
        for name in sorted(needed & condemned.names()):
            self._report.note("pack", f"pack {name.text} is condemned although refs need it; gc or a push sees to it")
        old_ns = self._remote.storage.now_ns() - _GRACE_NS
        for name, listed in packs.items():
            if not listed.is_whole and listed.modified_ns <= old_ns:
                lacking = "pack" if listed.pack is None else "idx"
                self._report.note("pack", f"pack {name.text} has no {lacking}; `moonclip gc --remote` removes it")

    def _note_others(self, others: Sequence[Stat]) -> None:
        report = self._report
        report.unfinished_count = sum(1 for _ in self._remote.storage.unfinished())
        if report.unfinished_count:
            report.note("remote", f"{report.unfinished_count} uploads are not finished; gc ends those that are old")
        report.foreign_count = sum(not _is_ours(stat.key) for stat in others)
        if report.foreign_count:
            report.note("remote", f"{report.foreign_count} keys there are none of ours; they are left alone")


class _Shelf:
    """Whole objects, from what was kept and from here. A tree that is lost there is not asked for."""

    def __init__(self, repo: Repository, holdings: Holdings, hashing: Hashing) -> None:
        self._repo = repo
        self._holdings = holdings
        self._hashing = hashing
        self._kept: dict[TreeId, tuple[int, bytes]] = {}

    def keep(self, tree: TreeId, encoded: bytes) -> None:
        """Keep a tree for later, compressed, if it is not here."""
        if not self._repo.index.places(tree):
            self._kept[tree] = len(encoded), whole.compress(encoded)

    def commit(self, commit_id: CommitId) -> Commit:
        """Read a commit.

        Raises:
            NotFound: the remote has none.
            Corrupt: it is damaged.
        """
        stored = self._holdings.commit(commit_id)
        if stored is None:
            raise NotFound(f"commit {short(commit_id)} is in no pack of the remote")
        return decoded_commit(commit_id, stored)

    def tree_node(self, tree: TreeId) -> TreeNode:
        """Read a tree object. Raises what reading it from here raises."""
        kept = self._kept.get(tree)
        if kept is None:
            return self._repo.reader.tree_node(tree)
        raw_bytes, compressed = kept
        what = f"tree {short(tree)}"
        return TreeNode.decode(whole.decompress(compressed, raw_bytes, what), what)

    def chunk(self, chunk: ChunkId) -> Buffer:
        """Read a chunk from the remote, and decode it.

        Raises:
            NotFound: no copy there can be decoded.
        """
        return self._hashing.chunk(chunk)


class _Meter:
    """Adds up what arrives. Threads may share it."""

    def __init__(self, progress: Progress, total_bytes: int) -> None:
        self._progress = progress
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._lock = threading.Lock()

    def add(self, count: int) -> None:
        with self._lock:
            self._done_bytes += count
            self._progress("downloading", min(self._done_bytes, self._total_bytes), self._total_bytes)


def _doomed(condemned: Condemned) -> list[PackName]:
    return [name for name in condemned.names() if name.text in condemned.doomed]


def _who(ref: RefKey) -> str:
    return describe(ref.name) + (f" of store {ref.store[:8]}" if ref.store else "")


def _last_good(roots: dict[CommitId, list[RefKey]], graph: Graph) -> dict[str, CommitId | None]:
    """Of branches whose tip is affected the newest commit on their line that is not."""
    found: dict[str, CommitId | None] = {}
    for tip, refs in roots.items():
        if tip in graph.affected_commits:
            for ref in (ref for ref in refs if ref.name.startswith(f"{BRANCHES}/")):
                found[ref.name.partition("/")[2]] = _first_whole(tip, graph)
    return found


def _first_whole(tip: CommitId, graph: Graph) -> CommitId | None:
    following: CommitId | None = tip
    while following is not None and following in graph.affected_commits:
        commit = graph.commits.get(following)
        following = commit.parents[0] if commit is not None and commit.parents else None
    return following


def _is_ours(key: str) -> bool:
    return key in (FORMAT, CONDEMNED) or key.startswith(SCRATCH) or bool(parse_ref(key) or parse_absent(key))


def _nobody_watches(_name: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""
