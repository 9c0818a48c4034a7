"""Where the bytes come from that a chunk is compared with and stored against.

While a run saves, its last save still lies in memory: the chunk in the same place of it costs nothing to find or
read. After a start, or for an item the last save did not hold, the parent commit's chunks answer instead.
"""

import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field, replace
from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple

from ..codec import narrowing
from ..codec.views import View
from ..errors import NotUnchanged
from ..format.casts import is_by_row
from ..format.dtypes import dtype as dtype_of
from ..format.entries import Entry, TensorEntry
from ..ids import ChunkId, CommitId, ObjectId, TreeId
from ..index import Place, Version
from ..memory import Room
from ..reading.reader import ObjectReader
from .inputs import UnchangedInput
from .likeness import LikeBase

if TYPE_CHECKING:
    from ..codec.casting import Casting

ItemEntries = Mapping[str, Mapping[str, Entry]]
"""Item name → entry name → entry."""

Buffers = Mapping[tuple[str, str], memoryview]
"""(item name, entry name) → a tensor's raw bytes."""

Places = Mapping[ObjectId, Sequence[Place]]
"""Object → good copies of it, the shallowest first."""


class Base(NamedTuple):  # one for each chunk of a save: made in a third of a dataclass's time
    """A chunk that holds, or held, the same place of the same tensor.

    Attributes:
        id: what it was committed under.
        in_memory: its bytes if they are at hand, valid until the owner of the last save reuses its buffers. Of a tensor
            that is cast, what it was before: equal elements with an equal scale are the same chunk.
        read: reads its bytes, from memory or from the store; valid until the same thread reads another base.
        is_like: it is a chunk of another tensor, which the chunk's resembles.
        view: what is seen of it then, if that is not all of it as it is.
    """

    id: ChunkId
    in_memory: memoryview | None
    read: Callable[[], memoryview]
    is_like: bool = False
    view: View | None = None


@dataclass(frozen=True, slots=True)
class LastSave:
    """What was last committed from here.

    Attributes:
        entries: entries as they were committed.
        buffers: raw bytes of their tensors, unaltered since.
        ordinal: grows by one with each save from here; staggers where delta chains restart.
        commit: its commit.
        trees: all tree objects of that.
        places: good copies of its chunks and of the bases below them.
        version: of the index that says so. Once that is another one, they may have moved, or be known to be damaged.
    """

    entries: ItemEntries
    buffers: Buffers
    ordinal: int
    commit: CommitId | None = None
    trees: frozenset[TreeId] = frozenset()
    places: Places = field(default_factory=dict)
    version: Version | None = None


class Bases:
    """Finds the bases of a tensor's chunks by place.

    Args:
        reader: reads chunks that are in no buffer.
        entries: entries of the last save, or of the parent commit.
        buffers: raw bytes of those of them that are in memory.
        last: entries of the last save alone.
    """

    def __init__(
        self, reader: ObjectReader, entries: ItemEntries, buffers: Buffers, last: ItemEntries | None = None
    ) -> None:
        self._reader = reader
        self._entries = entries
        self._buffers = buffers
        self._last = last or {}

    def of_tensor(self, item: str, name: str, dtype: str, stored: str | None = None, scale: bytes = b"") -> list[Base]:
        """Bases for the chunks of a tensor, in order: none if there is no such tensor, or it has another dtype.

        Their lengths may differ from the chunks' that are stored now.

        Args:
            item: the item.
            name: the tensor's name.
            dtype: its dtype.
            stored: the dtype that it is cast to, if it is.
            scale: and what it is divided by then.
        """
        entry = self._entries.get(item, {}).get(name)
        if not isinstance(entry, TensorEntry) or (entry.dtype, entry.stored) != (dtype, stored):
            return []
        buffer = self._buffers.get((item, name))
        if buffer is None:
            return [self._stored(chunk) for chunk in entry.chunks]
        if stored is not None:
            return list(_cast(entry, stored, buffer, is_same_scale=entry.scale == scale))
        if len(entry.cuts) == 1 and len(buffer) == entry.cuts[0]:  # most tensors there are
            return [_in_memory(entry.chunks[0], buffer)]
        stops = accumulate(entry.cuts)
        return [
            _in_memory(chunk, buffer[stop - cut : stop])
            for chunk, cut, stop in zip(entry.chunks, entry.cuts, stops, strict=True)
        ]

    def of_like(self, found: Iterable[LikeBase | None]) -> list[Base | None]:
        """Bases for the chunks of a tensor that resembles a stored one, in order."""
        return [each and self._stored(each.chunk)._replace(is_like=True, view=each.view) for each in found]

    def older(self, chunk: ChunkId, size_bytes: int) -> memoryview:
        """Read a chunk that is stored, so many bytes long; valid until the same thread reads another base.

        Raises:
            NotFound: the chunk, or a delta base of it, is nowhere.
            Corrupt: it has no intact copy, or another length.
        """
        room = _thread.room.of(size_bytes)
        self._reader.chunk_into(chunk, room)
        return room

    def unchanged(self, item: str, name: str, given: UnchangedInput) -> TensorEntry:
        """The last save's entry of a tensor that is as it was then, at the place it has now.

        Raises:
            NotUnchanged: there is none, or it has another dtype or shape, or is stored otherwise.
        """
        entry = self._last.get(item, {}).get(name)
        if not isinstance(entry, TensorEntry) or not _is_kept_as(entry, given):
            raise NotUnchanged(
                f"{item}::{name} is not as it was in the last save, or that is not stored any more; save it again",
                item=item,
                name=name,
            )
        return replace(entry, position=given.position)

    def _stored(self, chunk: ChunkId) -> Base:
        return Base(chunk, None, lambda: memoryview(self._reader.chunk(chunk)))


def _is_kept_as(entry: TensorEntry, given: UnchangedInput) -> bool:
    return (entry.dtype, entry.shape, entry.stored) == given[1:4] and is_by_row(entry.scale) == given.by_row


def _cast(entry: TensorEntry, stored: str, buffer: memoryview, *, is_same_scale: bool) -> Iterator[Base]:
    """Bases that lie in memory as they were before they were cast: cast once more, which costs less than reading."""
    before_bytes, after_bytes = dtype_of(entry.dtype).item_bytes, dtype_of(stored).item_bytes
    casting = narrowing(entry.dtype, stored, entry.scale, prod(entry.shape[1:]))
    for chunk, cut, stop in zip(entry.chunks, entry.cuts, accumulate(entry.cuts), strict=True):
        first, end = (stop - cut) // after_bytes, stop // after_bytes
        elements = buffer[first * before_bytes : end * before_bytes]
        yield Base(chunk, elements if is_same_scale else None, partial(_cast_again, casting, elements, first))


class _Thread(threading.local):
    """Where a thread casts bases or reads them: fresh memory for each would cost page faults, and is in no cache."""

    def __init__(self) -> None:
        self.room = Room()


_thread = _Thread()


def _cast_again(casting: "Casting", elements: memoryview, first: int) -> memoryview:
    size_bytes = len(elements) // casting.source_bytes * casting.target_bytes
    room = _thread.room.of(size_bytes)
    casting.into(elements, first, room)
    return room


def _in_memory(chunk: ChunkId, raw: memoryview) -> Base:
    return Base(chunk, raw, lambda: raw)
