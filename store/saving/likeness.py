"""Where to cut a tensor that resembles a stored one, and what each of its chunks is stored against. Pure.

Both are rows of equally many words, in the same order; one may have more rows than the other, or floats of another
width. What they share is cut where the stored one is cut, so that no chunk needs two bases.
"""

from bisect import bisect_right
from collections.abc import Iterator, Sequence
from itertools import accumulate
from math import prod
from typing import NamedTuple

from ..codec.views import View, can_see
from ..format.chunking import tensor_cuts
from ..format.dtypes import Dtype, Element, dtype
from ..format.entries import TensorEntry
from ..ids import ChunkId
from ..limits import MAX_CHUNK_BYTES


class Run(NamedTuple):
    """A chunk of the stored tensor.

    Attributes:
        chunk: the chunk.
        start: which word of the tensor its first one is.
        stop: and the first one behind it.
    """

    chunk: ChunkId
    start: int
    stop: int


class LikeBase(NamedTuple):
    """What a chunk is stored against.

    Attributes:
        chunk: a chunk of the stored tensor.
        view: what is seen of it; ``None`` if that is all of it, as it is.
    """

    chunk: ChunkId
    view: View | None


class Likeness(NamedTuple):
    """A stored tensor beside one that is to be stored.

    Attributes:
        runs: its chunks, in C order of the tensor.
        held: the words in them.
        shared_rows: rows along dim 0 that both have.
        shared_words: words of these.
    """

    runs: Sequence[Run]
    held: Element
    shared_rows: int
    shared_words: int

    def cuts(self, known: Dtype, shape: tuple[int, ...]) -> tuple[int, ...]:
        """Lengths of the chunks of a tensor: as the stored one is cut, and as usual where that has no rows."""
        return (*self._shared_cuts(known), *tensor_cuts((shape[0] - self.shared_rows, *shape[1:]), known.item_bytes))

    def bases(self, element: Element, cuts: Sequence[int]) -> list[LikeBase | None]:
        """Of each chunk of a tensor what to store it against: ``None`` where no stored chunk holds all of its words."""
        starts = [run.start for run in self.runs]
        stops = [stop // element.width_bytes for stop in accumulate(cuts)]
        runs = [self.runs[bisect_right(starts, start) - 1] for start in (0, *stops[:-1])]
        return [
            self._base(run, element, start, stop)
            for run, start, stop in zip(runs, (0, *stops[:-1]), stops, strict=True)
        ]

    def _shared_cuts(self, known: Dtype) -> Iterator[int]:
        step = MAX_CHUNK_BYTES - MAX_CHUNK_BYTES % known.item_bytes
        for run in self.runs:
            left = (min(run.stop, self.shared_words) - run.start) * known.element.width_bytes
            while left > 0:  # wider words than the stored ones: two or more chunks see a part each
                yield min(left, step)
                left -= step

    def _base(self, run: Run, element: Element, start: int, stop: int) -> LikeBase | None:
        if stop > run.stop:
            return None
        if (start, stop, element) == (run.start, run.stop, self.held):
            return LikeBase(run.chunk, None)
        return LikeBase(run.chunk, View(self.held, start - run.start))


def likeness(known: Dtype, shape: tuple[int, ...], like: TensorEntry) -> Likeness | None:
    """How a stored tensor resembles one of some dtype and shape; ``None`` if its chunks are of no use.

    They are not if its words cannot be seen as those of the dtype, rows are of another length, it was scaled, or its
    pieces are not rows.
    """
    held = dtype(like.stored_dtype)
    are_words = can_see(held.element, known.element) and _words_of_item(held) == _words_of_item(known)
    if not are_words or like.scale or not shape or not like.shape or like.shape[1:] != shape[1:]:
        return None
    runs = _runs(like, held.element)
    rows = min(shape[0], like.shape[0])
    shared_words = rows * prod(shape[1:]) * _words_of_item(known)
    return Likeness(runs, held.element, rows, shared_words) if runs and shared_words else None


def usual_cuts(known: Dtype, shape: tuple[int, ...], like: Likeness | None) -> tuple[int, ...]:
    """Where a tensor is cut unless somebody says so: as what it resembles, if that is of use."""
    return tensor_cuts(shape, known.item_bytes) if like is None else like.cuts(known, shape)


def _runs(like: TensorEntry, held: Element) -> list[Run]:
    """The stored tensor's chunks in C order; none if there are none in such an order."""
    pieces = sorted(like.pieces, key=lambda piece: piece.offsets[:1])
    if any(piece.sizes[1:] != like.shape[1:] for piece in pieces):
        return []
    pairs = [pair for piece in pieces for pair in zip(piece.chunks, piece.cuts, strict=True)]
    stops = [stop // held.width_bytes for stop in accumulate(cut for _, cut in pairs)]
    return [Run(chunk, stop - cut // held.width_bytes, stop) for (chunk, cut), stop in zip(pairs, stops, strict=True)]


def _words_of_item(known: Dtype) -> int:
    return known.item_bytes // known.element.width_bytes
