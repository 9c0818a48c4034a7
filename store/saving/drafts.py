"""Planning a save: what each input becomes, and the chunks that have to be stored for it. Pure.

A draft is an entry whose chunk ids are still to come: tasks fill them in, in any order, in any thread. All here are
named tuples: there may be tens of thousands, and dataclasses take thrice the time to make and more of the garbage
collector's.
"""

from collections.abc import Callable, Iterable, Sequence
from functools import partial
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ..codec import narrowing
from ..errors import Incompatible
from ..format import values
from ..format.chunking import blob_cuts, tensor_cuts
from ..format.dtypes import Dtype, Element, dtype
from ..format.entries import ContainerEntry, Entry, Piece, TensorEntry, ValueEntry
from ..ids import ChunkId, ObjectId
from ..limits import GROUP_BYTES, GROUP_CHUNKS, MAX_CHUNK_BYTES, MAX_INLINE_BYTES, MAX_INLINE_VALUE_BYTES
from .bases import Base, Bases
from .inputs import (
    ContainerInput,
    Input,
    MadeInput,
    MadeValueInput,
    StoredInput,
    TensorInput,
    UnchangedInput,
    ValueInput,
)
from .likeness import Likeness, likeness, usual_cuts

if TYPE_CHECKING:
    from ..codec.casting import Casting


class ChunkTask(NamedTuple):
    """A chunk to store, and where its id goes.

    Attributes:
        raw: its bytes.
        element: the words it is made of, or ``None`` for opaque bytes.
        base: what it is compared with and stored against.
        place: a number that stays the same for the same place of the same tensor from save to save.
        ids: the draft's ids; the task sets ``ids[number]``.
        number: which of the draft's chunks this is.
    """

    raw: memoryview
    element: Element | None
    base: Base | None
    place: int
    ids: list[ChunkId]
    number: int

    @property
    def size_bytes(self) -> int:
        """Length of the chunk."""
        return len(self.raw)

    def made(self) -> "ChunkTask":
        """Itself: its bytes are there."""
        return self


class UnmadeTask(NamedTuple):
    """A chunk whose bytes are made when its turn comes.

    Attributes:
        make: makes them.
        size_bytes: their length.
        task: all else.
    """

    make: Callable[[], memoryview]
    size_bytes: int
    task: ChunkTask

    def made(self) -> ChunkTask:
        """The chunk with its bytes. Raises whatever making them raises."""
        return self.task._replace(raw=self.make())


class CastTask(NamedTuple):
    """A chunk that holds elements in another dtype than memory does.

    Attributes:
        elements: what memory holds.
        casting: how they are cast.
        first: which element of the tensor the first of them is.
        size_bytes: the chunk's length.
        task: all else; its base is compared with what memory holds.
    """

    elements: memoryview
    casting: "Casting"
    first: int
    size_bytes: int
    task: ChunkTask

    def made(self) -> ChunkTask:
        """The chunk with its bytes, in new memory."""
        return self.task._replace(raw=self.casting.new(self.elements, self.first))

    def made_in(self, room: memoryview) -> ChunkTask:
        """The same in memory of its length."""
        self.casting.into(self.elements, self.first, room)
        return self.task._replace(raw=room)


Task = ChunkTask | UnmadeTask | CastTask


class Draft(NamedTuple):
    """An entry in the making.

    Attributes:
        given: the input.
        inline: its bytes, if they sit in the tree.
        cuts: bytes of each chunk, if it is cut.
        tasks: one for each chunk.
        ids: the chunks' ids, complete once all tasks ran.
        kept: the entry, if it is the last save's or another commit's.
        stored: dtype that the tensor is cast to, if it is.
        scale: what it is divided by then, see ``store.format.casts``.
    """

    given: Input
    inline: bytes | None = None
    cuts: tuple[int, ...] = ()
    tasks: tuple[Task, ...] = ()
    ids: Sequence[ChunkId] = ()
    kept: Entry | None = None
    stored: str | None = None
    scale: bytes = b""

    def entry(self) -> Entry:
        """The entry, once all tasks have run."""
        given, chunks = self.given, tuple(self.ids)
        if self.kept is not None:
            return self.kept
        assert not isinstance(given, StoredInput | MadeValueInput)
        if isinstance(given, ContainerInput):
            return ContainerEntry(given.position, given.container, given.info)
        if isinstance(given, ValueInput):
            return ValueEntry(given.position, inline=self.inline, cuts=self.cuts, chunks=chunks)
        piece = Piece((0,) * len(given.shape), given.shape, self.cuts, chunks)
        pieces = (piece,) if self.inline is None else ()
        return TensorEntry(given.position, given.dtype, given.shape, pieces, self.inline, self.stored, self.scale)


