"""What models of a family take beside each other: what each adds to those before it, and what it shares with them."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass

from ..format.entries import Entry, TensorEntry, ValueEntry
from ..format.objects import Kind
from ..ids import ChunkId, CommitId, ObjectId, TreeId
from ..repository import Repository
from ..sizes import size_bytes_of
from ..upkeep.absences import expected_items


@dataclass(frozen=True, slots=True)
class Member:
    """What a commit takes beside those listed before it. What is absent counts for nothing.

    Attributes:
        commit: the commit.
        lacks: items of it that are not here: they were pruned, or not fetched.
        raw_bytes: its tensors and values as they were saved. Of these
        inline_bytes: sit in trees,
        shared_bytes: were in a commit before it, or elsewhere in it,
        delta_bytes: are new, and stored as deltas, and
        own_bytes: are new, and stored in themselves.
        delta_stored_bytes: what those stored as deltas take in packs,
        own_stored_bytes: what those take that are stored in themselves, and
        tree_stored_bytes: what its new trees take, and the commit itself.
    """

    commit: CommitId
    lacks: tuple[str, ...]
    raw_bytes: int
    inline_bytes: int
    shared_bytes: int
    delta_bytes: int
    own_bytes: int
    delta_stored_bytes: int
    own_stored_bytes: int
    tree_stored_bytes: int

    @property
    def added_bytes(self) -> int:
        """What it adds to the store."""
        return self.delta_stored_bytes + self.own_stored_bytes + self.tree_stored_bytes


def members(repository: Repository, commits: Iterable[CommitId]) -> Iterator[Member]:
    """What each of some commits takes, as it is stored now.

    Args:
        repository: the store.
        commits: in the order in which they count.

    Cost: reads each tree object once, no tensors; one look-up for each distinct chunk.

    Raises:
        NotFound: a commit, tree or chunk is missing.
        Corrupt: one is damaged.
    """
    tally = _Tally(repository)
    for commit_id in commits:
        yield tally.member(commit_id)


class _Tally:
    def __init__(self, repository: Repository) -> None:
        self._repository = repository
        self._seen: set[ObjectId] = set()

    def member(self, commit_id: CommitId) -> Member:
        commit = self._repository.commit(commit_id)
        items = expected_items(commit, self._repository.absences, commit_id)
        trees: set[TreeId] = set()
        entries = [entry for root in items.values() for entry in self._below(root, trees)]
        chunks = [pair for entry in entries for pair in _chunks(entry)]
        new = {chunk: cut for chunk, cut in chunks if chunk not in self._seen}
        places = [self._repository.reader.place(chunk, Kind.CHUNK) for chunk in new]
        deltas = [place for place in places if place.base is not None]
        plain = [place for place in places if place.base is None]
        raw_bytes = sum(map(size_bytes_of, entries))
        inline_bytes = sum(size_bytes_of(entry) for entry in entries if not entry.chunks)
        small = self._small_bytes(commit_id, trees)
        self._seen.update(new, trees, [commit_id])
        return Member(
            commit=commit_id,
            lacks=tuple(item for item in commit.items if item not in items),
            raw_bytes=raw_bytes,
            inline_bytes=inline_bytes,
            shared_bytes=sum(cut for _, cut in chunks) - sum(new.values()),
            delta_bytes=sum(place.raw_bytes for place in deltas),
            own_bytes=sum(place.raw_bytes for place in plain),
            delta_stored_bytes=sum(place.stored_bytes for place in deltas),
            own_stored_bytes=sum(place.stored_bytes for place in plain),
            tree_stored_bytes=small,
        )

    def _below(self, tree: TreeId, trees: set[TreeId]) -> Iterator[Entry]:
        trees.add(tree)
        node = self._repository.reader.tree_node(tree)
        for subtree in node.subtrees:
            yield from self._below(subtree.tree, trees)
        for _, entry in node.entries:
            yield entry

    def _small_bytes(self, commit_id: CommitId, trees: Iterable[TreeId]) -> int:
        reader = self._repository.reader
        places = [reader.place(tree, Kind.TREE) for tree in trees if tree not in self._seen]
        places += [reader.place(commit_id, Kind.COMMIT)] if commit_id not in self._seen else []
        return sum(place.stored_bytes for place in places)


def _chunks(entry: Entry) -> Iterable[tuple[ChunkId, int]]:
    if isinstance(entry, TensorEntry | ValueEntry):
        return zip(entry.chunks, entry.cuts, strict=True)
    return ()
