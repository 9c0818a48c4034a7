"""Planning a rank's part: what of each input becomes chunks. Pure but for trees that are read to find bases."""

from bisect import bisect_right
from collections.abc import Iterator, Mapping, Sequence
from itertools import accumulate
from math import prod
from typing import TYPE_CHECKING, NamedTuple
from zlib import crc32

from ..boxes import Box
from ..codec import narrowing
from ..errors import Incompatible
from ..format.chunking import tensor_cuts
from ..format.dtypes import Dtype
from ..format.dtypes import dtype as dtype_of
from ..format.entries import Piece
from ..ids import ChunkId, ObjectId
from .bases import Base
from .drafts import CastTask, ChunkTask, Task
from .parts import TensorPart
from .pieces import UNCAST, BoxBytes, Cast, box_cuts, is_inline
from .rankbases import ChunkAt, RankBases, Remembered, elements_of, places_of
from .scales import require_narrower
from .shards import BoxInput, ShardsInput

if TYPE_CHECKING:
    from ..codec.casting import Casting

_PENDING = ChunkId(ObjectId(b""))
_UNMADE = memoryview(b"")


class BoxDraft(NamedTuple):
    """A box in the making.

    Attributes:
        given: the box.
        cuts: bytes of each chunk.
        ids: the chunks' ids, complete once all tasks ran.
        kept: the last save's piece, if the box is as it was.
    """

    given: BoxInput
    cuts: tuple[int, ...]
    ids: list[ChunkId]
    kept: Piece | None = None

    def piece(self) -> Piece:
        """The piece, once all tasks have run."""
        if self.kept is not None:
            return self.kept
        return Piece(self.given.box.offsets, self.given.box.sizes, self.cuts, tuple(self.ids))


class ShardsDraft(NamedTuple):
    """What a rank stores of a tensor, in the making.

    Attributes:
        given: the input.
        boxes: those that are cut into chunks.
        inline: those that are to sit in the tree.
        tasks: one for each chunk.
        cast: how it is cast.
    """

    given: ShardsInput
    boxes: tuple[BoxDraft, ...]
    inline: tuple[BoxBytes, ...]
    tasks: tuple[Task, ...]
    cast: Cast

    def part(self) -> TensorPart:
        """What was stored, once all tasks have run."""
        given = self.given
        pieces = tuple(box.piece() for box in self.boxes)
        return TensorPart(given.position, given.dtype, given.shape, pieces, self.inline, self.cast)

    def remembered(self) -> Remembered:
        """What the next save is compared with, once all tasks have run."""
        pieces = tuple(box.piece() for box in self.boxes)
        return Remembered(self.given.dtype, pieces, tuple(box.given.data for box in self.boxes), self.cast)


def shards_draft(item: str, name: str, given: ShardsInput, bases: RankBases, scale: bytes | None = b"") -> ShardsDraft:
    """Plan how a rank's boxes of a tensor are stored.

    Args:
        item: the item.
        name: the tensor's name.
        given: the boxes.
        bases: what chunks are compared with and stored against.
        scale: of a tensor that is to be cast, see ``store.format.casts``; ``None`` if it cannot be, after all.

    Raises:
        Incompatible: an unknown dtype, one that it cannot be cast to, a box that is not inside the tensor, or bytes
            that do not fit it.
        NotUnchanged: a box is said to be as it was, and is not known.
    """
    cast = UNCAST
    if given.stored is not None and scale is not None:
        require_narrower(item, name, given.dtype, given.stored)
        cast = Cast(given.stored, scale)
    for fresh in given.boxes:
        _require_fitting(f"{item}::{name}", given, fresh, dtype_of(given.dtype).item_bytes)
    if is_inline(cast.stored or given.dtype, given.shape):
        inline = tuple(BoxBytes(each.box, _inline(given, each, cast)) for each in given.boxes)
        return ShardsDraft(given, (), inline, (), cast)
    known = dtype_of(cast.stored or given.dtype)
    boxes = tuple(
        _box_draft(given.shape, each, known.item_bytes)
        if each.data is not None
        else BoxDraft(each, (), [], bases.unchanged(item, name, given, each.box, cast))
        for each in given.boxes
        if each.box.volume
    )
    found = bases.of_tensor(item, name, given.dtype, cast)
    tasks: list[Task] = []
    for each in (box for box in boxes if box.kept is None):
        planned = _planned(f"{item}/{name}", given.shape, each, known, found, is_made=cast.stored is None)
        tasks.extend(planned if cast.stored is None else _to_cast(planned, each, given.dtype, cast))
    return ShardsDraft(given, boxes, (), tuple(tasks), cast)


