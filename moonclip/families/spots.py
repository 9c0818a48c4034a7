"""Where a model is looked at to tell how much of it another saves: a few chunks, spread evenly over its bytes. Pure."""

from collections.abc import Callable, Iterable, Iterator
from itertools import accumulate
from math import prod
from typing import Final, NamedTuple

from store.format.dtypes import dtype
from store.limits import KIB
from store.saving.inputs import ItemInput, MadeInput
from store.saving.likeness import likeness, usual_cuts

from .pairing import Key, Kind

_LEAST_BYTES: Final = KIB
"""Shorter chunks are not stored in planes, and there is little to save."""


Place = tuple[Key, int, int]
"""A chunk: its tensor, its first byte, and one past the last."""


class Wanted(NamedTuple):
    """A tensor that is to be stored.

    Attributes:
        key: its item and name.
        kind: its dtype and shape.
        make: gives its bytes from one offset to another.
        cuts: lengths of its chunks.
    """

    key: Key
    kind: Kind
    make: Callable[[int, int], memoryview]
    cuts: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return prod(self.kind.shape) * dtype(self.kind.dtype).item_bytes


class Spot(NamedTuple):
    """A chunk that is looked at.

    Attributes:
        tensor: whose.
        start: its first byte.
        stop: and one past the last.
        weight_bytes: how many bytes of the model it stands for.
    """

    tensor: Wanted
    start: int
    stop: int
    weight_bytes: float

    @property
    def size_bytes(self) -> int:
        """Its length."""
        return self.stop - self.start

    @property
    def place(self) -> Place:
        """Which chunk it is."""
        return self.tensor.key, self.start, self.stop


def wanted_of(items: Iterable[ItemInput]) -> list[Wanted]:
    """The tensors of an import, but for blobs, which are cut by what is in them."""
    return [
        Wanted((item.name, name), Kind(given.dtype, given.shape), given.make, cuts_of(given))
        for item in items
        for name, given in item.entries.items()
        if isinstance(given, MadeInput) and given.cuts is None
    ]


def cuts_of(given: MadeInput) -> tuple[int, ...]:
    """Where a save would cut a tensor."""
    if given.cuts is not None:
        return given.cuts
    known = dtype(given.dtype)
    return usual_cuts(known, given.shape, None if given.like is None else likeness(known, given.shape, given.like))


def chunks_of(tensors: Iterable[Wanted]) -> Iterator[Spot]:
    """All chunks of tensors, each of which stands for itself."""
    for tensor in tensors:
        for cut, stop in zip(tensor.cuts, accumulate(tensor.cuts), strict=True):
            yield Spot(tensor, stop - cut, stop, cut)


def spread(chunks: Iterable[Spot], count: int) -> list[Spot]:
    """At most so many chunks, evenly spread over the bytes of all: a large tensor is met more often than a small one.

    Args:
        chunks: of these. Very short ones are left out.
        count: how many at most; all there are if there are no more.
    """
    known = [chunk for chunk in chunks if chunk.size_bytes >= _LEAST_BYTES]
    if len(known) <= count:
        return known
    step = sum(chunk.weight_bytes for chunk in known) / count
    ends = accumulate(chunk.weight_bytes for chunk in known)
    spots: list[Spot] = []
    met = 0
    for chunk, end in zip(known, ends, strict=True):
        hits = int(end / step + 0.5) - met  # of points in the middle of each step
        met += hits
        if hits:
            spots.append(chunk._replace(weight_bytes=hits * step))
    return spots
