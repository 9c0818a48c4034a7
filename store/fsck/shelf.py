"""Objects as the packs have them. The index has no part in it: a check does not ask what it checks."""

from collections.abc import Collection

from ..format.objects import Commit, Kind, TreeNode
from ..format.pack import TableEntry
from ..ids import ChunkId, CommitId, ObjectId, PackId, TreeId, short
from ..index import MemoryIndex, Place
from ..reading.packs import PackStore
from ..reading.reader import ObjectReader
from .findings import Stock

_NO_PACK = PackId(b"")
"""Stands for the pack of what is yet to be put into one."""


class Shelf:
    """Reads objects of which a copy is whole. Thread-safe.

    Args:
        stock: what the packs hold; copies that turn out to be damaged may still be taken off.
        packs: reads them.
    """

    def __init__(self, stock: Stock, packs: PackStore) -> None:
        self._stock = stock
        self._put: dict[ObjectId, bytes | bytearray] = {}
        self._places = _Places(stock)
        self._reader = ObjectReader(self._places, packs)

    def commit(self, commit_id: CommitId) -> Commit:
        """Read a commit.

        Raises:
            NotFound: no copy is whole.
            Corrupt: it is not the canonical encoding of a commit.
        """
        raw = self._put.get(commit_id)
        return self._reader.commit(commit_id) if raw is None else Commit.decode(raw, f"commit {short(commit_id)}")

    def tree_node(self, tree: TreeId) -> TreeNode:
        """Read a tree object. Raises as :meth:`commit` does."""
        raw = self._put.get(tree)
        return self._reader.tree_node(tree) if raw is None else TreeNode.decode(raw, f"tree {short(tree)}")

    def chunk(self, chunk: ChunkId) -> bytearray:
        """Decode a chunk.

        Raises:
            NotFound: of it, or of a base of it, no copy is whole.
            Corrupt: its chain does not decode.
        """
        return self._reader.chunk(chunk)

    def put(self, entry: TableEntry, raw: bytes | bytearray) -> None:
        """Add an object that is in no pack yet: trees and commits can be read from now on, chunks count as here."""
        self._stock.intact.setdefault(entry.id, []).append((_NO_PACK, entry))
        if entry.kind != Kind.CHUNK:
            self._put[entry.id] = raw

    def depth(self, object_id: ObjectId, pack: PackId) -> int | None:
        """How many objects have to be decoded before a copy; ``None`` if it cannot be."""
        return next((place.depth for place in self._places.places(object_id) if place.pack == pack), None)


class _Places:
    """Where intact copies are, as a reader asks."""

    def __init__(self, stock: Stock) -> None:
        self._stock = stock
        tables: dict[PackId, list[TableEntry]] = {}
        for copies in stock.intact.values():
            for pack, entry in copies:
                tables.setdefault(pack, []).append(entry)
        self._index = MemoryIndex(tables.items(), ())

    def places(self, object_id: ObjectId) -> list[Place]:
        """Copies, the cheapest to read first."""
        whole = {pack for pack, _ in self._stock.intact.get(object_id, ())}
        return [place for place in self._index.places(object_id) if place.pack in whole]

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same for many."""
        return {object_id: self.places(object_id) for object_id in object_ids}

    def places_in_packs(self, object_id: ObjectId) -> list[Place]:
        """The same: nothing moves from pack to pack during a check."""
        return self.places(object_id)

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Nothing is remembered here: the reader itself does."""
