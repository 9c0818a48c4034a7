"""What a rank hands over to be stored as its part of a snapshot."""

from collections.abc import Mapping
from typing import NamedTuple

from ..boxes import Box, whole
from ..format.trees import Ties
from .inputs import ContainerInput, TensorInput, ValueInput


class BoxInput(NamedTuple):
    """A box of a tensor.

    Attributes:
        box: the box.
        data: its elements, little-endian, in C order of the box, a flat view of unsigned bytes; unaltered until the
            part is stored, and for as long as it is what the next one is compared with. ``None`` if the box is what it
            was in this rank's last save: it is taken from there, unseen.
    """

    box: Box
    data: memoryview | None


class ShardsInput(NamedTuple):
    """What a rank stores of a tensor: as many boxes as it is told to, perhaps none.

    Attributes:
        position: its place among its siblings.
        dtype: dtype name, see ``store.format.dtypes``.
        shape: global shape.
        boxes: what this rank stores of it. Those of all ranks have to tile the shape.
        stored: narrower dtype to store it in, see ``store.format.casts``; ``None`` for its own. The same on all ranks.
        by_row: whether each index along dim 0 gets a scale of its own, if ``stored`` takes one and rows are long.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    boxes: tuple[BoxInput, ...]
    stored: str | None = None
    by_row: bool = False


RankInput = ShardsInput | TensorInput | ValueInput | ContainerInput
"""A ``TensorInput`` is a tensor that this rank stores alone."""


class RankItem(NamedTuple):
    """What a rank stores of one item.

    Attributes:
        name: the item's name.
        entries: entry name → input; ``""`` is the item itself.
        ties: groups of names of one tensor.
    """

    name: str
    entries: Mapping[str, RankInput]
    ties: Ties = ()


def as_shards(given: TensorInput) -> ShardsInput:
    """A tensor that one rank stores alone, as its one box."""
    assert isinstance(given.data, memoryview)
    box = BoxInput(whole(given.shape), given.data)
    return ShardsInput(given.position, given.dtype, given.shape, (box,), given.stored, given.by_row)
