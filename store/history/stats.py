"""What a store holds, and what sharing, deltas and compression saved.

Every byte that people saved is accounted for once: shared with something stored already (dedup), saved by storing a
chunk against a base (delta), saved by encoding it (compression), or stored. So is every byte of packs: stored, kept as
a base, about to be given back, or staying beside these.
"""

from collections.abc import Sequence
from dataclasses import dataclass

from ..format.entries import Entry, TensorEntry, ValueEntry
from ..format.objects import Kind
from ..gc.accounting import account
from ..ids import CommitId, ObjectId, TreeId
from ..index import Place
from ..repository import Repository
from ..upkeep.absences import expected_items
from ..upkeep.roots import live_commits, read_roots


@dataclass(frozen=True, slots=True)
class Stats:
    """Sums over all live commits, in bytes unless named a count. What is absent counts for nothing.

    Attributes:
        commit_count: commits, those that were pruned among them.
        tensor_bytes: tensors and values as they were saved, each commit counted in full.
        inline_bytes: of these, what sits in trees.
        shared_bytes: of these, what was stored already: dedup.
        delta_saved_bytes: raw less stored, over chunks that are deltas.
        compression_saved_bytes: raw less stored, over chunks that are not.
        chunk_stored_bytes: what the chunks take in packs.
        tree_stored_bytes: what trees and commits take in packs.
        chunk_count: distinct chunks.
        delta_count: of these, stored as deltas.
        pack_count: packs in the store, and
        pack_bytes: their size: chunks, trees and commits as stored, and the following.
        base_bytes: what deltas need and no commit is made of any more.
        gc_bytes: what gc gives back, and
        repack_bytes: what a repack that puts packs together gives back after that.
        rest_bytes: what is needed no more and stays, as its packs hold little of it or are being made.
        table_bytes: packs' own heads and tables, and commits that nothing reaches.
    """

    commit_count: int
    tensor_bytes: int
    inline_bytes: int
    shared_bytes: int
    delta_saved_bytes: int
    compression_saved_bytes: int
    chunk_stored_bytes: int
    tree_stored_bytes: int
    chunk_count: int
    delta_count: int
    pack_count: int
    pack_bytes: int
    base_bytes: int
    gc_bytes: int
    repack_bytes: int
    rest_bytes: int
    table_bytes: int


def collect(repository: Repository) -> Stats:
    """Walk all commits and sum.

    Cost: reads each tree object twice, no tensors; one look-up for each distinct chunk, and 4 µs an object.

    Raises:
        NotFound: a tree or chunk is missing.
        Corrupt: a tree is damaged.
    """
    tally = _Tally(repository)
    for row in live_commits(repository.lookup, read_roots(repository).commits):
        tally.add_commit(row.id)
    return tally.stats()


class _Tally:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._commits: set[ObjectId] = set()
        self._sizes: dict[TreeId, tuple[int, int]] = {}
        self._chunks: dict[ObjectId, int] = {}
        self._tensor_bytes = 0
        self._inline_bytes = 0

    def add_commit(self, commit_id: CommitId) -> None:
        self._commits.add(commit_id)
        commit = self._repository.commit(commit_id)
        for root in expected_items(commit, self._repository.absences, commit_id).values():
            total, inline = self._size(root)
            self._tensor_bytes += total
            self._inline_bytes += inline

    def _size(self, tree: TreeId) -> tuple[int, int]:
        """(bytes of all entries, bytes of those that are inline) of a tree; notes its chunks."""
        if tree not in self._sizes:
            node = self._repository.reader.tree_node(tree)
            sizes = [self._size(subtree.tree) for subtree in node.subtrees]
            sizes += [self._entry_size(entry) for _, entry in node.entries]
            self._sizes[tree] = (sum(total for total, _ in sizes), sum(inline for _, inline in sizes))
        return self._sizes[tree]

    def _entry_size(self, entry: Entry) -> tuple[int, int]:
        if not isinstance(entry, TensorEntry | ValueEntry):
            return 0, 0
        self._chunks.update(zip(entry.chunks, entry.cuts, strict=True))
        return entry.size_bytes, entry.size_bytes if entry.inline is not None else 0

    def stats(self) -> Stats:
        places = [self._repository.reader.place(chunk, Kind.CHUNK) for chunk in self._chunks]
        small = [self._repository.reader.place(tree, Kind.TREE) for tree in self._sizes]
        small += [self._repository.reader.place(commit, Kind.COMMIT) for commit in self._commits]
        deltas = [place for place in places if place.base is not None]
        plain = [place for place in places if place.base is None]
        stored_bytes, tree_bytes = (sum(place.stored_bytes for place in part) for part in (places, small))
        held = account(self._repository, (self._chunks, self._sizes, self._commits))
        beside_bytes = held.base_bytes + held.gc_bytes + held.repack_bytes + held.rest_bytes
        return Stats(
            commit_count=len(self._commits),
            tensor_bytes=self._tensor_bytes,
            inline_bytes=self._inline_bytes,
            shared_bytes=self._tensor_bytes - self._inline_bytes - sum(self._chunks.values()),
            delta_saved_bytes=_saved(deltas),
            compression_saved_bytes=_saved(plain),
            chunk_stored_bytes=stored_bytes,
            tree_stored_bytes=tree_bytes,
            chunk_count=len(places),
            delta_count=len(deltas),
            pack_count=held.pack_count,
            pack_bytes=held.pack_bytes,
            base_bytes=held.base_bytes,
            gc_bytes=held.gc_bytes,
            repack_bytes=held.repack_bytes,
            rest_bytes=held.rest_bytes,
            table_bytes=max(0, held.pack_bytes - stored_bytes - tree_bytes - beside_bytes),  # 0: a save came between
        )


def _saved(places: Sequence[Place]) -> int:
    return sum(place.raw_bytes - place.stored_bytes for place in places)
