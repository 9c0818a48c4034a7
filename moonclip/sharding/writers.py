"""Which rank writes what, so that everything is written once and each rank has as much to do as the others. Pure.

Every rank that is given the same holdings comes to the same answer; nothing has to be agreed upon.
"""

from collections.abc import Iterable, Mapping, Sequence
from heapq import heapreplace
from itertools import pairwise
from math import prod
from typing import NamedTuple

from store.boxes import Box, require_tiling
from store.errors import Incompatible
from store.format.chunking import grid_rows
from store.format.dtypes import dtype as dtype_of
from store.limits import MAX_CHUNK_BYTES


class Name(NamedTuple):
    """A tensor of a checkpoint."""

    item: str
    entry: str

    def __str__(self) -> str:
        return f"{self.item}::{self.entry}"


class Holding(NamedTuple):
    """What a rank has of a tensor.

    Attributes:
        dtype: dtype name, see ``store.format.dtypes``.
        shape: global shape.
        boxes: what it has; all of the tensor if it is not sharded.
        stored: narrower dtype to store it in; ``None`` for its own.
        by_row: whether each row gets a scale of its own then.
    """

    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[Box, ...]
    stored: str | None = None
    by_row: bool = False

    @property
    def stored_bytes(self) -> int:
        """Bytes of an element as it is stored."""
        return dtype_of(self.stored or self.dtype).item_bytes


class _Unit(NamedTuple):
    """Something that one rank writes, and the ranks that could."""

    size_bytes: int
    name: Name
    box: Box
    holders: tuple[int, ...]


def share_out(holdings: Sequence[Mapping[Name, Holding]]) -> list[dict[Name, tuple[Box, ...]]]:
    """Choose who writes what.

    What one rank alone holds is its to write. What several hold goes, the largest first, to the one of them who has
    least to do so far; large boxes are shared out in parts, cut where chunks end anyhow.

    Args:
        holdings: what each rank has, by rank. A tensor may be on some ranks only, as in pipeline stages.

    Returns:
        For each rank the boxes of each tensor that it writes. A tensor without elements is written, as an empty tuple,
        by the first rank that has it.

    Raises:
        Incompatible: ranks disagree about a tensor's dtype or shape, or what they hold does not tile it.

    Cost: 5 to 20 µs for each tensor and rank that holds it: worth remembering for as long as holdings stay the same.
    """
    loads = [0] * len(holdings)
    written: list[dict[Name, list[Box]]] = [{} for _ in holdings]
    shared: list[_Unit] = []
    for name, holders in sorted(_by_tensor(holdings).items()):
        for unit in _units(name, holders):
            if len(unit.holders) == 1:
                _give(unit, unit.holders[0], loads, written)
            else:
                shared.append(unit)
    queues: dict[tuple[int, ...], list[tuple[int, int]]] = {}
    for unit in sorted(shared, key=lambda unit: (-unit.size_bytes, unit.name, unit.box)):
        if unit.holders not in queues:
            queues[unit.holders] = [(0, rank) for rank in unit.holders]
        _give(unit, _least_busy(queues[unit.holders], loads), loads, written)
    return [{name: tuple(sorted(filter(_is_full, boxes))) for name, boxes in own.items()} for own in written]


def _by_tensor(holdings: Sequence[Mapping[Name, Holding]]) -> dict[Name, dict[int, Holding]]:
    found: dict[Name, dict[int, Holding]] = {}
    for rank, own in enumerate(holdings):
        for name, holding in own.items():
            found.setdefault(name, {})[rank] = holding
    return found


def _units(name: Name, holders: Mapping[int, Holding]) -> Iterable[_Unit]:
    """What there is to write of a tensor, whose boxes are checked here."""
    first_rank, first = next(iter(holders.items()))
    for rank, holding in holders.items():
        if holding._replace(boxes=first.boxes) != first:
            raise Incompatible(
                f"{name}: rank {first_rank} has {_told(first)}, rank {rank} has {_told(holding)}", tensor=str(name)
            )
    if not prod(first.shape):
        return [_Unit(0, name, Box((0,) * len(first.shape), first.shape), (first_rank,))]
    ranks_of: dict[Box, list[int]] = {}
    for rank, holding in holders.items():
        for box in filter(_is_full, holding.boxes):
            ranks_of.setdefault(box, []).append(rank)
    require_tiling(str(name), first.shape, list(ranks_of))
    item_bytes = first.stored_bytes
    return [
        _Unit(part.volume * item_bytes, name, part, tuple(ranks))
        for box, ranks in ranks_of.items()
        for part in (_in_parts(first.shape, box, item_bytes) if len(ranks) > 1 else (box,))
    ]


def _told(holding: Holding) -> str:
    stored = "" if holding.stored is None else f", stored as {holding.stored}"
    return f"{holding.dtype} of shape {list(holding.shape)}{stored}{' by row' if holding.by_row else ''}"


def _in_parts(shape: tuple[int, ...], box: Box, item_bytes: int) -> list[Box]:
    """A large box as the parts along dim 0 into which the grid of ranks cuts it, where no chunk goes across."""
    if not shape or box.volume * item_bytes <= MAX_CHUNK_BYTES:
        return [box]
    start, stop = box.offsets[0], box.offsets[0] + box.sizes[0]
    within = [row for row in grid_rows(shape[0], prod(box.sizes[1:]) * item_bytes) if start < row < stop]
    bounds = [start, *within, stop]
    return [Box((low, *box.offsets[1:]), (high - low, *box.sizes[1:])) for low, high in pairwise(bounds)]


def _give(unit: _Unit, rank: int, loads: list[int], written: list[dict[Name, list[Box]]]) -> None:
    loads[rank] += unit.size_bytes
    written[rank].setdefault(unit.name, []).append(unit.box)


def _least_busy(queue: list[tuple[int, int]], loads: Sequence[int]) -> int:
    """The rank with least to do; what the queue says of a rank may be outdated, but never too high."""
    while queue[0][0] != loads[queue[0][1]]:
        heapreplace(queue, (loads[queue[0][1]], queue[0][1]))
    return queue[0][1]


def _is_full(box: Box) -> bool:
    return box.volume > 0