def groups(tasks: Iterable[Task]) -> list[list[Task]]:
    """Put tasks together that are run one after another by one thread, in the order in which to begin them.

    Small chunks share what a group costs once, its look-ups above all. The largest groups come first: the threads end
    together when the last ones are small.
    """
    found: list[list[Task]] = []
    room_bytes = 0
    for task in tasks:
        if room_bytes <= 0 or len(found[-1]) == GROUP_CHUNKS:
            found.append([])
            room_bytes = GROUP_BYTES
        found[-1].append(task)
        room_bytes -= task.size_bytes
    return sorted(found, key=lambda group: sum(task.size_bytes for task in group), reverse=True)


def draft(item: str, name: str, given: Input, bases: Bases, scale: bytes | None = b"") -> Draft:
    """Plan how one input is stored.

    Args:
        item: the item.
        name: name of its entry.
        given: the input.
        bases: what chunks are compared with and stored against.
        scale: of a tensor that is to be cast, see ``store.format.casts``; ``None`` if it cannot be, after all.

    Raises:
        Incompatible: an unknown dtype, bytes or cuts that do not fit the shape, or a value that is not plain.
        NotUnchanged: it is said to be as in the last save, and is not there.
    """
    if isinstance(given, TensorInput):
        if given.stored is not None and scale is not None:
            return _cast_draft(item, name, given, given.stored, bases, scale)
        return _tensor_draft(item, name, given, bases)
    if isinstance(given, UnchangedInput):
        return Draft(given, kept=bases.unchanged(item, name, given))
    if isinstance(given, StoredInput):
        return Draft(given, kept=given.entry)
    if isinstance(given, MadeInput):
        return _made_draft(item, name, given, bases)
    if isinstance(given, ValueInput):
        return _value_draft(item, name, given)
    return Draft(given)


def _tensor_draft(item: str, name: str, given: TensorInput, bases: Bases) -> Draft:
    known, data = dtype(given.dtype), _data_of(item, name, given)
    if len(data) <= MAX_INLINE_BYTES:
        return Draft(given, inline=bytes(data))
    cuts = tensor_cuts(given.shape, known.item_bytes)
    found = bases.of_tensor(item, name, given.dtype)
    return _cut(given, f"{item}/{name}", data, cuts, known.element, found)


def _data_of(item: str, name: str, given: TensorInput) -> memoryview:
    assert isinstance(given.data, memoryview)
    size_bytes = prod(given.shape) * dtype(given.dtype).item_bytes
    if size_bytes != len(given.data):
        raise Incompatible(
            f"{item}::{name}: {len(given.data)} bytes given for {given.dtype} of shape {list(given.shape)},"
            f" which takes {size_bytes}",
            item=item,
            name=name,
        )
    return given.data


def _cast_draft(item: str, name: str, given: TensorInput, stored: str, bases: Bases, scale: bytes) -> Draft:
    data, before_bytes, after = _data_of(item, name, given), dtype(given.dtype).item_bytes, dtype(stored)
    casting = narrowing(given.dtype, stored, scale, prod(given.shape[1:]))
    cuts = tensor_cuts(given.shape, after.item_bytes)
    if sum(cuts) <= MAX_INLINE_BYTES:
        return Draft(given, inline=bytes(casting.new(data, 0)), stored=stored, scale=scale)
    found = bases.of_tensor(item, name, given.dtype, stored, scale)
    ids: list[ChunkId] = [_PENDING] * len(cuts)
    place = _place(f"{item}/{name}")
    tasks = []
    for number, (cut, stop) in enumerate(zip(cuts, accumulate(cuts), strict=True)):
        base = found[number] if number < len(found) else None
        first, end = (stop - cut) // after.item_bytes, stop // after.item_bytes
        elements = data[first * before_bytes : end * before_bytes]
        task = ChunkTask(_UNMADE, after.element, base, place + number, ids, number)
        tasks.append(CastTask(elements, casting, first, cut, task))
    return Draft(given, cuts=cuts, tasks=tuple(tasks), ids=ids, stored=stored, scale=scale)


