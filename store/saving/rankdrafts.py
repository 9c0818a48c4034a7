"""Planning a rank's part: what of each input becomes chunks. Pure but for trees that are read to find bases."""

from bisect import bisect_right
from itertools import accumulate
from typing import NamedTuple
from zlib import crc32

from ..boxes import Box
from ..errors import Incompatible
from ..format.chunking import tensor_cuts
from ..format.dtypes import dtype as dtype_of
from ..format.entries import Piece
from ..ids import ChunkId, ObjectId
from .drafts import ChunkTask
from .parts import TensorPart
from .pieces import BoxBytes, box_cuts, is_inline
from .rankbases import RankBases, Remembered, places_of
from .shards import BoxInput, ShardsInput

_PENDING = ChunkId(ObjectId(b""))


class BoxDraft(NamedTuple):
    """A box in the making.

    Attributes:
        given: the box.
        cuts: bytes of each chunk.
        ids: the chunks' ids, complete once all tasks ran.
    """

    given: BoxInput
    cuts: tuple[int, ...]
    ids: list[ChunkId]

    def piece(self) -> Piece:
        """The piece, once all tasks have run."""
        return Piece(self.given.box.offsets, self.given.box.sizes, self.cuts, tuple(self.ids))


class ShardsDraft(NamedTuple):
    """What a rank stores of a tensor, in the making.

    Attributes:
        given: the input.
        boxes: those that are cut into chunks.
        inline: those that are to sit in the tree.
        tasks: one for each chunk.
    """

    given: ShardsInput
    boxes: tuple[BoxDraft, ...]
    inline: tuple[BoxBytes, ...]
    tasks: tuple[ChunkTask, ...]

    def part(self) -> TensorPart:
        """What was stored, once all tasks have run."""
        given = self.given
        pieces = tuple(box.piece() for box in self.boxes)
        return TensorPart(given.position, given.dtype, given.shape, pieces, self.inline)

    def remembered(self) -> Remembered:
        """What the next save is compared with, once all tasks have run."""
        pieces = tuple(box.piece() for box in self.boxes)
        return Remembered(self.given.dtype, pieces, tuple(box.given.data for box in self.boxes))


def shards_draft(item: str, name: str, given: ShardsInput, bases: RankBases) -> ShardsDraft:
    """Plan how a rank's boxes of a tensor are stored.

    Raises:
        Incompatible: an unknown dtype, a box that is not inside the tensor, or bytes that do not fit it.
    """
    item_bytes, element = dtype_of(given.dtype).item_bytes, dtype_of(given.dtype).element
    for fresh in given.boxes:
        _require_fitting(f"{item}::{name}", given, fresh, item_bytes)
    if is_inline(given.dtype, given.shape):
        inline = tuple(BoxBytes(each.box, bytes(each.data)) for each in given.boxes)
        return ShardsDraft(given, (), inline, ())
    boxes = tuple(_box_draft(given.shape, each, item_bytes) for each in given.boxes if len(each.data))
    found = bases.of_tensor(item, name, given.dtype)
    tasks: list[ChunkTask] = []
    for each in boxes:
        box, data = each.given
        places, stops = places_of(box, each.cuts, item_bytes), accumulate(each.cuts)
        numbers = _numbers(f"{item}/{name}", given.shape, each, item_bytes)
        for number, (at, cut, stop) in enumerate(zip(places, each.cuts, stops, strict=True)):
            raw = data[stop - cut : stop]
            tasks.append(ChunkTask(raw, element, found.get(at), numbers[number], each.ids, number))
    return ShardsDraft(given, boxes, (), tuple(tasks))


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
    if box.volume * item_bytes != len(each.data):
        raise Incompatible(
            f"{what}: {len(each.data)} bytes given for {box} of {given.dtype}, which takes {box.volume * item_bytes}",
            tensor=what,
        )
