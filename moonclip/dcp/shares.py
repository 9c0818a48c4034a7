"""What the entries of a plan are: boxes of tensors, each in some memory of this rank's. Copies nothing."""

from collections.abc import Mapping, Sequence
from typing import NamedTuple

import torch
from torch.distributed.checkpoint.metadata import MetadataIndex
from torch.distributed.checkpoint.planner import SavePlanner, WriteItem
from torch.distributed.tensor import DTensor

from store.boxes import Box
from store.errors import Incompatible
from store.saving.arenas import Arena
from store.saving.inputs import ItemInput, Span, TensorInput
from store.saving.shards import BoxInput, RankItem, ShardsInput

from ..sharding.dtensors import shards_of
from ..sharding.writers import Name
from ..state.composites import taken_apart
from ..state.entries import FlatState, FlatTensor
from ..state.refusals import located
from ..state.tensors import TensorSource, dtype_name, lies_in_c_order
from .layout import Layout


class Share(NamedTuple):
    """A box of a tensor that this rank writes.

    Attributes:
        name: the tensor's.
        shape: its global shape.
        box: the box.
        source: its elements.
    """

    name: Name
    shape: tuple[int, ...]
    box: Box
    source: TensorSource


def share_of(planner: SavePlanner, item: WriteItem, layout: Layout) -> Share:
    """The box that an entry of a plan stands for.

    Args:
        planner: gives the elements.
        item: the entry, of a tensor.
        layout: names it.

    Raises:
        Incompatible: it is no plain strided tensor, is not what the plan says, or lies otherwise than torch tells.
    """
    data, fqn = item.tensor_data, item.index.fqn
    given = planner.resolve_data(item)
    if data is None or not isinstance(given, torch.Tensor):
        raise Incompatible(f"{fqn}: the planner gives {type(given).__name__} for a tensor", tensor=fqn)
    with located(fqn):
        tensor = taken_apart(given.detach())
    if not isinstance(tensor, torch.Tensor):
        raise Incompatible(
            f"{fqn}: torch's checkpointing keeps plain tensors only, and this one is a {type(given).__name__} of layout"
            f" {given.layout}; save it with CheckpointManager",
            tensor=fqn,
        )
    box = Box(tuple(data.chunk.offsets), tuple(data.chunk.sizes))
    if tuple(tensor.shape) != box.sizes:
        raise Incompatible(f"{fqn}: the plan says {list(box.sizes)}, and it is {list(tensor.shape)}", tensor=fqn)
    require_one_box(planner, item.index)
    address = tensor.data_ptr() if lies_in_c_order(tensor) else 0
    source = TensorSource(tensor, dtype_name(tensor.dtype), box.sizes, tensor.nbytes, address)
    return Share(layout.name(fqn), tuple(data.size), box, source)


def require_one_box(planner: object, index: MetadataIndex) -> None:
    """Check that what torch says of a DTensor's shard is what this rank holds.

    torch tells where a shard begins and how large it is. Strided layouts may leave a rank with several boxes, which it
    takes for one.

    Args:
        planner: has the tensor, if it is one of torch's.
        index: names the tensor, and says where torch thinks that the shard begins.

    Raises:
        Incompatible: the rank holds something else, or sums that are still to be made.
    """
    state = getattr(planner, "state_dict", None)
    tensor = state.get(index.fqn) if isinstance(state, Mapping) else None
    if not isinstance(tensor, DTensor):
        return
    with located(index.fqn):
        shards = shards_of(tensor)
    told = Box(tuple(index.offset or ()), tuple(shards.local.shape))
    held = [part.box for part in shards.parts]
    if held != ([told] if told.volume else []):
        listed = ", ".join(map(str, held)) or "nothing"
        raise Incompatible(
            f"{index.fqn}: of {list(shards.shape)} this rank holds {listed}, which torch takes for {told}; its"
            " checkpointing knows no such layout, CheckpointManager does",
            tensor=index.fqn,
        )


def states_of(shares: Sequence[Share]) -> dict[str, FlatState]:
    """Boxes as a capture takes them: each one an entry, by its number."""
    entries: dict[str, dict[str, FlatTensor]] = {}
    for number, share in enumerate(shares):
        entries.setdefault(share.name.item, {})[str(number)] = FlatTensor(number, share.source)
    return {item: FlatState(dict(own), ()) for item, own in entries.items()}


def items_of(shares: Sequence[Share], captured: Sequence[ItemInput], arena: Arena) -> list[RankItem]:
    """What the engine stores of boxes that were captured.

    Args:
        shares: the boxes.
        captured: they, as the capture gave them.
        arena: what they lie in.
    """
    spans = {number: entry for item in captured for number, entry in item.entries.items()}
    memory = arena.memory
    found: dict[str, dict[str, ShardsInput]] = {}
    for number, share in enumerate(shares):
        given = spans[str(number)]
        assert isinstance(given, TensorInput)
        assert isinstance(given.data, Span)
        box = BoxInput(share.box, memory[given.data.start : given.data.stop])
        named = found.setdefault(share.name.item, {})
        known = named.get(share.name.entry, ShardsInput(0, share.source.dtype, share.shape, ()))
        named[share.name.entry] = known._replace(boxes=(*known.boxes, box))
    return [RankItem(item, named) for item, named in found.items()]
