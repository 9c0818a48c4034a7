"""What tensors are divided by that are to be stored as floats of one byte.

That is found in a pass of its own, over all threads: no chunk can be cast before the largest number of its whole tensor
is known.
"""

from collections.abc import Mapping, Sequence
from math import prod

from ..codec import scale_for
from ..errors import Incompatible
from ..format.casts import SCALED, has_row_scales, is_narrower
from ..format.dtypes import dtype
from ..parallel import Threads
from .inputs import ItemInput, TensorInput
from .phases import Laps, Phases

Scales = Mapping[tuple[str, str], bytes | None]
"""(item name, entry name) → the scale, as an entry has it; ``None`` for a tensor that cannot be cast."""


def measured(items: Sequence[ItemInput], threads: Threads, phases: Phases) -> Scales:
    """The scales of all tensors that need one.

    Raises:
        Incompatible: a tensor is to be cast to something that is no narrower float.

    Cost: reads these tensors once.
    """
    wanted: list[tuple[str, str, TensorInput]] = []
    for item in items:
        for name, given in item.entries.items():
            if isinstance(given, TensorInput) and given.stored is not None:
                require_narrower(item.name, name, given.dtype, given.stored)
                if given.stored in SCALED and _is_whole(given):
                    wanted.append((item.name, name, given))
    found: dict[tuple[str, str], bytes | None] = {}

    def measure(one: tuple[str, str, TensorInput]) -> None:
        item, name, given = one
        laps = Laps()
        found[item, name] = _scale(given)
        laps.end("scale")
        phases.add(laps.seconds)

    if wanted:
        threads.run(measure, wanted)
    return found


def require_narrower(item: str, name: str, dtype_name: str, stored: str) -> None:
    """Check that a tensor can be cast.

    Raises:
        Incompatible: what it is to be stored as is no narrower float.
    """
    if not is_narrower(dtype_name, stored):
        raise Incompatible(f"{item}::{name}: {dtype_name} cannot be stored as {stored!r}", item=item, name=name)


def _scale(given: TensorInput) -> bytes | None:
    assert isinstance(given.data, memoryview)
    assert given.stored is not None
    columns = prod(given.shape[1:]) if given.by_row and has_row_scales(given.shape) else None
    return scale_for(given.data, given.dtype, given.stored, columns)


def _is_whole(given: TensorInput) -> bool:
    """Whether there are as many bytes as the shape takes; else the draft says so."""
    return len(given.data) == prod(given.shape) * dtype(given.dtype).item_bytes
