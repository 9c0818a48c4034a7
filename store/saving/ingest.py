"""From named tensors to objects in packs: compare, hash, dedup, encode, append; then trees and the commit.

Chunks are worked on in groups, each by one of several threads; the order in which chunks land in a pack does not
matter.

Cost for each chunk: unchanged against memory — one compare; known to the store — one hash; else a hash, the codec's
sampling and encoding, a checksum and the write. A group asks the index once.
"""

import threading
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, fields
from typing import NamedTuple, Protocol

from ..codec import Encoded, encode_blob
from ..format import trees
from ..format.dtypes import Element
from ..format.entries import Entry
from ..format.objects import Commit, Kind, TreeNode
from ..format.pack import ObjectHeader, seal
from ..ids import ChunkId, CommitId, ObjectId, TreeId, chunk_id
from ..index import Place
from ..memory import Room, same_bytes
from ..parallel import Threads
from ..reading.closure import readable
from .bases import Bases, Places
from .deltas import Deltas, Found
from .drafts import CastTask, ChunkTask, Draft, Task, draft, groups
from .inputs import Input, ItemInput, MadeValueInput, ValueInput
from .packseries import PackSeries
from .phases import Laps, Phases
from .restarts import chains_among
from .scales import Scales, measured

_ALIGNMENT_BYTES = 64
"""Of what is cast: kernels want words where words belong, and lines of the cache are no worse."""


class Known(Protocol):
    """What ingest asks of the index."""

    def places_below(self, object_ids: Collection[ObjectId]) -> Mapping[ObjectId, list[Place]]:
        """Good copies of each and of all delta bases below them, the cheapest to read first."""
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

    def add(self, other: "Counts") -> None:
        """Add another's."""
        for field in fields(self):
            setattr(self, field.name, getattr(self, field.name) + getattr(other, field.name))


class _Seen(NamedTuple):
    """A chunk once its id is known, and whether it equals its base in memory: then it need not have been cast."""

    made: ChunkTask | CastTask
    id: ChunkId
    is_unchanged: bool

    @property
    def task(self) -> ChunkTask:
        """The chunk, which may lack its bytes."""
        return _chunk_of(self.made)


class _Thread(threading.local):
    """What a thread that encodes keeps between chunks."""

    def __init__(self) -> None:
        self.room = Room()
        self.cast_room = Room()


_thread = _Thread()


