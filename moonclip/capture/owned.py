"""Which tensors of a state only an optimizer's step alters: they may be copied while training goes on.

Those are the parameters of modules and the state of optimizers that were passed themselves. Anything else — buffers,
plain mappings, arrays — may be written at any moment, and is copied before ``save`` returns.
"""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any, Final

import torch

from ..state.composites import is_distributed
from ..state.tensors import version_of

Owned = Mapping[int, torch.Tensor]
"""Address of the first element → the tensor that its owner holds, whose version counter in-place operations raise.
Of a DTensor it is the address of what this process has of it."""

_PLAIN: Final = frozenset({torch.Tensor, torch.nn.Parameter})


def owned(items: Iterable[Any]) -> Owned:
    """Parameters and optimizer state among items, by address: state dicts hold detached tensors, not the same objects.

    Cost: about 0.5 µs a tensor.
    """
    return by_address(tensor for item in items for tensor in _tensors(item))


def by_address(tensors: Iterable[Any]) -> Owned:
    """Those of some tensors whose counters can be read."""
    found: dict[int, torch.Tensor] = {}
    for tensor in tensors:
        memory = tensor if _is_plain(tensor) else _local(tensor)
        if memory is not None:
            found[memory.data_ptr()] = tensor
    return found


def owner_of(tensor: torch.Tensor, known: Owned) -> torch.Tensor | None:
    """What its owner holds of a tensor, ``None`` if nobody among ``known`` owns it all.

    A tensor may begin where a parameter does and go on beyond it, as flat buffers do: that is nobody's.
    """
    owner = known.get(tensor.data_ptr()) if tensor.numel() else None
    memory = owner if owner is None or not is_distributed(owner) else _local(owner)
    if memory is None or (tensor.dtype, tensor.shape, tensor.stride()) != (memory.dtype, memory.shape, memory.stride()):
        return None
    return owner


def counted(owner: torch.Tensor) -> int:
    """A number that operations in place raise. A DTensor has a counter, and what this process has of it another."""
    local = _local(owner) if is_distributed(owner) else None
    return version_of(owner) if local is None else version_of(owner) + version_of(local)


def _tensors(item: Any) -> Iterator[Any]:
    if isinstance(item, torch.nn.Module):
        yield from item.parameters()
    elif isinstance(item, torch.optim.Optimizer):
        for state in item.state.values():
            yield from _values(state)


def _values(state: Any) -> Iterator[Any]:
    """Tensors of one parameter's state; LBFGS keeps lists of them."""
    for value in state.values() if isinstance(state, Mapping) else ():
        if isinstance(value, list | tuple):
            yield from value
        else:
            yield value


def _local(tensor: Any) -> torch.Tensor | None:
    """What this process has of a DTensor; ``None`` for anything else, and if that is nothing plain."""
    if not isinstance(tensor, torch.Tensor) or not is_distributed(tensor):
        return None
    with torch.no_grad():
        local: torch.Tensor = tensor.to_local()  # type: ignore[attr-defined]
    return local if _is_plain(local) else None


def _is_plain(tensor: Any) -> bool:
    """Subclasses are taken apart, and what they are made of has counters of its own; inference tensors have none."""
    return type(tensor) in _PLAIN and tensor.layout is torch.strided and not tensor.is_inference()
