"""What a caller hands over to be stored."""

from collections.abc import Mapping
from dataclasses import dataclass

from .trees import Ties
from .values import Plain


@dataclass(frozen=True, slots=True)
class TensorInput:
    """A tensor to store.

    Attributes:
        position: its place among its siblings.
        dtype: dtype name, see ``store.dtypes``.
        shape: its shape.
        data: its bytes, little-endian, C order, a flat view of unsigned bytes; unaltered until the save is done.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    data: memoryview


@dataclass(frozen=True, slots=True)
class ValueInput:
    """A plain value to store, see ``store.values``."""

    position: int
    value: Plain


@dataclass(frozen=True, slots=True)
class ContainerInput:
    """A container with tensors below it, see ``store.objects.ContainerEntry``."""

    position: int
    container: str
    info: Plain = None


Input = TensorInput | ValueInput | ContainerInput


@dataclass(frozen=True, slots=True)
class ItemInput:
    """One named thing to store.

    Attributes:
        name: the item's name.
        entries: entry name → input; ``""`` is the item itself.
        ties: groups of names of one tensor.
    """

    name: str
    entries: Mapping[str, Input]
    ties: Ties = ()
