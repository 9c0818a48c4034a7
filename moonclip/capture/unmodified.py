"""Frozen parameters that are what they were in the last save: they need not be copied again.

For parameters that require no gradient, of modules that were passed, and that no optimizer that was passed owns. One
counts as unmodified if it is the same object, in the same memory, with the same version counter, and if the words
sampled from it are the same. What raises no counter and meets no sampled word goes unseen: writes through ``.data`` or
NumPy, fused and custom kernels. So whoever does such things to frozen parameters must not ask for this.
"""

import weakref
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from store.limits import HELD_COPY_BYTES

from ..state.entries import FlatState, FlatTensor
from ..state.tensors import TensorSource, words_of
from .owned import Owned, counted, owned, owner_of
from .witness import sampled

Name = tuple[str, str]
"""Item and entry."""


class Mark(NamedTuple):
    """What a parameter was like, as far as can be told without reading it all."""

    owner: "weakref.ref[torch.Tensor]"
    address: int
    offset: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]
    version: int
    words: bytes

    def is_of_same(self, other: "Mark | None") -> bool:
        """Whether another mark is of the same parameter, unmodified."""
        # Not ==, which would compare what the references refer to.
        return other is not None and self.owner() is other.owner() is not None and self[1:] == other[1:]


def marks(states: Mapping[str, FlatState], items: Iterable[Any]) -> dict[Name, tuple[TensorSource, Mark]]:
    """What every frozen parameter is like now. Small ones are left out: copying them takes no longer.

    Cost: about 6 µs a tensor; waits for the queue of a device that some lie on.
    """
    frozen = _frozen(list(items))
    found: dict[Name, tuple[TensorSource, Mark]] = {}
    for item, state in states.items() if frozen else ():
        for name, entry in state.entries.items():
            if type(entry) is not FlatTensor or entry.source.size_bytes <= HELD_COPY_BYTES:
                continue
            owner = owner_of(entry.source.whole, frozen)
            if owner is not None:
                found[item, name] = (entry.source, mark(entry.source, owner))
    return found


def mark(source: TensorSource, owner: torch.Tensor) -> Mark:
    """What one is like now."""
    tensor = source.tensor
    words = sampled(words_of(tensor)).cpu().numpy().tobytes()
    return Mark(
        owner=weakref.ref(owner),
        address=tensor.untyped_storage().data_ptr(),
        offset=int(tensor.storage_offset()),
        shape=source.shape,
        strides=tensor.stride(),
        version=counted(owner),
        words=words,
    )


def unmodified(now: Mapping[Name, tuple[TensorSource, Mark]], last: Mapping[Name, Mark]) -> dict[TensorSource, Mark]:
    """Tensors all of whose names stand for what they stood for in the last save."""
    modified = {source for name, (source, mark) in now.items() if not mark.is_of_same(last.get(name))}
    return {source: mark for source, mark in now.values() if source not in modified}


def _frozen(items: list[Any]) -> Owned:
    stepped = {
        id(parameter)
        for item in items
        if isinstance(item, torch.optim.Optimizer)
        for group in item.param_groups
        for parameter in group["params"]
    }
    modules = [item for item in items if isinstance(item, torch.nn.Module)]
    return {
        address: tensor
        for address, tensor in owned(modules).items()
        if not tensor.requires_grad and id(tensor) not in stepped
    }
