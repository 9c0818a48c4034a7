"""Boxes of tensors: where they meet, and whether they tile a shape. Pure.

A box is what a rank holds, what a piece stores, and what a load asks for.
"""

from collections.abc import Iterator, Sequence
from itertools import combinations
from math import prod
from typing import NamedTuple

from .errors import Incompatible


class Box(NamedTuple):
    """A part of a tensor that is a range in each dim.

    Attributes:
        offsets: first index in each dim.
        sizes: extent in each dim.
    """

    offsets: tuple[int, ...]
    sizes: tuple[int, ...]

    @property
    def volume(self) -> int:
        """How many elements; one without dims."""
        return prod(self.sizes)

    @property
    def stops(self) -> tuple[int, ...]:
        """One past the last index in each dim."""
        return tuple(offset + size for offset, size in zip(self.offsets, self.sizes, strict=True))

    def __str__(self) -> str:
        """As one would index with it: ``[0:4, 2:6]``."""
        return f"[{', '.join(f'{start}:{stop}' for start, stop in zip(self.offsets, self.stops, strict=True))}]"


def whole(shape: tuple[int, ...]) -> Box:
    """The box that is all of a tensor."""
    return Box((0,) * len(shape), shape)


def intersection(one: Box, other: Box) -> Box | None:
    """What two boxes have in common, or ``None`` if that is no element."""
    offsets, sizes = [], []
    for start, size, other_start, other_size in zip(*one, *other, strict=True):
        low, high = max(start, other_start), min(start + size, other_start + other_size)
        if low >= high:
            return None
        offsets.append(low)
        sizes.append(high - low)
    return Box(tuple(offsets), tuple(sizes))


def require_tiling(what: str, shape: tuple[int, ...], boxes: Sequence[Box]) -> None:
    """Check that boxes cover a shape, each element once. Empty boxes cover nothing, and do no harm.

    Args:
        what: the tensor, named in the error.
        shape: its global shape.
        boxes: in any order.

    Raises:
        Incompatible: a box of another number of dims, one that reaches outside, an overlap, or a hole.

    Cost: n log n for n boxes that lie in rows and columns, 20 ms for 4,096; n² for what no straight cut parts.
    """
    region = whole(shape)
    for box in boxes:
        if not is_inside(box, shape):
            raise Incompatible(f"{what}: {box} reaches outside of shape {list(shape)}", tensor=what)
    found = overlap_among(sorted(boxes))
    if found is not None:
        one, other = found
        raise Incompatible(f"{what}: {one} and {other} of shape {list(shape)} overlap", tensor=what)
    if sum(box.volume for box in boxes) != region.volume:
        raise Incompatible(f"{what}: nobody has {_hole(region, sorted(boxes))} of shape {list(shape)}", tensor=what)


def is_inside(box: Box, shape: tuple[int, ...]) -> bool:
    """Whether a box has a shape's number of dims and reaches nowhere outside of it."""
    if len(box.offsets) != len(shape) or len(box.sizes) != len(shape):
        return False
    return all(o >= 0 and s >= 0 and o + s <= whole for o, s, whole in zip(*box, shape, strict=True))


def overlap_among(boxes: Sequence[Box]) -> tuple[Box, Box] | None:
    """Two boxes that share an element, if there are any.

    Cuts that go through no box part them first, along one dim or another; only what no cut parts is compared.
    """
    groups = [list(boxes)]
    while groups:
        group = groups.pop()
        if len(group) < 2:
            continue
        parts = next((parts for dim in range(len(group[0].sizes)) if len(parts := _parted(group, dim)) > 1), None)
        if parts is not None:
            groups += parts
        else:
            found = next((pair for pair in combinations(group, 2) if intersection(*pair) is not None), None)
            if found is not None:
                return found
    return None


def _parted(boxes: Sequence[Box], dim: int) -> list[list[Box]]:
    """Boxes on the different sides of every cut across ``dim`` that goes through none of them."""
    parts: list[list[Box]] = []
    reach = -1
    for box in sorted(boxes, key=lambda box: box.offsets[dim]):
        if not parts or box.offsets[dim] >= reach:
            parts.append([])
        parts[-1].append(box)
        reach = max(reach, box.offsets[dim] + box.sizes[dim])
    return parts


def _hole(region: Box, boxes: Sequence[Box]) -> Box:
    """A part of ``region`` that no box covers; there is one."""
    regions = [(region, boxes)]
    while True:
        region, near = regions.pop()
        inside = [common for box in near if (common := intersection(region, box)) is not None]
        if not inside:
            return region
        around = _around(region, inside[len(inside) // 2])  # from the middle, so that little is left on either side
        regions += [(part, inside) for part in around]


def _around(region: Box, box: Box) -> Iterator[Box]:
    """``region`` without ``box``, which lies inside it, as boxes."""
    offsets, sizes = list(region.offsets), list(region.sizes)
    for dim, (start, stop) in enumerate(zip(box.offsets, box.stops, strict=True)):
        end = offsets[dim] + sizes[dim]
        for low, high in ((offsets[dim], start), (stop, end)):
            if low < high:
                yield Box((*offsets[:dim], low, *offsets[dim + 1 :]), (*sizes[:dim], high - low, *sizes[dim + 1 :]))
        offsets[dim], sizes[dim] = start, stop - start
