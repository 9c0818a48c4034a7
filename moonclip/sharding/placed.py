"""Tensors of which a person says what they hold of a global one.

On its way such a tensor stands in for the global one, as a DTensor does, so that all that reads layouts off tensors
reads them off these.
"""

from collections.abc import Mapping
from typing import Any, cast

import torch

from store.boxes import Box, require_tiling, whole
from store.errors import Incompatible

from ..loading.stored import ancestors
from ..specs import Resharder, Sharding
from ..state.containers import OPEN
from ..state.entries import FlatContainer, FlatState, FlatTensor
from ..state.refusals import Refused, located
from ..state.tensors import TensorSource, lies_in_c_order


class Placed(torch.Tensor):
    """Has the shape of the global tensor, and of its elements what this rank holds. Computes nothing.

    Attributes:
        local: the rank's own tensor, detached.
        sharding: what of the global one lies where in it.
    """

    local: torch.Tensor
    sharding: Sharding

    @classmethod
    def of(cls, tensor: torch.Tensor, sharding: Sharding) -> "Placed":
        """One over a rank's tensor, whose memory it shares."""
        own = tensor.detach()
        make: Any = torch.Tensor._make_wrapper_subclass  # noqa: SLF001 - torch's own name for what makes such classes
        placed = cast("Placed", make(cls, sharding.shape, dtype=own.dtype, device=own.device))
        placed.local, placed.sharding = own, sharding
        return placed

    def to_local(self) -> torch.Tensor:
        """The rank's own tensor."""
        return self.local

    @classmethod
    def __torch_dispatch__(cls, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:  # type: ignore[override] # torch's stub leaves func out
        raise NotImplementedError(f"{func} of a tensor that only says where its elements belong")


def is_placed(tensor: object) -> bool:
    """Whether a person said what a tensor holds."""
    return type(tensor) is Placed


def place(state: FlatState, resharder: Resharder, item: str) -> None:
    """Put a stand-in into each tensor's place of which a resharder says that it is part of a global one.

    Args:
        state: the flattened item; altered.
        resharder: asked for each tensor.
        item: its name, for errors.

    Raises:
        Incompatible: what it answers is no sharding, or none that fits the tensor.
        Exception: whatever the resharder raises.
    """
    for name, source in _sources(state).items():
        if type(source.tensor) not in {torch.Tensor, torch.nn.Parameter}:
            continue  # a DTensor, which says so itself
        with located(f"{item}::{name}"):
            answer = _answered(resharder, name, source.tensor)
        if answer is not None:
            placed = Placed.of(source.tensor, answer)
            source.tensor, source.shape = placed, answer.shape
            source.size_bytes, source.address = placed.nbytes, 0


def assemble(state: FlatState, resharder: Resharder, item: str) -> None:
    """Put global tensors into the place of those that hold all of one, in whatever order.

    Args:
        state: the flattened item; altered.
        resharder: asked for each tensor.
        item: its name, for errors.

    Raises:
        Incompatible: as :func:`place` does; or a tensor holds only a part, which one process cannot save.
        Exception: whatever the resharder raises.

    Cost: a copy of each tensor that does not lie as the global one does.
    """
    place(state, resharder, item)
    for name, source in _sources(state).items():
        if isinstance(source.tensor, Placed):
            source.tensor = _assembled(f"{item}::{name}", source.tensor)
            source.address = source.tensor.data_ptr() if lies_in_c_order(source.tensor) else 0


def _sources(state: FlatState) -> Mapping[str, TensorSource]:
    """Each once, under its first name; without those that make up an array, a sparse tensor and the like together.

    A part of such an object is none of the person's tensors, and a target of that kind takes it whole.
    """
    closed = {
        name
        for name, entry in state.entries.items()
        if isinstance(entry, FlatContainer) and entry.container not in OPEN
    }
    named: dict[int, tuple[str, TensorSource]] = {}
    for name, entry in state.entries.items():
        if isinstance(entry, FlatTensor) and closed.isdisjoint(ancestors(name)):
            named.setdefault(id(entry.source), (name, entry.source))
    return dict(named.values())


def _answered(resharder: Resharder, name: str, tensor: torch.Tensor) -> Sharding | None:
    """What a resharder says of a tensor, which fits it."""
    try:
        return _fitting(resharder(name, tensor), tensor)
    except Incompatible as error:  # also what the making of a Sharding ended with, so that it is told of which tensor
        raise Refused(Incompatible, str(error)) from error


def _fitting(answer: object, tensor: torch.Tensor) -> Sharding | None:
    if answer is None:
        return None
    if not isinstance(answer, Sharding):
        raise Incompatible(f"its resharder answers with a {type(answer).__name__}; give a Sharding or None")
    if tensor.is_meta:
        raise Incompatible("a tensor on the meta device holds nothing; materialize it first")
    answer.require_within(tuple(tensor.shape))
    return answer


def _assembled(name: str, placed: Placed) -> torch.Tensor:
    local, sharding = placed.local, placed.sharding
    require_tiling(name, sharding.shape, [part.box for part in sharding.parts])
    if [part.box for part in sharding.parts] == [whole(sharding.shape)]:
        return local[_index(sharding.parts[0].local, sharding.shape)]
    made = torch.empty(sharding.shape, dtype=local.dtype, device=local.device)
    for box, start in sharding.parts:
        made[_index(*box)] = local[_index(start, box.sizes)]
    return made


def _index(start: tuple[int, ...], sizes: tuple[int, ...]) -> tuple[slice, ...]:
    return tuple(slice(low, high) for low, high in zip(start, Box(start, sizes).stops, strict=True))
