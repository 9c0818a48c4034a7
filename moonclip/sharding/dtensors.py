"""What a tensor of torch says of where it lies, in the words of ``layouts``."""

from typing import NamedTuple

import torch
from torch.distributed.tensor import DTensor, Partial, Replicate, Shard
from torch.distributed.tensor.placement_types import Placement, _StridedShard

from store.boxes import whole
from store.errors import Incompatible

from ..state.refusals import Refused
from .layouts import Layout, Part, Split, local_shape, parts_of
from .placed import Placed


class Shards(NamedTuple):
    """What this rank holds of a tensor.

    Attributes:
        local: the rank's own tensor, which shares the DTensor's memory.
        shape: global shape.
        parts: boxes of the global tensor, and where each lies in ``local``; none on a rank outside the mesh.
    """

    local: torch.Tensor
    shape: tuple[int, ...]
    parts: tuple[Part, ...]


def shards_of(tensor: torch.Tensor) -> Shards:
    """What this rank holds of a tensor: all of it, unless it is a DTensor. Communicates with nobody.

    Raises:
        Refused: sums that are still to be made over ranks (``Partial``), a placement that is not known here, or a
            local tensor of other sizes than the placements say.
    """
    shape = tuple(tensor.shape)
    if isinstance(tensor, Placed):
        return Shards(tensor.local, shape, tensor.sharding.parts)
    if not isinstance(tensor, DTensor):
        return Shards(tensor.detach(), shape, (Part(whole(shape), (0,) * len(shape)),) if tensor.numel() else ())
    coordinate = tensor.device_mesh.get_coordinate()
    with torch.no_grad():
        local = tensor.to_local().detach()
    layout = layout_of(tensor)
    if coordinate is None:
        return Shards(local, shape, ())
    try:
        parts, expected = parts_of(layout, tuple(coordinate)), local_shape(layout, tuple(coordinate))
    except Incompatible as error:
        raise Refused(Incompatible, str(error)) from error
    if tuple(local.shape) != expected:
        raise Refused(
            Incompatible,
            f"this rank holds {list(local.shape)} of a tensor of shape {list(shape)}, of which it should hold"
            f" {list(expected)} by its placements {_told(tensor.placements)}",
        )
    return Shards(local, shape, parts)


def layout_of(tensor: DTensor) -> Layout:
    """How a DTensor lies on its mesh.

    Raises:
        Refused: as :func:`shards_of` does.
    """
    return Layout(tuple(tensor.shape), tuple(tensor.device_mesh.shape), tuple(map(_split, tensor.placements)))


def _split(placement: Placement) -> Split | None:
    kind = type(placement)
    if kind is _StridedShard:
        return Split(placement.dim, int(placement.split_factor))  # type: ignore[attr-defined]
    if kind is Shard:
        return Split(placement.dim)  # type: ignore[attr-defined]
    if kind is Replicate:
        return None
    if isinstance(placement, Partial):
        raise Refused(Incompatible, f"{placement!r} is yet to be summed over ranks; redistribute it to Replicate()")
    raise Refused(Incompatible, f"no way is known to lay a tensor out by {placement!r}")


def _told(placements: tuple[Placement, ...]) -> str:
    return ", ".join(map(repr, placements))