def _made_draft(item: str, name: str, given: MadeInput, bases: Bases) -> Draft:
    known = dtype(given.dtype)
    like = None if given.like is None else likeness(known, given.shape, given.like)
    cuts = _made_cuts(f"{item}::{name}", given, known, like)
    if sum(cuts) <= MAX_INLINE_BYTES:
        return Draft(given, inline=bytes(given.make(0, sum(cuts))))
    found: Sequence[Base | None] = (
        bases.of_tensor(item, name, given.dtype) if like is None else bases.of_like(like.bases(known.element, cuts))
    )
    ids: list[ChunkId] = [_PENDING] * len(cuts)
    first_place = _place(f"{item}/{name}")
    tasks = tuple(
        UnmadeTask(
            make=partial(given.make, stop - cut, stop),
            size_bytes=cut,
            task=ChunkTask(
                raw=_UNMADE,
                element=known.element,
                base=found[number] if number < len(found) else None,
                place=first_place + number,
                ids=ids,
                number=number,
            ),
        )
        for number, (cut, stop) in enumerate(zip(cuts, accumulate(cuts), strict=True))
    )
    return Draft(given, cuts=cuts, tasks=tasks, ids=ids)


def _made_cuts(what: str, given: MadeInput, known: Dtype, like: Likeness | None) -> tuple[int, ...]:
    if given.cuts is None:
        return usual_cuts(known, given.shape, like)
    size_bytes = prod(given.shape) * known.item_bytes
    if sum(given.cuts) != size_bytes:
        raise Incompatible(f"{what}: cuts of {sum(given.cuts)} bytes given for a tensor of {size_bytes}", name=what)
    wrong = [cut for cut in given.cuts if not 0 < cut <= MAX_CHUNK_BYTES or cut % known.item_bytes]
    if wrong:
        raise Incompatible(
            f"{what}: a chunk of {wrong[0]} bytes; chunks hold whole elements of {known.item_bytes} bytes, and at most"
            f" {MAX_CHUNK_BYTES} bytes",
            name=what,
        )
    return given.cuts


def _value_draft(item: str, name: str, given: ValueInput) -> Draft:
    try:
        encoded = values.encode(given.value)
    except Incompatible as error:
        raise Incompatible(f"{item}::{name}: {error}", item=item, name=name) from error
    if len(encoded) <= MAX_INLINE_VALUE_BYTES:
        return Draft(given, inline=encoded)
    return _cut(given, f"{item}/{name}", memoryview(encoded), blob_cuts(encoded), None, [])


def _cut(
    given: Input, path: str, raw: memoryview, cuts: tuple[int, ...], element: Element | None, bases: Sequence[Base]
) -> Draft:
    ids: list[ChunkId] = [_PENDING] * len(cuts)
    first_place = _place(path)
    if len(cuts) == 1:  # most tensors there are
        task = ChunkTask(raw, element, bases[0] if bases else None, first_place, ids, 0)
        return Draft(given, cuts=cuts, tasks=(task,), ids=ids)
    tasks = tuple(
        ChunkTask(
            raw=raw[stop - cut : stop],
            element=element,
            base=bases[number] if number < len(bases) else None,
            place=first_place + number,
            ids=ids,
            number=number,
        )
        for number, (cut, stop) in enumerate(zip(cuts, accumulate(cuts), strict=True))
    )
    return Draft(given, cuts=cuts, tasks=tasks, ids=ids)


def _place(path: str) -> int:
    return crc32(path.encode("utf-8", "surrogatepass"))


_PENDING = ChunkId(ObjectId(b""))
_UNMADE = memoryview(b"")
