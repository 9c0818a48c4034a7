"""From named tensors to objects in packs: compare, hash, dedup, encode, append; then trees and the commit.

Each chunk is a task of its own, run by several threads; the order in which chunks land in a pack does not matter.

Cost for each chunk: unchanged against memory — one compare; known to the store — one hash; else a hash, the codec's
sampling and encoding, a checksum and the write.
"""

import threading
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol

from . import trees
from .bases import Base, Bases
from .closure import is_readable
from .codec import Encoded, encode, encode_blob
from .drafts import ChunkTask, draft
from .dtypes import Element
from .entries import Entry
from .errors import Corrupt, NotFound
from .ids import CommitId, ObjectId, TreeId, chunk_id
from .index import Place
from .inputs import ItemInput
from .limits import SAVE_CHAIN_DEPTH
from .memory import same_bytes
from .objects import Commit, Kind, TreeNode
from .pack import ObjectHeader, seal
from .packseries import PackSeries
from .parallel import Threads


class Known(Protocol):
    """What ingest asks of the index."""

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies, the cheapest to read first."""
        ...


@dataclass(slots=True)
class Counts:
    """What a save did, in chunks and bytes.

    Attributes:
        raw_bytes: bytes of everything that was cut into chunks.
        chunk_count: chunks of it.
        unchanged_count: chunks that equalled their base in memory: neither hashed nor stored.
        known_count: further chunks that the store had.
        delta_count: chunks stored against a base.
        new_raw_bytes: raw bytes of the chunks that were stored.
        stored_bytes: bytes appended to packs for chunks, trees and the commit.
    """

    raw_bytes: int = 0
    chunk_count: int = 0
    unchanged_count: int = 0
    known_count: int = 0
    delta_count: int = 0
    new_raw_bytes: int = 0
    stored_bytes: int = 0


class Ingest:
    """Stores the objects of one commit.

    Args:
        index: what the store has.
        packs: where new objects go.
        bases: what chunks are compared with and stored against.
        turn: grows by one with each save and says which delta chains restart; ``None`` if none has to.
        threads: run the tasks.
    """

    def __init__(self, index: Known, packs: PackSeries, bases: Bases, turn: int | None, threads: Threads) -> None:
        self.counts = Counts()
        self.nodes: dict[TreeId, TreeNode] = {}
        self._index = index
        self._packs = packs
        self._bases = bases
        self._turn = turn
        self._threads = threads
        self._lock = threading.Lock()
        self._claimed: set[ObjectId] = set()

    def chunks(self, items: Sequence[ItemInput]) -> dict[str, dict[str, Entry]]:
        """Store the chunks of all items and return their entries, by item and name.

        Raises:
            Incompatible: an unknown dtype, bytes that do not fit their shape, or a value that is not plain.
            OSError: writing failed.
        """
        drafts = {
            item.name: {name: draft(item.name, name, given, self._bases) for name, given in item.entries.items()}
            for item in items
        }
        tasks = [task for by_name in drafts.values() for planned in by_name.values() for task in planned.tasks]
        self._threads.run(self._store_chunk, tasks)
        return {item: {name: planned.entry() for name, planned in by_name.items()} for item, by_name in drafts.items()}

    def trees(self, items: Sequence[ItemInput], entries: Mapping[str, Mapping[str, Entry]]) -> dict[str, TreeId]:
        """Store the trees of all items and return their roots.

        Raises:
            Incompatible: a name is too long or no UTF-8.
            OSError: writing failed.
        """
        roots: dict[str, TreeId] = {}
        for item in items:
            built = trees.build(entries[item.name], item.ties)
            for tree in built:
                self.nodes[tree.id] = tree.node
                self._store_small(tree.id, Kind.TREE, tree.encoded)
            roots[item.name] = built[-1].id
        return roots

    def commit(self, commit: Commit) -> CommitId:
        """Store the commit object. Raises OSError when writing fails."""
        commit_id = commit.id
        self._store_small(commit_id, Kind.COMMIT, commit.encode())
        return commit_id

    # --- chunks -----------------------------------------------------------------------------------------------------

    def _store_chunk(self, task: ChunkTask) -> None:
        base = task.base
        if base is not None and self._is_unchanged(task.raw, base):
            task.ids[task.number] = base.id
            self._count(task, unchanged_count=1)
            return
        object_id = task.ids[task.number] = chunk_id(task.raw)
        if not self._claim(object_id):
            self._count(task, known_count=1)
            return
        encoded = self._encode(task, object_id)
        self._append(object_id, Kind.CHUNK, task.words.element or Element.INT8, len(task.raw), encoded, task.base)
        self._count(task, delta_count=int(encoded.uses_base), new_raw_bytes=len(task.raw))

    def _is_unchanged(self, raw: memoryview, base: Base) -> bool:
        """Whether the chunk equals its base in memory, and that is still stored."""
        return base.in_memory is not None and same_bytes(raw, base.in_memory) and self._is_stored(base.id)

    def _claim(self, object_id: ObjectId) -> bool:
        """Whether this caller is the one to store the object: nobody did before, in the store or in this save."""
        with self._lock:
            if object_id in self._claimed:
                return False
            self._claimed.add(object_id)
        return not self._is_stored(object_id)

    def _is_stored(self, object_id: ObjectId) -> bool:
        return is_readable(object_id, self._index.places)

    def _encode(self, task: ChunkTask, object_id: ObjectId) -> Encoded:
        words = task.words
        if words.element is None:
            return encode_blob(task.raw)
        return encode(task.raw, words.element, self._base_bytes(task, object_id), words.columns)

    def _restarts(self, task: ChunkTask) -> bool:
        """Restarts are spread over the places, so that no save has to store everything in full."""
        return self._turn is not None and (self._turn + task.place) % (SAVE_CHAIN_DEPTH + 1) == 0

    def _base_bytes(self, task: ChunkTask, object_id: ObjectId) -> memoryview | None:
        """Bytes to store the chunk against, or ``None`` where its delta chain ends."""
        if task.base is None or self._restarts(task):
            return None
        if task.base.id == object_id:
            return None  # its copies are lost; another writer may be storing it again right now
        places = self._index.places(task.base.id)
        if not places or places[0].depth >= SAVE_CHAIN_DEPTH or places[0].raw_bytes != len(task.raw):
            return None
        if not self._is_stored(task.base.id):
            return None
        try:
            return task.base.read()
        except (NotFound, Corrupt):
            return None  # a base that cannot be read is none; the reader has marked the copy

    # --- objects ----------------------------------------------------------------------------------------------------

    def _store_small(self, object_id: ObjectId, kind: Kind, raw: bytes) -> None:
        if not self._claim(object_id):
            return
        self._append(object_id, kind, Element.INT8, len(raw), encode_blob(raw), None)

    def _append(
        self, object_id: ObjectId, kind: Kind, element: Element, raw_bytes: int, encoded: Encoded, base: Base | None
    ) -> None:
        base_id = base.id if base is not None and encoded.uses_base else None
        header = ObjectHeader(kind, encoded.transform, encoded.grouped, element, raw_bytes, object_id, base_id)
        sealed = seal(header, encoded.payload)
        self._packs.append(sealed)
        with self._lock:
            self.counts.stored_bytes += sealed.stored_bytes

    def _count(self, task: ChunkTask, **more: int) -> None:
        with self._lock:
            counts = self.counts
            counts.chunk_count += 1
            counts.raw_bytes += len(task.raw)
            for name, amount in more.items():
                setattr(counts, name, getattr(counts, name) + amount)
