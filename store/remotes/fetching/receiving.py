"""Objects of a remote, put into packs of our own.

Nothing is written that was not decoded and compared with the hash it is named by: what a remote says is not to be
trusted, and a pack here is. Each window becomes a pack, which is indexed at once: whatever ends a fetch, what was
indexed need not be fetched again. Until a commit needs it, the lease protects it from gc.
"""

import threading
from collections import Counter
from collections.abc import Callable, Sequence
from collections.abc import Set as AbstractSet
from contextlib import closing, nullcontext
from dataclasses import dataclass, field
from functools import partial

from ...batches import batches
from ...disk.blockqueue import BlockQueue
from ...errors import Corrupt, Incompatible, NotFound
from ...format.objects import Kind
from ...format.pack import ObjectHeader, PackTable, Sealed, TableEntry
from ...ids import ChunkId, ObjectId, PackId, chunk_id
from ...index import BasesMissing
from ...limits import FETCH_KEPT_BYTES, LEAF_MAX_BYTES, SWEEP_KEYS
from ...reading.chains import Kept
from ...reading.decoding import decode_chunk
from ...repository import Repository
from ...saving.leases import Lease
from ...saving.packseries import PackSeries
from ..storages.storage import Storage
from .incoming import Placed, RemoteCopy, Window
from .readahead import Filled, read_windows
from .verifying import require_readable, small_content, unsealed, wrong


@dataclass(slots=True)
class Received:
    """What was received.

    Attributes:
        object_count: objects, and
        stored_bytes: what they take here.
        failed: copies that are not what they should be or cannot be read, and why.
    """

    object_count: int = 0
    stored_bytes: int = 0
    failed: list[tuple[RemoteCopy, str]] = field(default_factory=list)


