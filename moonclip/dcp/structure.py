"""The structure of a checkpoint: containers, the place of each tensor among its siblings, and all that is no tensor.

It is made of what torch says of all ranks' plans, by the walk that any state is flattened with, with stand-ins for the
tensors that ranks have stored. So names, order and what is folded into one value are as for any other save.
"""

from collections.abc import Mapping
from typing import Any

import torch
from torch.distributed.checkpoint._traverse import set_element
from torch.distributed.checkpoint.metadata import BytesStorageMetadata, Metadata

from store.boxes import whole
from store.errors import Incompatible
from store.saving.inputs import ContainerInput, ValueInput
from store.saving.shards import BoxInput, RankInput, RankItem, ShardsInput

from ..loading.numbering import STATE
from ..state.composites import is_distributed
from ..state.entries import FlatEntry, FlatTensor, FlatValue
from ..state.flattening import flatten
from ..state.policy import Policy
from .layout import Layout


def structure(metadata: Metadata, layout: Layout, leaves: Mapping[str, Any], policy: Policy) -> list[RankItem]:
    """All entries of a checkpoint, of which tensors that ranks store have no elements yet.

    Args:
        metadata: what torch says of it.
        layout: where its leaves lie.
        leaves: what is no tensor, by flattened name.
        policy: whether unknown objects may be pickled.

    Raises:
        Incompatible: something has no stored form; the message names it.
    """
    state: dict[str, Any] = {}
    standing_in: set[int] = set()
    for fqn in layout.in_order(metadata.state_dict_metadata):
        stored = metadata.state_dict_metadata[fqn]
        if isinstance(stored, BytesStorageMetadata):
            leaf = leaves[fqn]
        else:
            leaf = torch.empty(stored.size, dtype=stored.properties.dtype, device="meta")
            standing_in.add(id(leaf))
        set_element(state, layout.path(fqn), leaf)
    for item in layout.numbered & state.keys():
        of_each = state[item].get(STATE, {})
        state[item][STATE] = {int(number): child for number, child in of_each.items()}
    return [_item(item, value, policy, standing_in) for item, value in state.items()]


def _item(item: str, value: Any, policy: Policy, standing_in: set[int]) -> RankItem:
    flat = flatten(value, policy, item, is_target=True)
    inputs = {name: _input(f"{item}::{name}", entry, standing_in) for name, entry in flat.entries.items()}
    return RankItem(item, inputs, flat.ties)


def _input(what: str, entry: FlatEntry, standing_in: set[int]) -> RankInput:
    if isinstance(entry, FlatValue):
        return ValueInput(entry.position, entry.value)
    if not isinstance(entry, FlatTensor):
        return ContainerInput(entry.position, entry.container, entry.info)
    source = entry.source
    empty = ShardsInput(entry.position, source.dtype, source.shape, ())
    if id(source.tensor) in standing_in:
        return empty
    if source.tensor.is_meta or is_distributed(source.tensor):
        raise Incompatible(
            f"{what}: it lies in what torch takes for one object, a tuple say, where only whole tensors can be kept",
            name=what,
        )
    data = bytearray(source.size_bytes)
    source.copy_into(memoryview(data))
    return empty._replace(boxes=(BoxInput(whole(source.shape), memoryview(data)),))
