"""Objects of other files as what a save is given: structure and values now, tensors a chunk at a time."""

from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from store.errors import Incompatible
from store.format.entries import TensorEntry
from store.saving.inputs import ContainerInput, Input, ItemInput, MadeInput, ValueInput

from ..loading.numbering import GROUPS
from ..loading.stored import full_name
from ..state.composites import is_distributed
from ..state.entries import FlatContainer, FlatEntry, FlatState, FlatTensor
from ..state.flattening import flatten
from ..state.tensors import TensorSource, writable_bytes
from .ranges import Ranges

DEFAULT_ITEM: Final = "model"
"""What a state that is one item, and has no name, is called."""

STATE: Final = "state"
"""What an optimizer calls what it knows of each parameter."""

_OPTIMIZER: Final = "optimizer"

_NONE: Final[Mapping[int, TensorEntry]] = {}


def by_item(state: Any, item: str | None) -> dict[str, Any]:
    """A state as items: its keys are their names, unless it is one item itself.

    Args:
        state: what a file holds.
        item: what to call it as one item; ``None`` if its own form decides. A mapping is several items if there are
            mappings in it, as in ``{"model": {…}, "optimizer": {…}, "epoch": 3}``, or no tensors. The state of an
            optimizer is one.
    """
    if item is not None:
        return {item: state}
    if not isinstance(state, Mapping) or not all(type(key) is str and key for key in state):
        return {DEFAULT_ITEM: state}
    if state.keys() >= {STATE, GROUPS}:
        return {_OPTIMIZER: state}
    # A layer's extra state is a mapping too, with the layer's name before it.
    has_mappings = any(isinstance(child, Mapping) and "." not in key for key, child in state.items())
    is_several = has_mappings or not any(hasattr(child, "dtype") for child in state.values())
    return dict(state) if is_several else {DEFAULT_ITEM: state}


def input_of(
    item: str, obj: Any, ranges: Ranges | None = None, stand_ins: Mapping[int, TensorEntry] = _NONE
) -> ItemInput:
    """An item to be saved.

    Args:
        item: its name.
        obj: tensors, values and containers. Tensors are read while they are stored.
        ranges: where those are whose stand-ins are in it.
        stand_ins: tensors in files by the ``id`` of the tensor on the meta device that stands for each.

    Raises:
        Incompatible: there is something in it that cannot be kept; the message names it.
    """
    return input_of_state(item, flatten(obj, item=item, is_target=bool(stand_ins)), ranges, stand_ins)


def input_of_state(
    item: str, state: FlatState, ranges: Ranges | None = None, stand_ins: Mapping[int, TensorEntry] = _NONE
) -> ItemInput:
    """The same for an item that is flattened already. Raises as :func:`input_of` does."""
    entries: dict[str, Input] = {}
    for name, entry in state.entries.items():
        found = stand_ins.get(id(entry.source.tensor)) if isinstance(entry, FlatTensor) else None
        if found is not None and ranges is not None:
            entries[name] = ranges.input(found)._replace(position=entry.position)
        else:
            entries[name] = _input(full_name(item, name), entry)
    return ItemInput(item, entries, state.ties)


def _input(where: str, entry: FlatEntry) -> Input:
    if isinstance(entry, FlatContainer):
        return ContainerInput(entry.position, entry.container, entry.info)
    if not isinstance(entry, FlatTensor):
        return ValueInput(entry.position, entry.value)
    source = entry.source
    if source.tensor.is_meta or is_distributed(source.tensor):
        raise Incompatible(f"{where} is a tensor without its bytes", name=where)
    return MadeInput(entry.position, source.dtype, source.shape, partial(_run, source))


def _run(source: TensorSource, start: int, stop: int) -> memoryview:
    """Bytes of a tensor from one offset in C order to another, whole elements; copied where it lies otherwise."""
    memory = writable_bytes(source.tensor) if source.address else None
    if memory is not None:
        return memory[start:stop]
    data = memoryview(bytearray(stop - start))
    _copy_run(source, start, data)
    return data


def _copy_run(source: TensorSource, start: int, out: memoryview) -> None:
    """Copy as many bytes as there is room for, and no more: whole rows at once, and rows that are cut element-wise."""
    if start == 0 and len(out) == source.size_bytes:
        source.copy_into(out)
        return
    row_bytes, done = source.size_bytes // source.shape[0], 0
    while done < len(out):
        row, within = divmod(start + done, row_bytes)
        count = 0 if within else (len(out) - done) // row_bytes
        size_bytes = count * row_bytes or min(row_bytes - within, len(out) - done)
        part = source.tensor[row : row + count] if count else source.tensor[row]
        part_bytes = count * row_bytes or row_bytes
        below = TensorSource(part, source.dtype, tuple(part.shape), part_bytes, 0)
        _copy_run(below, within, out[done : done + size_bytes])
        done += size_bytes