class Receiver:
    """Reads windows, checks what they hold, writes and indexes it. For one thread.

    Args:
        repository: the store.
        lease: names the packs that are made. Held until something else needs what is in them.
        url: of the remote, for messages.
        shared: objects that others are stored against: kept for a while once they are decoded.
    """

    def __init__(self, repository: Repository, lease: Lease, url: str, shared: AbstractSet[ObjectId]) -> None:
        self.received = Received()
        self._repo = repository
        self._lease = lease
        self._url = url
        self._kept = Kept(shared, FETCH_KEPT_BYTES)
        self._scratch = threading.local()
        self._underway: frozenset[ObjectId] = frozenset()  # what was last handed over to be stored,
        self._settled = threading.Event()  # and whether that has ended
        self._large = threading.Lock()  # trees of 64 MiB, each in a thread, would take gigabytes

    def receive(self, storage: Storage, windows: Sequence[Window], advance: Callable[[int], None]) -> Received:
        """Receive windows, in order: one is stored while the next is checked and the one after that is read.

        Args:
            storage: where they are read.
            windows: which.
            advance: told of bytes that arrived, by any thread.

        Raises:
            RemoteError: the storage failed. What was indexed by then stays.
            Incompatible: the store has come to need what this version lacks; likewise.
            OSError: the disk failed; likewise.
        """
        storing: BlockQueue[list[Sealed]] = BlockQueue(self._store_behind, "moonclip-storing")
        try:
            with closing(read_windows(storage, windows, advance)) as filled:
                for number, each in enumerate(filled):
                    good = self._checked(each)
                    if number:
                        storing.get()
                    self._underway = frozenset(good)
                    self._settled.clear()
                    ids = (placed.copy.entry.id for placed in each.window.placed)
                    storing.put([good[object_id] for object_id in ids if object_id in good])
                storing.finish()
        finally:
            storing.stop()
        return self.received

    def _store_behind(self, objects: Sequence[Sealed]) -> None:
        try:
            self.store(objects)
        finally:
            self._settled.set()

    def store(self, objects: Sequence[Sealed]) -> None:
        """Write objects, that were checked, and index them; bases come before what is stored against them.

        Raises:
            Incompatible: the store has come to need what this version lacks.
            OSError: the disk failed.
        """
        if not objects:
            return
        series = PackSeries(self._repo.files, self._repo.layout.packs, self._lease.name, self._lease.add_pack)
        try:
            for sealed in objects:
                series.append(sealed)
            tables = series.publish()
        finally:
            series.abandon()
        for table in tables:
            self._index(table)

    # --- checking ---------------------------------------------------------------------------------------------------

    def _checked(self, filled: Filled) -> dict[ObjectId, Sealed]:
        """The objects of a window that are what they should be."""
        first, above = _lines(filled.window.placed)
        good: dict[ObjectId, Sealed] = {}
        self._repo.threads.run(partial(self._check_line, filled, above, good), first)
        return good

    def _check_line(
        self, filled: Filled, above: dict[ObjectId, list[Placed]], good: dict[ObjectId, Sealed], first: Placed
    ) -> None:
        """Check an object and what is stored against it, decoding each once. What is stored against a bad one waits."""
        waiting: list[tuple[Placed, memoryview | None]] = [(first, None)]
        while waiting:
            placed, base = waiting.pop()
            entry, following = placed.copy.entry, above.get(placed.copy.entry.id, ())
            if base is None and entry.base is not None:
                base = self._base(entry.base, None if entry.viewed else entry.raw_bytes)
                if base is None:
                    continue
            try:
                stored = self._stored(filled, placed)
                header, payload = unsealed(placed.copy, stored)
                raw = self._decoded(placed.copy, header, payload, base, keeping=bool(following))
            except (NotFound, Corrupt, Incompatible) as error:
                self.received.failed.append((placed.copy, f"{self._url}: {error}"))
                continue
            good[entry.id] = Sealed(header, (stored,), entry.stored_bytes, entry.checksum)
            waiting += [(each, raw) for each in following]

    def _stored(self, filled: Filled, placed: Placed) -> memoryview:
        run = filled.runs[placed.run]
        if not isinstance(run, memoryview):
            raise run
        return run[placed.at : placed.at + placed.copy.entry.stored_bytes]

    def _decoded(
        self, copy: RemoteCopy, header: ObjectHeader, payload: memoryview, base: memoryview | None, *, keeping: bool
    ) -> memoryview | None:
        """What an object decodes to, if it is ``keeping``; its hash was compared.

        Raises:
            Corrupt: it is not what it is named by.
        """
        if header.kind != Kind.CHUNK:
            with self._large if header.raw_bytes > LEAF_MAX_BYTES else nullcontext():
                require_readable(copy, small_content(copy, header, payload))
            return None
        is_kept = self._kept.wants(header.id)
        raw = memoryview(bytearray(header.raw_bytes)) if keeping or is_kept else self._room(header.raw_bytes)
        decode_chunk(header, payload, base, raw)
        if chunk_id(raw) != header.id:
            raise wrong(copy)
        if is_kept:
            self._kept.put(header.id, raw)
        return raw

    def _base(self, object_id: ObjectId, raw_bytes: int | None) -> memoryview | None:
        """A base that came before, or was here; ``None`` if it cannot be read, which is no fault of its delta."""
        raw = self._kept.get(object_id)
        if raw is not None:
            return raw
        if object_id in self._underway:  # before the index has it, whoever asks would look through all packs
            self._settled.wait()
        return self._read(object_id, raw_bytes)

    def _read(self, object_id: ObjectId, raw_bytes: int | None) -> memoryview | None:
        """A chunk that is here, of this length or, if that is ``None``, of whatever length the index says."""
        reader = self._repo.reader
        try:
            size_bytes = reader.place(object_id, Kind.CHUNK).raw_bytes if raw_bytes is None else raw_bytes
            raw = memoryview(bytearray(size_bytes))
            reader.chunk_into(ChunkId(object_id), raw, kept=self._kept)
        except (NotFound, Corrupt):
            return None
        return raw

    def _room(self, size_bytes: int) -> memoryview:
        """Memory of this thread that is used again for the next chunk."""
        room: bytearray = getattr(self._scratch, "room", bytearray())
        if len(room) < size_bytes:
            room = self._scratch.room = bytearray(size_bytes)
        return memoryview(room)[:size_bytes]

    # --- indexing ---------------------------------------------------------------------------------------------------

    def _index(self, table: PackTable) -> None:
        for batch in batches(table.entries, SWEEP_KEYS):
            added = self._add(table.id, batch)
            self.received.object_count += len(added)
            self.received.stored_bytes += sum(entry.stored_bytes for entry in added)

    def _add(self, pack: PackId, entries: list[TableEntry]) -> list[TableEntry]:
        """Add places; not of deltas whose base gc has swept meanwhile, which are fetched again."""
        while True:
            try:
                self._repo.index.write(lambda writer: writer.add_pack(pack, entries))  # noqa: B023 - called at once
            except BasesMissing as error:
                lost = set(error.details["objects"])
                entries = [entry for entry in entries if entry.id.hex() not in lost]
            else:
                return entries


def _lines(placed: Sequence[Placed]) -> tuple[list[Placed], dict[ObjectId, list[Placed]]]:
    """Objects of a window that are stored against none of it, and what is stored against each, most of it first.

    Whoever goes through the latter from its end, and to the end of each branch before the next, has few bases waiting:
    each waits beside branches no longer than half of what is behind it.

    Args:
        placed: objects, each behind its base.
    """
    own = {each.copy.entry.id for each in placed}
    behind: Counter[ObjectId] = Counter()
    above: dict[ObjectId, list[Placed]] = {}
    first: list[Placed] = []
    for each in reversed(placed):
        entry = each.copy.entry
        if entry.base is not None and entry.base in own:
            behind[entry.base] += 1 + behind[entry.id]
            above.setdefault(entry.base, []).append(each)
        else:
            first.append(each)
    for following in above.values():
        following.sort(key=lambda each: -behind[each.copy.entry.id])
    return first[::-1], above