class Ingest:
    """Stores the objects of one commit.

    Args:
        index: what the store has.
        packs: where new objects go.
        bases: what chunks are compared with and stored against.
        turn: grows by one with each save and says which delta chains begin anew; ``None`` if none has to.
        threads: run the tasks.
        phases: where the time is counted that this takes.
        is_intact: whether a tree that is stored can be read.
        known: places that need not be looked up.

    Attributes:
        counts: what was done so far.
        nodes: the trees.
        told: what the index told of chunks, and of the bases below them.
    """

    def __init__(
        self,
        index: Known,
        packs: PackSeries,
        bases: Bases,
        turn: int | None,
        threads: Threads,
        phases: Phases,
        is_intact: Callable[[TreeId], bool],
        known: Places | None = None,
    ) -> None:
        self.counts = Counts()
        self.nodes: dict[TreeId, TreeNode] = {}
        self.told: dict[ObjectId, Sequence[Place]] = {}
        self._known = known or {}
        self._index = index
        self._packs = packs
        self._bases = bases
        self._deltas = Deltas(bases, turn)
        self._threads = threads
        self._phases = phases
        self._is_intact = is_intact
        self._lock = threading.Lock()
        self._claimed: set[ObjectId] = set()

    def chunks(self, items: Sequence[ItemInput]) -> dict[str, dict[str, Entry]]:
        """Store the chunks of all items and return their entries, by item and name.

        Raises:
            Incompatible: an unknown dtype, bytes that do not fit their shape, or a value that is not plain.
            OSError: writing failed.
            BaseException: what making a value raises.
        """
        drafts = self._stored(items, measured(items, self._threads, self._phases))
        made = [ItemInput(item.name, values) for item in items if (values := _made_values(item))]
        for name, late in self._stored(made, {}).items() if made else ():
            drafts[name] |= late  # in the places that were kept for them
        with self._phases.computing("plan"):
            return {
                item: {name: planned.entry() for name, planned in by_name.items()} for item, by_name in drafts.items()
            }

    def _stored(self, items: Sequence[ItemInput], scales: Scales) -> dict[str, dict[str, Draft]]:
        """Entries in the making, whose chunks are stored."""
        with self._phases.computing("plan"):
            drafts = {
                item.name: {
                    name: draft(item.name, name, given, self._bases, scales.get((item.name, name), b""))
                    for name, given in item.entries.items()
                }
                for item in items
            }
            tasks = [task for by_name in drafts.values() for planned in by_name.values() for task in planned.tasks]
        self.store(tasks)
        return drafts

    def store(self, tasks: Sequence[Task]) -> None:
        """Store chunks, whose ids go where the tasks say. Raises OSError when writing fails."""
        self._threads.run(self._store_group, groups(tasks))

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
                if not self._is_stored(tree.id) or not self._is_intact(tree.id):
                    self._store_small(tree.id, Kind.TREE, tree.encoded)
            roots[item.name] = built[-1].id
        return roots

    def commit(self, commit: Commit) -> CommitId:
        """Store the commit object. Raises OSError when writing fails."""
        commit_id = commit.id
        if not self._is_stored(commit_id):
            self._store_small(commit_id, Kind.COMMIT, commit.encode())
        return commit_id

    # --- chunks -----------------------------------------------------------------------------------------------------

    def _store_group(self, planned: Sequence[Task]) -> None:
        laps, counts = Laps(), Counts()
        tasks = [task if isinstance(task, CastTask) else task.made() for task in planned]
        unchanged = [_equals_base(task) for task in tasks]
        laps.end("compare")
        if any(isinstance(task, CastTask) for task in tasks):
            tasks = _cast(tasks, unchanged)
            laps.end("cast")
        seen = [_see(task, is_unchanged=same) for task, same in zip(tasks, unchanged, strict=True)]
        laps.end("hash")
        found = self._look_up(seen)
        laps.end("lookup")
        for chunk in seen:
            counts.chunk_count += 1
            counts.raw_bytes += chunk.made.size_bytes
            if chunk.id in found.stored:
                counts.unchanged_count += chunk.is_unchanged
                counts.known_count += not chunk.is_unchanged
            elif not self._claim(chunk.id):
                counts.known_count += 1
            else:
                self._store_chunk(chunk, found, counts, laps)
        self._phases.add(laps.seconds)
        with self._lock:
            self.counts.add(counts)

    def _look_up(self, seen: Sequence[_Seen]) -> Found:
        """Of the chunks and of their bases, those that are stored."""
        sought: set[ObjectId] = {chunk.id for chunk in seen}
        sought.update(chunk.task.base.id for chunk in seen if chunk.task.base is not None)
        below = chains_among(sought, self._known)
        stored = {object_id: below[object_id][0] for object_id in sought if object_id in below}
        unknown = sought - stored.keys()
        if unknown:
            told = self._index.places_below(unknown)
            stored |= readable(unknown, lambda _: told)
            below |= told
            with self._lock:
                self.told |= told
        return Found(stored, below)

    def _claim(self, object_id: ObjectId) -> bool:
        """Whether this caller is the one to store the object: nobody else did in this save."""
        with self._lock:
            if object_id in self._claimed:
                return False
            self._claimed.add(object_id)
            return True

    def _store_chunk(self, chunk: _Seen, found: Found, counts: Counts, laps: Laps) -> None:
        task = chunk.made.made()
        encoded, base = self._deltas.encode(task, found, _thread.room)
        laps.end("encode")
        element = task.element or Element.INT8
        counts.stored_bytes += self._append(chunk.id, Kind.CHUNK, element, len(task.raw), encoded, base)
        counts.delta_count += encoded.uses_base
        counts.new_raw_bytes += len(task.raw)
        laps.end("write")

    # --- objects ----------------------------------------------------------------------------------------------------

    def _store_small(self, object_id: ObjectId, kind: Kind, raw: bytes) -> None:
        if not self._claim(object_id):
            return
        stored_bytes = self._append(object_id, kind, Element.INT8, len(raw), encode_blob(raw), None)
        with self._lock:
            self.counts.stored_bytes += stored_bytes

    def _is_stored(self, object_id: ObjectId) -> bool:
        return bool(readable([object_id], self._index.places_below))

    def _append(
        self,
        object_id: ObjectId,
        kind: Kind,
        element: Element,
        raw_bytes: int,
        encoded: Encoded,
        base: ObjectId | None,
    ) -> int:
        """Append an object and return its stored length."""
        header = ObjectHeader(
            kind, encoded.transform, encoded.grouped, element, raw_bytes, object_id, base, encoded.viewed
        )
        sealed = seal(header, encoded.payload)
        self._packs.append(sealed)
        return sealed.stored_bytes


def _made_values(item: ItemInput) -> dict[str, Input]:
    """The values of an item that had to wait for its tensors."""
    return {
        name: ValueInput(given.position, given.make())
        for name, given in item.entries.items()
        if isinstance(given, MadeValueInput)
    }


def _chunk_of(task: ChunkTask | CastTask) -> ChunkTask:
    return task.task if isinstance(task, CastTask) else task


def _equals_base(task: ChunkTask | CastTask) -> bool:
    base, raw = _chunk_of(task).base, task.elements if isinstance(task, CastTask) else task.raw
    return base is not None and base.in_memory is not None and same_bytes(raw, base.in_memory)


def _cast(tasks: Sequence[ChunkTask | CastTask], unchanged: Sequence[bool]) -> list[ChunkTask | CastTask]:
    """Cast what has changed, into memory that is used again when this thread comes to the next group."""
    made: list[ChunkTask | CastTask] = []
    room = _thread.cast_room.of(sum(task.size_bytes + _ALIGNMENT_BYTES for task in tasks))
    end = 0
    for task, is_unchanged in zip(tasks, unchanged, strict=True):
        if isinstance(task, CastTask) and not is_unchanged:
            made.append(task.made_in(room[end : end + task.size_bytes]))
            end += -(-task.size_bytes // _ALIGNMENT_BYTES) * _ALIGNMENT_BYTES
        else:
            made.append(task)
    return made


def _see(made: ChunkTask | CastTask, *, is_unchanged: bool) -> _Seen:
    """Find the id of a chunk, and give it to the draft it belongs to."""
    task = _chunk_of(made)
    object_id = task.base.id if is_unchanged and task.base is not None else chunk_id(task.raw)
    task.ids[task.number] = object_id
    return _Seen(made, object_id, is_unchanged)
