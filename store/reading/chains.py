"""Delta chains, decoded: the base first, each object against the one before it, the last straight into its place.

This is the way for what is in order, which is nearly everything: the index says which objects make up a chain, and all
of them are there and intact. Whatever is not as expected is an error here, and ``reader`` then looks at every copy.
"""

import threading
from collections import OrderedDict
from collections.abc import Iterator, Sequence
from collections.abc import Set as AbstractSet
from contextlib import contextmanager, suppress
from typing import NamedTuple

from ..errors import Corrupt, NotFound
from ..ids import ObjectId, PackId, short
from ..index import Place
from ..limits import KEPT_CHUNKS_BYTES, READ_RUN_BYTES
from ..memory import Room
from .decoding import decode_chunk
from .packs import PackStore


class Link(NamedTuple):
    """One object of a chain, and where it is to be read."""

    id: ObjectId
    place: Place


Chain = tuple[Link, ...]
"""A chunk, its base, the base of that, and so on to one that needs none."""


class Kept:
    """Decoded chunks that several chains have in common, so that each is decoded once. Thread-safe.

    The least recently used make room for others; they are decoded again if need be.

    Args:
        shared: ids of those that are worth keeping.
        most_bytes: how much is kept; ``KEPT_CHUNKS_BYTES`` if ``None``.
    """

    def __init__(self, shared: AbstractSet[ObjectId] = frozenset(), most_bytes: int | None = None) -> None:
        self._shared = shared
        self._most_bytes = KEPT_CHUNKS_BYTES if most_bytes is None else most_bytes
        self._lock = threading.Lock()
        self._decoded: OrderedDict[ObjectId, memoryview] = OrderedDict()
        self._kept_bytes = 0

    def wants(self, object_id: ObjectId) -> bool:
        """Whether a chunk should be given to :meth:`put` once it is decoded."""
        return object_id in self._shared

    def get(self, object_id: ObjectId) -> memoryview | None:
        """A decoded chunk, not to be altered; ``None`` if it is not here."""
        if object_id not in self._shared:
            return None
        with self._lock:
            raw = self._decoded.get(object_id)
            if raw is not None:
                self._decoded.move_to_end(object_id)
            return raw

    def put(self, object_id: ObjectId, raw: memoryview) -> None:
        """Keep a decoded chunk, whose memory nobody alters from now on."""
        with self._lock:
            if object_id not in self._decoded:
                self._decoded[object_id] = raw
                self._kept_bytes += len(raw)
            while self._kept_bytes > self._most_bytes and len(self._decoded) > 1:
                self._kept_bytes -= len(self._decoded.popitem(last=False)[1])


class _Ahead(NamedTuple):
    """A stretch of a pack that was read, from ``start`` on."""

    pack: PackId
    start: int
    data: memoryview

    def of(self, place: Place) -> memoryview | None:
        """The stored bytes of an object, if they are here."""
        at = place.offset - self.start
        is_here = place.pack == self.pack and at >= 0 and at + place.stored_bytes <= len(self.data)
        return self.data[at : at + place.stored_bytes] if is_here else None


class _Scratch(threading.local):
    """Memory of one thread that is used again for every chunk: fresh memory costs page faults, and is in no cache."""

    def __init__(self) -> None:
        self.stored = Room()
        self.decoded = (Room(), Room())
        self.run = Room()
        self.ahead: _Ahead | None = None

    def room_for_decoded(self, size_bytes: int) -> memoryview:
        """Not where the last decoded chunk is: that is the base of the next."""
        room, other = self.decoded
        self.decoded = (other, room)
        return room.of(size_bytes)


_scratch = _Scratch()


@contextmanager
def read_ahead(packs: PackStore, chains: Sequence[Chain]) -> Iterator[None]:
    """Read at once what this thread is about to decode.

    Args:
        packs: reads stored objects.
        chains: their first objects lie in one pack, in this order and close together, within ``READ_RUN_BYTES``.

    Raises:
        OSError: the pack cannot be opened or read. That it is gone or damaged shows when each object is read alone.
    """
    first, last = chains[0][0].place, chains[-1][0].place
    size_bytes = last.offset + last.stored_bytes - first.offset
    data = _scratch.run.of(READ_RUN_BYTES)[:size_bytes]
    with suppress(NotFound, Corrupt):
        packs.read_stretch(first.pack, first.offset, data)
        _scratch.ahead = _Ahead(first.pack, first.offset, data)
    try:
        yield
    finally:
        _scratch.ahead = None


def decode_chain(packs: PackStore, chain: Chain, out: memoryview, kept: Kept, *, streamed: bool = False) -> None:
    """Decode the first object of a chain into ``out``.

    Args:
        packs: reads stored objects.
        chain: what to decode.
        out: writable, C-contiguous bytes; fully overwritten, undefined after an error.
        kept: where decoded bases may be found, and are left.
        streamed: nobody reads ``out`` soon.

    Raises:
        NotFound: a pack is not there any more.
        Corrupt: an object is damaged, is not what the chain says, or has another length than ``out``.

    Cost: a read and a decode for each object from the nearest kept one on. No memory but the thread's scratch, and what
    is kept.
    """
    start, base = _nearest(chain, kept)
    for number in reversed(range(start)):
        base = _decode_link(packs, chain[number], base, None if number else out, kept, streamed=streamed)
    if start == 0 and base is not None:
        _copy(chain[0].id, base, out)


def _nearest(chain: Chain, kept: Kept) -> tuple[int, memoryview | None]:
    """How many objects are to be decoded, and the base of the last of them if it is at hand."""
    for number, link in enumerate(chain):
        raw = kept.get(link.id)
        if raw is not None:
            return number, raw
    return len(chain), None


def _decode_link(
    packs: PackStore, link: Link, base: memoryview | None, out: memoryview | None, kept: Kept, *, streamed: bool
) -> memoryview:
    """Decode one object, into ``out`` if that is given; returns where it is."""
    place, ahead = link.place, _scratch.ahead
    data = None if ahead is None else ahead.of(place)
    if data is None:
        header, payload = packs.read(place.pack, place.offset, place.stored_bytes, link.id, _scratch.stored.of)
    else:
        header, payload = packs.checked(data, place.pack, place.offset, link.id)
    if header.base != place.base:
        raise Corrupt(f"chunk {short(link.id)} has another base than the index says", object=link.id.hex())
    if kept.wants(link.id):
        room = memoryview(bytearray(header.raw_bytes))
    else:
        room = _scratch.room_for_decoded(header.raw_bytes) if out is None else out
    streamed = streamed and room is out
    decode_chunk(header, payload, base, room, streamed=streamed)
    if kept.wants(link.id):
        kept.put(link.id, room)
        if out is not None:
            _copy(link.id, room, out)
    return room


def _copy(object_id: ObjectId, raw: memoryview, out: memoryview) -> None:
    if len(raw) != len(out):
        raise Corrupt(f"chunk {short(object_id)} has {len(raw)} bytes where {len(out)} belong", object=object_id.hex())
    out[:] = raw
