"""What a rank stores by name of a commit that several make."""

from collections.abc import Mapping
from typing import Any, NamedTuple, cast

from ..boxes import Box
from ..errors import Incompatible
from ..saving.shards import BoxInput, RankInput, RankItem, ShardsInput
from .arrays import tensor_input
from .placing import item_inputs, leaf_input


class Shard(NamedTuple):
    """A box of an array of which other ranks have the rest.

    Attributes:
        array: the box: a NumPy array, what can be made one, or a :class:`~store.engine.arrays.RawArray`.
        shape: shape of the whole array.
        offsets: first index of the box in each of its dims.
    """

    array: Any
    shape: tuple[int, ...]
    offsets: tuple[int, ...]


def rank_items(items: Mapping[str, Any]) -> list[RankItem]:
    """What :func:`~store.saving.ranks.save_rank` takes.

    Args:
        items: as ``Repository.save_arrays`` takes them, and a :class:`Shard` wherever ranks share an array. Any other
            array is for one rank to give; values, and how names are nested, may be given by several, if all give the
            same.

    Raises:
        Incompatible: a name, dtype or value that cannot be stored.
    """
    return [RankItem(item.name, cast(Mapping[str, RankInput], item.entries)) for item in item_inputs(items, _leaf)]


def _leaf(name: str, position: int, given: Any) -> Any:
    if not isinstance(given, Shard):
        return leaf_input(name, position, given)
    box = tensor_input(name, position, given.array)
    assert isinstance(box.data, memoryview)
    if len(box.shape) != len(given.offsets):
        raise Incompatible(f"{name}: {len(given.offsets)} offsets for a box of {len(box.shape)} dims", tensor=name)
    boxes = (BoxInput(Box(tuple(given.offsets), box.shape), box.data),)
    return ShardsInput(position, box.dtype, tuple(given.shape), boxes)
