"""Planning a save: what each input becomes, and the chunks that have to be stored for it. Pure.

A draft is an entry whose chunk ids are still to come: tasks fill them in, in any order, in any thread.
"""

from collections.abc import Sequence
from dataclasses import dataclass, field
from itertools import accumulate
from math import prod
from zlib import crc32

from . import values
from .bases import Base, Bases
from .chunking import blob_cuts, tensor_cuts
from .dtypes import Dtype, Element, dtype
from .entries import ContainerEntry, Entry, Piece, TensorEntry, ValueEntry
from .errors import Incompatible
from .ids import ChunkId, ObjectId
from .inputs import ContainerInput, Input, TensorInput, ValueInput
from .limits import MAX_INLINE_BYTES, MAX_INLINE_VALUE_BYTES


@dataclass(frozen=True, slots=True)
class Words:
    """What the codec is told of a chunk.

    Attributes:
        element: the words it is made of, or ``None`` for opaque bytes.
        columns: words in a row of its tensor, 0 if that has no rows.
    """

    element: Element | None = None
    columns: int = 0


_OPAQUE = Words()


@dataclass(frozen=True, slots=True)
class ChunkTask:
    """A chunk to store, and where its id goes.

    Attributes:
        raw: its bytes.
        words: what it is made of.
        base: what it is compared with and stored against.
        place: a number that stays the same for the same place of the same tensor from save to save.
        ids: the draft's ids; the task sets ``ids[number]``.
        number: which of the draft's chunks this is.
    """

    raw: memoryview
    words: Words
    base: Base | None
    place: int
    ids: list[ChunkId]
    number: int


@dataclass(frozen=True, slots=True)
class Draft:
    """An entry in the making.

    Attributes:
        given: the input.
        inline: its bytes, if they sit in the tree.
        cuts: bytes of each chunk, if it is cut.
        tasks: one for each chunk.
        ids: the chunks' ids, complete once all tasks ran.
    """

    given: Input
    inline: bytes | None = None
    cuts: tuple[int, ...] = ()
    tasks: tuple[ChunkTask, ...] = ()
    ids: list[ChunkId] = field(default_factory=list)

    def entry(self) -> Entry:
        """The entry, once all tasks have run."""
        given, chunks = self.given, tuple(self.ids)
        if isinstance(given, ContainerInput):
            return ContainerEntry(given.position, given.container, given.info)
        if isinstance(given, ValueInput):
            return ValueEntry(given.position, inline=self.inline, cuts=self.cuts, chunks=chunks)
        if self.inline is not None:
            return TensorEntry(given.position, given.dtype, given.shape, inline=self.inline)
        piece = Piece((0,) * len(given.shape), given.shape, self.cuts, chunks)
        return TensorEntry(given.position, given.dtype, given.shape, pieces=(piece,))


def draft(item: str, name: str, given: Input, bases: Bases) -> Draft:
    """Plan how one input is stored.

    Raises:
        Incompatible: an unknown dtype, bytes that do not fit the shape, or a value that is not plain.
    """
    if isinstance(given, TensorInput):
        return _tensor_draft(item, name, given, bases)
    if isinstance(given, ValueInput):
        return _value_draft(item, name, given)
    return Draft(given)


def _tensor_draft(item: str, name: str, given: TensorInput, bases: Bases) -> Draft:
    known = dtype(given.dtype)
    cuts = tensor_cuts(given.shape, known.item_bytes)
    if sum(cuts) != len(given.data):
        raise Incompatible(
            f"{item}::{name}: {len(given.data)} bytes given for {given.dtype} of shape {list(given.shape)},"
            f" which takes {sum(cuts)}",
            item=item,
            name=name,
        )
    if len(given.data) <= MAX_INLINE_BYTES:
        return Draft(given, inline=bytes(given.data))
    found = bases.of_tensor(item, name, given.dtype)
    words = Words(known.element, _columns(given.shape, known))
    return _cut(given, f"{item}/{name}", given.data, cuts, words, found)


def _columns(shape: tuple[int, ...], known: Dtype) -> int:
    return prod(shape[1:]) * known.item_bytes // known.element.width_bytes if len(shape) > 1 else 0


def _value_draft(item: str, name: str, given: ValueInput) -> Draft:
    try:
        encoded = values.encode(given.value)
    except Incompatible as error:
        raise Incompatible(f"{item}::{name}: {error}", item=item, name=name) from error
    if len(encoded) <= MAX_INLINE_VALUE_BYTES:
        return Draft(given, inline=encoded)
    return _cut(given, f"{item}/{name}", memoryview(encoded), blob_cuts(encoded), _OPAQUE, [])


def _cut(given: Input, path: str, raw: memoryview, cuts: tuple[int, ...], words: Words, bases: Sequence[Base]) -> Draft:
    ids: list[ChunkId] = [_PENDING] * len(cuts)
    first_place = crc32(path.encode("utf-8", "surrogatepass"))
    tasks = tuple(
        ChunkTask(
            raw=raw[stop - cut : stop],
            words=words,
            base=bases[number] if number < len(bases) else None,
            place=first_place + number,
            ids=ids,
            number=number,
        )
        for number, (cut, stop) in enumerate(zip(cuts, accumulate(cuts), strict=True))
    )
    return Draft(given, cuts=cuts, tasks=tasks, ids=ids)


_PENDING = ChunkId(ObjectId(b""))
