"""From how a tensor is laid out over a mesh to the boxes that one rank holds. Pure.

torch tells the offset of the first element of a shard only, which is not enough where a shard is several boxes, and its
own arithmetic for those fails on some uneven sizes. So all of it is done here: each dim of the tensor is followed as
the ranges of global indexes that a rank has left after each split.
"""

from collections.abc import Iterator, Sequence
from functools import lru_cache
from itertools import accumulate, product
from operator import neg
from typing import NamedTuple

from store.boxes import Box, intersection
from store.errors import Incompatible

_LAYOUTS_KEPT = 4096
"""Layers have tensors of the same sizes."""


class Split(NamedTuple):
    """A dim of the tensor is split among the ranks along a dim of the mesh, in runs as ``torch.chunk`` makes them.

    Attributes:
        dim: which dim of the tensor.
        factor: into so many parts the dim is cut first, and each of them is split: torch's ``_StridedShard``.
    """

    dim: int
    factor: int = 1


class Layout(NamedTuple):
    """How a tensor lies on a mesh of ranks.

    Attributes:
        shape: global shape.
        mesh: number of ranks along each dim of the mesh.
        splits: what each dim of the mesh does, applied in this order; ``None`` holds a copy on each rank.
    """

    shape: tuple[int, ...]
    mesh: tuple[int, ...]
    splits: tuple[Split | None, ...]


class Part(NamedTuple):
    """A box of a tensor that a rank holds.

    Attributes:
        box: where it lies in the global tensor.
        local: first index of it in the rank's local tensor, where it has the same sizes.
    """

    box: Box
    local: tuple[int, ...]


Runs = tuple[range, ...]
"""Global indexes along one dim, in the order in which a local tensor has them."""


@lru_cache(_LAYOUTS_KEPT)
def parts_of(layout: Layout, coordinate: tuple[int, ...]) -> tuple[Part, ...]:
    """The boxes that one rank holds, none of them empty, in C order of its local tensor.

    Args:
        layout: how the tensor lies.
        coordinate: the rank's place on the mesh.

    Raises:
        Incompatible: a split of a dim that the tensor does not have, or a layout that torch reads in two ways: see
            :func:`require_one_meaning`.
    """
    held = _held(layout, coordinate)
    begins = [tuple(accumulate((len(run) for run in runs), initial=0)) for runs in held]
    return tuple(
        Part(
            Box(
                tuple(runs[number].start for runs, number in zip(held, numbers, strict=True)),
                tuple(len(runs[number]) for runs, number in zip(held, numbers, strict=True)),
            ),
            tuple(begin[number] for begin, number in zip(begins, numbers, strict=True)),
        )
        for numbers in product(*(range(len(runs)) for runs in held))
    )


def local_shape(layout: Layout, coordinate: tuple[int, ...]) -> tuple[int, ...]:
    """Sizes of the tensor that one rank holds. Raises as :func:`parts_of` does."""
    return tuple(sum(map(len, runs)) for runs in _held(layout, coordinate))


def place_of(box: Box, parts: Sequence[Part]) -> tuple[int, ...]:
    """First index, in a rank's local tensor, of a box that lies within one of its parts.

    Raises:
        Incompatible: it lies within none.
    """
    for part in parts:
        if intersection(box, part.box) == box:
            return tuple(map(sum, zip(part.local, box.offsets, map(neg, part.box.offsets), strict=True)))
    raise Incompatible(f"this rank does not hold {box}")


def _held(layout: Layout, coordinate: tuple[int, ...]) -> list[Runs]:
    for split in layout.splits:
        if split is not None and not (0 <= split.dim < len(layout.shape) and split.factor > 0):
            raise Incompatible(f"a tensor of shape {list(layout.shape)} cannot be laid out by {split}")
    return [_held_of_dim(size, _of_dim(layout, dim), coordinate) for dim, size in enumerate(layout.shape)]


class _Cut(NamedTuple):
    """A split of one dim of the tensor: into how many, by what factor, along which dim of the mesh."""

    ranks: int
    factor: int
    mesh_dim: int


