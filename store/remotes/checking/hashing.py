"""Every object of every pack of a remote, downloaded and compared with the hash it is named by. Nothing is stored.

A run of a pack is read, checked and dropped; chunks that others are stored against are kept for a while once they are
decoded, and read again if they are needed later.
"""

import threading
from collections.abc import Callable, Iterator, Sequence
from functools import partial
from typing import NamedTuple

from ...batches import fitting
from ...errors import Corrupt, Incompatible, NotFound
from ...format.objects import Kind
from ...format.pack import HEADER_BYTES, ObjectHeader, TableEntry, check_header, encode_footer, encode_table, footer_of
from ...ids import ChunkId, ObjectId, chunk_id
from ...limits import CHECK_RUN_BYTES, MAX_CHAIN_DEPTH
from ...parallel import Threads
from ...reading.chains import Kept
from ...reading.decoding import decode_chunk
from ..fetching.incoming import RemoteCopy, Run
from ..fetching.verifying import name_of, require_readable, small_content, unsealed, wrong
from ..holdings import Holdings
from ..idx import Idx
from ..names import PackName
from ..storages.storage import Storage


class Damage(NamedTuple):
    """A copy that is not what it should be, and why."""

    copy: RemoteCopy
    why: str


class _Task(NamedTuple):
    """Objects that lie one after another in a pack and are read at once."""

    pack: PackName
    entries: Sequence[TableEntry]


class Hashing:
    """Checks what a remote holds. Its methods may be called by several threads.

    Args:
        storage: the remote.
        holdings: what it should hold.

    Attributes:
        damage: what was found to be damaged.
        frames: packs of which the header, table or footer is, and why: what they hold is known from their idx.
    """

    def __init__(self, storage: Storage, holdings: Holdings) -> None:
        self.damage: list[Damage] = []
        self.frames: dict[PackName, str] = {}
        self._storage = storage
        self._holdings = holdings
        bases = {copy.entry.base for copies in holdings.copies.values() for copy in copies}
        self._kept = Kept(frozenset(base for base in bases if base is not None))
        self._hopeless: set[ObjectId] = set()
        self._lock = threading.Lock()

    @property
    def size_bytes(self) -> int:
        """What there is to read."""
        return sum(idx.pack_bytes for idx in self._holdings.idxs.values())

    def check(self, threads: Threads, advance: Callable[[int], None]) -> None:
        """Look at everything. What cannot be decoded for its base's sake is not damaged; its base is, or is lost.

        Args:
            threads: read and decode.
            advance: told of bytes that arrived, by any thread.

        Raises:
            RemoteError: the storage failed.

        Memory: a run of ``CHECK_RUN_BYTES`` and a chain's chunks in each thread, and ``KEPT_CHUNKS_BYTES``.
        """
        threads.run(lambda named: self._check_frame(*named, advance), self._holdings.idxs.items())
        threads.run(partial(self._check, advance=advance), self._tasks())

    def add_known(self, pack: str, object_id: ObjectId) -> None:
        """Add a copy that an earlier check found to be damaged, if it is still there."""
        for copy in self._holdings.copies_of(object_id):
            if copy.pack.text == pack:
                self._spoil(copy, f"{name_of(copy)}: damaged, as an earlier check found")

    def chunk(self, object_id: ChunkId) -> memoryview:
        """A chunk, decoded; its hash was compared.

        Raises:
            NotFound: no copy of it can be decoded.
        """
        raw = self._chunk(object_id, MAX_CHAIN_DEPTH)
        if raw is None:
            raise NotFound(f"chunk {object_id.hex()}: no copy on the remote can be decoded", object=object_id.hex())
        return raw

    # --- packs ------------------------------------------------------------------------------------------------------

    def _tasks(self) -> Iterator[_Task]:
        for pack, idx in self._holdings.idxs.items():
            for entries in fitting(idx.table.entries, lambda entry: entry.stored_bytes, CHECK_RUN_BYTES):
                yield _Task(pack, entries)

    def _check_frame(self, pack: PackName, idx: Idx, advance: Callable[[int], None]) -> None:
        what, end = f"pack {pack.text}", idx.table.entries[-1].end
        table = encode_table(idx.table.entries)
        try:
            check_header(self._read(Run(pack, 0, HEADER_BYTES), advance), what)
            rest = self._read(Run(pack, end, idx.pack_bytes - end), advance)
        except (NotFound, Corrupt, Incompatible) as error:
            problem = str(error)
        else:
            if rest == table + encode_footer(footer_of(table, end)):
                return
            problem = f"{what}: its table or footer is not what its idx says"
        with self._lock:
            self.frames[pack] = problem

    def _check(self, task: _Task, advance: Callable[[int], None]) -> None:
        start, size_bytes = task.entries[0].offset, task.entries[-1].end - task.entries[0].offset
        try:
            stretch = self._read(Run(task.pack, start, size_bytes), advance)
        except (NotFound, Corrupt) as error:
            for entry in task.entries:
                self._spoil(RemoteCopy(task.pack, entry), str(error))
            return
        for entry in task.entries:
            at = entry.offset - start
            self._check_copy(RemoteCopy(task.pack, entry), stretch[at : at + entry.stored_bytes])

    def _read(self, run: Run, advance: Callable[[int], None]) -> memoryview:
        out = memoryview(bytearray(run.size_bytes))
        self._storage.read_into(run.pack.pack_key, run.start, out, advance)
        return out

    def _spoil(self, copy: RemoteCopy, why: str) -> None:
        with self._lock:
            self.damage.append(Damage(copy, why))

    # --- objects ----------------------------------------------------------------------------------------------------

    def _check_copy(self, copy: RemoteCopy, stored: memoryview) -> None:
        try:
            header, payload = unsealed(copy, stored)
            if header.kind == Kind.CHUNK:
                base = None if header.base is None else self._chunk(header.base, MAX_CHAIN_DEPTH)
                if header.base is None or base is not None:
                    self._decoded(copy, header, payload, base)
            else:
                require_readable(copy, small_content(copy, header, payload))
        except (Corrupt, Incompatible) as error:
            self._spoil(copy, str(error))

    def _decoded(
        self, copy: RemoteCopy, header: ObjectHeader, payload: memoryview, base: memoryview | None
    ) -> memoryview:
        """What a chunk decodes to; its hash was compared."""
        out = memoryview(bytearray(header.raw_bytes))
        decode_chunk(header, payload, base, out)
        if chunk_id(out) != header.id:
            raise wrong(copy)
        if self._kept.wants(header.id):
            self._kept.put(header.id, out)
        return out

    def _chunk(self, object_id: ObjectId, room: int) -> memoryview | None:
        """A chunk that others may be stored against; ``None`` if no copy of it can be decoded."""
        raw = self._kept.get(object_id)
        if raw is not None or room < 0 or object_id in self._hopeless:
            return raw
        for copy in self._holdings.copies_of(object_id):
            base = None if copy.entry.base is None else self._chunk(copy.entry.base, room - 1)
            if copy.entry.base is not None and base is None:
                continue
            run = Run(copy.pack, copy.entry.offset, copy.entry.stored_bytes)
            try:
                header, payload = unsealed(copy, self._read(run, _nobody_counts))
                return self._decoded(copy, header, payload, base)
            except (NotFound, Corrupt, Incompatible):
                continue  # that is told where the copy itself is looked at
        self._hopeless.add(object_id)  # however many lead here, it is tried once
        return None


def _nobody_counts(_: int) -> None:
    """Nobody asked to be told."""
