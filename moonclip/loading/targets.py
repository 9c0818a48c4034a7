"""Tensors as targets of a load: whole ones, shards of DTensors, and those on the meta device.

A meta tensor says what is wanted and where, and has no memory. It gets some once everything was compared, so that a
load that is refused leaves a model as it was. What is not loaded stays on the meta device, where using it fails: nobody
computes with what was never set.
"""

import logging
from collections.abc import Iterable, Mapping
from typing import Any, NamedTuple

import torch

from store.errors import Incompatible

from ..sharding.layouts import Part
from ..sharding.placed import Placed
from ..state.composites import is_distributed
from ..state.refusals import Refused

_log = logging.getLogger("moonclip")


class Held(NamedTuple):
    """This process's own memory of a target.

    Attributes:
        tensor: plain, detached; shares the target's memory.
        parts: boxes of the whole tensor and where each lies in ``tensor``; ``None`` if it is all of it.
    """

    tensor: torch.Tensor
    parts: tuple[Part, ...] | None = None


def held(tensor: torch.Tensor) -> Held:
    """What this process has of a target. Communicates with nobody.

    Raises:
        Refused: a DTensor whose placements are not known here, or do not say what it holds.
    """
    if isinstance(tensor, Placed):
        return Held(tensor.local, tensor.sharding.parts)
    if not is_distributed(tensor):
        return Held(tensor)
    from ..sharding.dtensors import shards_of  # loads torch.distributed.tensor, as whoever made this one has

    shards = shards_of(tensor)
    return Held(shards.local, shards.parts)


def held_bytes(tensor: torch.Tensor) -> int:
    """How many bytes of a target this process has."""
    if not is_distributed(tensor):
        return tensor.nbytes
    parts = held(tensor).parts or ()
    return sum(part.box.volume for part in parts) * tensor.dtype.itemsize


def target_state(module: torch.nn.Module) -> Any:
    """A module's state dict; the parameters and buffers themselves where there are such as lack memory or are spread.

    Otherwise torch makes new tensors of them, of which nobody can tell whose they are.

    Raises:
        Refused: one on the meta device that is neither a parameter nor a buffer.
    """
    own = {id(tensor): tensor for tensor in (*module.parameters(), *module.buffers())}
    if not any(tensor.is_meta or is_distributed(tensor) for tensor in own.values()):
        return module.state_dict()
    state = module.state_dict(keep_vars=True)
    for name, tensor in state.items():
        if isinstance(tensor, torch.Tensor) and tensor.is_meta and id(tensor) not in own:
            raise Refused(Incompatible, f"{name} is on the meta device, and no parameter or buffer of the module")
    return state


def like(parameter: torch.Tensor, dtype: torch.dtype, shape: tuple[int, ...]) -> torch.Tensor:
    """A target on the meta device beside a parameter: what an optimizer would make for it.

    Args:
        parameter: a DTensor.
        dtype: of the new one.
        shape: global shape. One of the parameter's own lies as the parameter does, any other is the same on each rank.
    """
    from torch.distributed.tensor import DTensor, Replicate

    assert isinstance(parameter, DTensor)
    mesh, placements = parameter.device_mesh, parameter.placements
    if shape == tuple(parameter.shape):
        with torch.no_grad():
            sizes = tuple(parameter.to_local().shape)
    else:
        placements, sizes = (Replicate(),) * mesh.ndim, shape
    local = torch.empty(sizes, dtype=dtype, device="meta")
    strides = torch.empty(shape, dtype=dtype, device="meta").stride()
    return DTensor.from_local(local, mesh, placements, run_check=False, shape=torch.Size(shape), stride=strides)


def with_memory(tensor: torch.Tensor, device: torch.device | None = None) -> torch.Tensor:
    """A tensor like one on the meta device, with memory of unknown content.

    Args:
        tensor: on the meta device.
        device: where plain tensors go; torch's default device (``with torch.device("cuda"):``) if ``None``. A
            DTensor goes where its mesh is.
    """
    if not is_distributed(tensor):
        return torch.empty(tensor.shape, dtype=tensor.dtype, device=device or _default_device())
    from torch.distributed.tensor import DTensor

    assert isinstance(tensor, DTensor)
    with torch.no_grad():
        local = torch.empty(tensor.to_local().shape, dtype=tensor.dtype, device=tensor.device_mesh.device_type)
    shape, strides = tensor.shape, tensor.stride()
    return DTensor.from_local(
        local, tensor.device_mesh, tensor.placements, run_check=False, shape=shape, stride=strides
    )


def materialize(module: torch.nn.Module, wanted: Iterable[torch.Tensor]) -> Mapping[int, torch.Tensor]:
    """Give memory to some of a module's parameters and buffers; what shared one keeps sharing one.

    Done by the module's own ``_apply``, as ``to_empty`` does it: FSDP keeps track of its parameters that way.

    Args:
        module: the module.
        wanted: those of its parameters and buffers, on the meta device, that get memory.

    Returns:
        The parameter or buffer that stands in the place of each, by the ``id`` of what was there.
    """
    asked = {id(tensor): tensor for tensor in wanted}
    places: list[tuple[int, dict[str, Any], str]] = [
        (id(tensor), tensors, name)
        for part in module.modules()
        for tensors in (part._parameters, part._buffers)  # noqa: SLF001 - named_parameters names shared ones once
        for name, tensor in tensors.items()
        if id(tensor) in asked
    ]
    device = _mesh_device(module)
    memory: dict[int, torch.Tensor] = {}

    def made(tensor: torch.Tensor) -> torch.Tensor:
        if id(tensor) not in asked:
            return tensor
        if id(tensor) not in memory:
            memory[id(tensor)] = with_memory(tensor, device)
        return memory[id(tensor)]

    apply: Any = module._apply  # noqa: SLF001 - what to_empty calls
    apply(made)
    found: dict[int, torch.Tensor] = {}
    for before, tensors, name in places:
        now = found.setdefault(before, tensors[name])
        if tensors[name] is not now:
            tensors[name] = now
    _tell_of_rest(module)
    return found


def _tell_of_rest(module: torch.nn.Module) -> None:
    named = (*module.named_parameters(), *module.named_buffers())
    names = [name for name, tensor in named if tensor.is_meta]
    if names:
        _log.warning("%d tensors were not loaded and stay on the meta device: %s", len(names), ", ".join(names))


def _default_device() -> torch.device:
    found = torch.get_default_device()
    return torch.device("cpu") if found.type == "meta" else found


def _mesh_device(module: torch.nn.Module) -> torch.device | None:
    """The kind of device that a module's DTensors are on, so that what is not sharded goes there, too."""
    spread = (parameter for parameter in module.parameters() if is_distributed(parameter))
    return next((torch.device(parameter.device_mesh.device_type) for parameter in spread), None)  # type: ignore[attr-defined]