def _of_dim(layout: Layout, dim: int) -> tuple[_Cut, ...]:
    return tuple(
        _Cut(layout.mesh[mesh_dim], split.factor, mesh_dim)
        for mesh_dim, split in enumerate(layout.splits)
        if split is not None and split.dim == dim
    )


def _held_of_dim(size: int, cuts: tuple[_Cut, ...], coordinate: tuple[int, ...]) -> Runs:
    if any(cut.factor > 1 for cut in cuts):
        require_one_meaning(size, cuts)
    return _applied(size, cuts, coordinate)


def _applied(size: int, cuts: Sequence[_Cut], coordinate: tuple[int, ...]) -> Runs:
    runs: Runs = (range(size),) if size else ()
    for cut in cuts:
        runs = _taken(runs, _chosen(sum(map(len, runs)), cut, coordinate[cut.mesh_dim]))
    return runs


def _chosen(size: int, cut: _Cut, number: int) -> Iterator[range]:
    """Which of ``size`` indexes one rank gets: one of the chunks of each part."""
    for part in (_chunk(size, cut.factor, part) for part in range(cut.factor)):
        chunk = _chunk(len(part), cut.ranks, number)
        yield range(part.start + chunk.start, part.start + chunk.stop)


def _chunk(size: int, count: int, number: int) -> range:
    """What ``torch.chunk`` makes of ``size`` indexes: all alike but the last, and perhaps too few."""
    step = -(-size // count)
    return range(min(size, number * step), min(size, (number + 1) * step))


def _taken(runs: Runs, chosen: Iterator[range]) -> Runs:
    """Those of the runs' indexes whose numbers are chosen; what is adjacent is one run."""
    found: list[range] = []
    for wanted in chosen:
        begin = 0
        for run in runs:
            low, high = max(wanted.start, begin), min(wanted.stop, begin + len(run))
            if low < high:
                taken = run[low - begin : high - begin]
                if found and found[-1].stop == taken.start:
                    taken = range(found.pop().start, taken.stop)
                found.append(taken)
            begin += len(run)
    return tuple(found)


@lru_cache(_LAYOUTS_KEPT)
def require_one_meaning(size: int, cuts: tuple[_Cut, ...]) -> None:
    """Check that a strided layout says the same in both of the ways in which torch reads it.

    FSDP over tensor parallelism splits a dim along the mesh's last dim first, and notes that as if it had gone from the
    first to the last, by way of a strided split. For most sizes that comes to the same. Where it does not, a rank holds
    other rows than the placements say, and even torch's own ``full_tensor`` is wrong.

    Args:
        size: of the tensor's dim.
        cuts: the splits of that dim.

    Raises:
        Incompatible: the two ways differ on some rank.
    """
    order = _order_made(cuts)
    if order is None:
        return
    plain = [cut._replace(factor=1) for cut in order]
    length = max(cut.mesh_dim for cut in cuts) + 1
    for numbers in product(*(range(cut.ranks) for cut in cuts)):
        coordinate = [0] * length
        for cut, number in zip(cuts, numbers, strict=True):
            coordinate[cut.mesh_dim] = number
        if _applied(size, cuts, tuple(coordinate)) != _applied(size, plain, tuple(coordinate)):
            counts = " × ".join(str(cut.ranks) for cut in cuts)
            raise Incompatible(
                f"a dim of {size}, split over a mesh of {counts} by FSDP over tensor parallelism, is not where its"
                " placements say; use a size that the mesh divides, or another mesh"
            )


def _order_made(cuts: tuple[_Cut, ...]) -> list[_Cut] | None:
    """The order of plain splits that strided ones stand for; ``None`` if they are what they say."""
    order: list[_Cut] = []
    for cut in reversed(cuts):
        before = list(accumulate((made.ranks for made in order), lambda product, count: product * count, initial=1))
        if cut.factor not in before:
            return None
        order.insert(before.index(cut.factor), cut)
    return order
