"""Rebuilding the index from packs, of which it is a digest.

Copies are resolved bottom-up, across all packs: those without a base first, then deltas whose base is resolved. A
pack that cannot be read, and deltas that cannot be resolved, are left out and named: what else holds the objects still
counts.
"""

from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass, field

from ..errors import MoonclipError
from ..format.objects import Commit, Kind
from ..format.pack import TableEntry
from ..ids import CommitId, ObjectId, PackId
from ..index import CommitRow, IndexWriter
from ..index.depths import resolve_depths
from ..limits import MAX_CHAIN_DEPTH
from ..reading.packs import PackStore, Unreadable
from ..reading.reader import decode_small


@dataclass(slots=True)
class Digest:
    """What the packs of a store hold.

    Attributes:
        tables: entries of each pack that can be read.
        rows: commits, parents before children, sequences from 1.
        unreadable: packs whose table cannot be read.
        problems: what could not be read or placed, and why.
        orphan_count: deltas that were left out since their base is in no pack. gc leaves such behind in packs of which
            most is needed; that something needs one, for a pack was lost, is for fsck to find.
    """

    tables: dict[PackId, tuple[TableEntry, ...]] = field(default_factory=dict)
    rows: list[CommitRow] = field(default_factory=list)
    unreadable: list[PackId] = field(default_factory=list)
    problems: list[str] = field(default_factory=list)
    orphan_count: int = 0


def digest_packs(packs: PackStore, only: Iterable[PackId] | None = None) -> Digest:
    """Read the tables of packs, and their commits.

    Args:
        packs: reads them.
        only: which; all that there are if ``None``.

    Cost: three small reads a pack, one for each commit.
    """
    digest = Digest()
    commits: dict[CommitId, Commit] = {}
    for pack in packs.pack_ids() if only is None else only:
        try:
            digest.tables[pack] = packs.table(pack).entries
        except MoonclipError as error:
            if not isinstance(error, Unreadable):  # what the disk failed to read this time it may read the next
                digest.unreadable.append(pack)
            digest.problems.append(str(error))
    for pack, entries in digest.tables.items():
        for entry in entries:
            if entry.kind == Kind.COMMIT:
                _add_commit(packs, pack, entry, commits, digest.problems)
    digest.rows = list(_in_order(commits))
    return digest


Placed = dict[PackId, list[tuple[TableEntry, int]]]
"""What an index is to know of each pack: entries and their depths."""


def place_all(digest: Digest) -> Placed:
    """Resolve all copies. Deltas that nothing can be read from are left out, and told of in ``digest``."""
    copies = [PackEntry(pack, entry) for pack, entries in digest.tables.items() for entry in entries]
    placed: Placed = {pack: [] for pack in digest.tables}
    resolved, too_deep, unresolved = resolve_depths(copies, lambda _: None)
    for copy, depth in resolved:
        placed[copy.pack].append((copy.entry, depth))
    chained = _without_orphans(unresolved, {copy.id for copy, _ in resolved} | {copy.id for copy in too_deep})
    digest.orphan_count = len(unresolved) - len(chained)
    for pack, count in Counter(copy.pack for copy in (*too_deep, *chained)).items():
        digest.problems.append(
            f"pack {pack.hex()}: {count} deltas whose chain is a cycle, or longer than {MAX_CHAIN_DEPTH}"
        )
    return placed


def fill(writer: IndexWriter, digest: Digest, placed: Placed) -> None:
    """Add all of a digest to an empty index."""
    for pack, resolved in placed.items():
        writer.add_places(pack, resolved)
    for pack in digest.unreadable:
        writer.add_places(pack, ())  # it has been read, and needs not be again whenever something is not found
    for row in digest.rows:
        writer.add_commit(row)


@dataclass(frozen=True, slots=True)
class PackEntry:
    """An entry of a pack's table, for resolving depths across packs.

    Attributes:
        pack: the pack.
        entry: the entry.
    """

    pack: PackId
    entry: TableEntry

    @property
    def id(self) -> ObjectId:
        """The object."""
        return self.entry.id

    @property
    def base(self) -> ObjectId | None:
        """What it is a delta against."""
        return self.entry.base


def _without_orphans(unresolved: Sequence[PackEntry], others: set[ObjectId]) -> list[PackEntry]:
    """Of deltas that cannot be resolved, those whose chain does not lead out of all packs."""
    left, before = list(unresolved), -1
    while len(left) != before:
        before = len(left)
        held = others | {copy.id for copy in left}
        left = [copy for copy in left if copy.base in held]
    return left


def _add_commit(
    packs: PackStore, pack: PackId, entry: TableEntry, commits: dict[CommitId, Commit], problems: list[str]
) -> None:
    try:
        header, payload = packs.read_entry(pack, entry)
        commit = Commit.decode(decode_small(header, payload), f"commit {entry.id.hex()}")
    except MoonclipError as error:
        problems.append(str(error))
    else:
        commits[CommitId(entry.id)] = commit


def _in_order(commits: dict[CommitId, Commit]) -> Iterator[CommitRow]:
    """Parents before children; among those that could come next, the oldest by its saver's clock."""
    done: set[CommitId] = set()
    sequence = 0
    for root in sorted(commits, key=lambda commit_id: (commits[commit_id].time_ns, commit_id)):
        for commit_id in _ancestors_first(root, commits, done):
            sequence += 1
            commit = commits[commit_id]
            yield CommitRow(commit_id, commit.parents, commit.step, commit.time_ns, commit.branch, sequence)


def _ancestors_first(root: CommitId, commits: dict[CommitId, Commit], done: set[CommitId]) -> Iterable[CommitId]:
    """The commit after its ancestors, those aside that are done. A history may be long: no recursion."""
    stack = [root]
    while stack:
        commit_id = stack[-1]
        pending = [parent for parent in commits[commit_id].parents if parent in commits and parent not in done]
        if commit_id not in done and pending:
            stack += pending
            continue
        stack.pop()
        if commit_id not in done:
            done.add(commit_id)
            yield commit_id