def _planned(
    path: str, shape: tuple[int, ...], draft: BoxDraft, known: Dtype, found: Mapping[ChunkAt, Base], *, is_made: bool
) -> list[ChunkTask]:
    """A task for each chunk of a box, with its bytes if memory holds these as they are to be stored."""
    data, cuts = draft.given.data, draft.cuts
    assert data is not None
    raws = (data[stop - cut : stop] if is_made else _UNMADE for cut, stop in zip(cuts, accumulate(cuts), strict=True))
    places = places_of(draft.given.box, cuts, known.item_bytes)
    numbers = _numbers(path, shape, draft, known.item_bytes)
    return [
        ChunkTask(raw, known.element, found.get(at), numbers[number], draft.ids, number)
        for number, (raw, at) in enumerate(zip(raws, places, strict=True))
    ]


def _to_cast(planned: Sequence[ChunkTask], draft: BoxDraft, dtype_name: str, cast: Cast) -> Iterator[CastTask]:
    casting = _casting(dtype_name, cast, draft.given.box)
    cast_bytes = casting.source_bytes, casting.target_bytes
    assert draft.given.data is not None
    elements = elements_of(draft.given.box, draft.cuts, cast_bytes, draft.given.data)
    for task, cut, (data, first) in zip(planned, draft.cuts, elements, strict=True):
        yield CastTask(data, casting, first, cut, task)


def _inline(given: ShardsInput, each: BoxInput, cast: Cast) -> bytes:
    assert each.data is not None  # so little is always copied
    if cast.stored is None:
        return bytes(each.data)
    above = each.box.offsets[0] * prod(each.box.sizes[1:]) if each.box.offsets else 0
    return bytes(_casting(given.dtype, cast, each.box).new(each.data, above))


def _casting(dtype_name: str, cast: Cast, box: Box) -> "Casting":
    assert cast.stored is not None
    return narrowing(dtype_name, cast.stored, cast.scale, prod(box.sizes[1:]))


def _box_draft(shape: tuple[int, ...], given: BoxInput, item_bytes: int) -> BoxDraft:
    cuts = box_cuts(shape, given.box, item_bytes)
    return BoxDraft(given, cuts, [_PENDING] * len(cuts))


def _numbers(path: str, shape: tuple[int, ...], draft: BoxDraft, item_bytes: int) -> list[int]:
    """A number for each chunk that stays the same for the same place from save to save, as a save by one gives it."""
    columns = Box(draft.given.box.offsets[1:], draft.given.box.sizes[1:])
    if columns.sizes != shape[1:]:
        path = f"{path}{columns}"
    first = crc32(path.encode("utf-8", "surrogatepass"))
    if draft.given.box.sizes == shape:
        return [first + number for number in range(len(draft.cuts))]
    stops = list(accumulate(tensor_cuts((shape[0], *columns.sizes), item_bytes)))
    return [first + bisect_right(stops, at.start) for at in places_of(draft.given.box, draft.cuts, item_bytes)]


def _require_fitting(what: str, given: ShardsInput, each: BoxInput, item_bytes: int) -> None:
    box, shape = each.box, given.shape
    same_dims = len(box.offsets) == len(box.sizes) == len(shape)
    if not same_dims or any(o < 0 or s < 0 or o + s > all_ for o, s, all_ in zip(*box, shape, strict=True)):
        raise Incompatible(f"{what}: {box} is not inside a tensor of shape {list(shape)}", tensor=what)
    if each.data is not None and box.volume * item_bytes != len(each.data):
        raise Incompatible(
            f"{what}: {len(each.data)} bytes given for {box} of {given.dtype}, which takes {box.volume * item_bytes}",
            tensor=what,
        )
