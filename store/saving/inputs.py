"""What a caller hands over to be stored.

Named tuples throughout: a save of twenty thousand tensors is pickled for the worker while the trainer waits.
"""

from collections.abc import Callable, Mapping, Sequence
from typing import NamedTuple

from ..format.entries import Entry, TensorEntry
from ..format.trees import Ties
from ..format.values import Plain


class Span(NamedTuple):
    """A run of an arena's bytes: where a tensor lies that another process is to store."""

    start: int
    stop: int


class TensorInput(NamedTuple):
    """A tensor to store.

    Attributes:
        position: its place among its siblings.
        dtype: dtype name, see ``store.format.dtypes``.
        shape: its shape.
        data: its bytes, little-endian, C order, a flat view of unsigned bytes; unaltered until the save is done. Or
            where they lie in the save's arena: see :func:`located`.
        stored: narrower dtype to store it in, see ``store.format.casts``; ``None`` for its own.
        by_row: whether each index along dim 0 gets a scale of its own, if ``stored`` takes one and rows are long.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    data: memoryview | Span
    stored: str | None = None
    by_row: bool = False


class UnchangedInput(NamedTuple):
    """A tensor that is what it was in the last save from here: its chunks are taken from there, unseen.

    A save that cannot do so (there is no such tensor, or a chunk of it is not stored any more) is refused with
    ``NotUnchanged``; it then has to be asked for with its bytes. So is one that was stored otherwise than it is to be.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    stored: str | None = None
    by_row: bool = False


class MadeInput(NamedTuple):
    """A tensor whose bytes are made while it is stored, a chunk at a time, so that it need not fit into memory.

    Attributes:
        position: its place among its siblings.
        dtype: dtype name, see ``store.format.dtypes``.
        shape: its shape.
        make: gives the bytes from one offset to another; called in any thread, and again if a save has to be repeated.
        cuts: lengths of its chunks in bytes: whole elements, at most ``MAX_CHUNK_BYTES`` each, all of the tensor
            together. ``None`` for those of ``like``, or else of ``store.format.chunking``.
        like: a stored tensor that it resembles: its chunks are stored against that one's in the same place, even if one
            of them has more rows, or floats of another width. Whatever it is, the tensor can be stored.
    """

    position: int
    dtype: str
    shape: tuple[int, ...]
    make: Callable[[int, int], memoryview]
    cuts: tuple[int, ...] | None = None
    like: TensorEntry | None = None


class StoredInput(NamedTuple):
    """An entry of a commit of this store, taken over as it is. Nothing is read.

    A save under whose feet its chunks are swept is refused with ``Busy``; keep the commit with ``SaveRequest.merged``.
    """

    entry: Entry


class ValueInput(NamedTuple):
    """A plain value to store, see ``store.format.values``."""

    position: int
    value: Plain


class MadeValueInput(NamedTuple):
    """A plain value that is made once all tensors of its save are stored: what takes long runs beside them.

    Attributes:
        position: its place among its siblings.
        make: gives the value; called by the thread that saves, and again if a save has to be repeated.
    """

    position: int
    make: Callable[[], Plain]


class ContainerInput(NamedTuple):
    """A container with tensors below it, see ``store.format.entries.ContainerEntry``."""

    position: int
    container: str
    info: Plain = None


Input = TensorInput | UnchangedInput | MadeInput | StoredInput | ValueInput | MadeValueInput | ContainerInput


class ItemInput(NamedTuple):
    """One named thing to store.

    Attributes:
        name: the item's name.
        entries: entry name → input; ``""`` is the item itself.
        ties: groups of names of one tensor.
    """

    name: str
    entries: Mapping[str, Input]
    ties: Ties = ()


def located(items: Sequence[ItemInput], memory: memoryview) -> list[ItemInput]:
    """The same with views of an arena's memory in place of spans. Copies nothing."""
    return [
        item._replace(entries={name: _located(given, memory) for name, given in item.entries.items()}) for item in items
    ]


def _located(given: Input, memory: memoryview) -> Input:
    if isinstance(given, TensorInput) and isinstance(given.data, Span):
        data = memory[given.data.start : given.data.stop]
        return TensorInput(given.position, given.dtype, given.shape, data, given.stored, given.by_row)
    return given
