"""How many ranks save together, and which of them this is. A pure function of what is said and what surrounds it.

A launcher that started several processes is no proof that they share one store: each might keep its own. To guess wrong
would either lose most of a model or have ranks wait for each other for ever. So where there are several and nothing is
said, that is an error.
"""

import sys
from collections.abc import Mapping
from typing import Literal, NamedTuple

from store.errors import Incompatible

Stated = int | Literal["auto"] | None
"""A number, ``"auto"`` to take it from torchrun or torch.distributed, or nothing."""


class Topology(NamedTuple):
    """Who saves together.

    Attributes:
        world_size: number of ranks.
        rank: which of them this process is, from 0.
    """

    world_size: int
    rank: int


class _Launcher(NamedTuple):
    """Variables in which a launcher tells how many processes it started, and which of them this is."""

    name: str
    world_size: str
    rank: str


_TORCHRUN = _Launcher("torchrun", "WORLD_SIZE", "RANK")
_LAUNCHERS = (
    _TORCHRUN,
    _Launcher("Slurm", "SLURM_NTASKS", "SLURM_PROCID"),
    _Launcher("Open MPI", "OMPI_COMM_WORLD_SIZE", "OMPI_COMM_WORLD_RANK"),
)


def topology(
    world_size: Stated, rank: Stated, environment: Mapping[str, str], group: Topology | None = None
) -> Topology:
    """Who saves together, from what was said.

    Args:
        world_size: number of ranks; 1 for a store of this process alone, whatever launched it.
        rank: which of them this is. May be left out beside 1 and beside ``"auto"``.
        environment: the process's environment variables.
        group: what :func:`default_group` found.

    Raises:
        Incompatible: nothing was said where there are several processes, only half of it was, ``"auto"`` has nothing to
            go by, or the numbers do not fit each other.
    """
    if world_size is None and rank is None:
        _require_alone(environment, group)
        return Topology(1, 0)
    if world_size == 1 and rank in {None, 0, "auto"}:
        return Topology(1, 0)
    if world_size == "auto" and rank is None:
        rank = "auto"
    if world_size is None or rank is None:
        missing = "world_size" if world_size is None else "rank"
        raise Incompatible(f"world_size={world_size!r} and rank={rank!r}: {missing} has to be given too")
    if world_size != "auto" and rank != "auto":
        return _checked(world_size, rank)
    found = _found(environment, group)
    if (world_size, rank) not in {("auto", "auto"), ("auto", found.rank), (found.world_size, "auto")}:
        said = f"world_size={world_size!r} and rank={rank!r}"
        raise Incompatible(f"{said} do not fit: this is rank {found.rank} of {found.world_size}")
    return found


def default_group() -> Topology | None:
    """What torch.distributed says, if it was initialised. Loads nothing."""
    distributed = sys.modules.get("torch.distributed")
    if distributed is None or not distributed.is_available() or not distributed.is_initialized():
        return None
    return Topology(distributed.get_world_size(), distributed.get_rank())


def _require_alone(environment: Mapping[str, str], group: Topology | None) -> None:
    several = _several(environment, group)
    if several is None:
        return
    name, found = several
    raise Incompatible(
        f"this is rank {found.rank} of {found.world_size} processes ({name}), and it was not said whether they save"
        ' together. Give world_size="auto" to save one checkpoint of all of them, world_size and rank as numbers if it'
        " is of others, or world_size=1 for a store that is this process's own",
        world_size=found.world_size,
        rank=found.rank,
    )


def _found(environment: Mapping[str, str], group: Topology | None) -> Topology:
    """What ``"auto"`` stands for. Only who can be talked with counts, so other launchers are not asked."""
    found = group or _told_by(_TORCHRUN, environment)
    if found is not None:
        return found
    several = _several(environment, group)
    if several is None:
        return Topology(1, 0)
    name, told = several
    raise Incompatible(
        f'"auto" goes by torchrun or torch.distributed, and this is rank {told.rank} of {told.world_size} processes'
        f" of {name}: initialise torch.distributed first, or give world_size and rank as numbers",
        world_size=told.world_size,
        rank=told.rank,
    )


def _several(environment: Mapping[str, str], group: Topology | None) -> tuple[str, Topology] | None:
    """Who says that there are other processes, and what it says of them."""
    told = [("torch.distributed", group), *((each.name, _told_by(each, environment)) for each in _LAUNCHERS)]
    return next(((name, found) for name, found in told if found is not None and found.world_size > 1), None)


def _told_by(launcher: _Launcher, environment: Mapping[str, str]) -> Topology | None:
    """What a launcher says, or ``None`` if it is not there."""
    world_size, rank = environment.get(launcher.world_size, ""), environment.get(launcher.rank, "")
    if not world_size:
        return None
    if world_size == "1":
        return Topology(1, 0)
    if not (world_size.isdecimal() and rank.isdecimal()):
        said = f"{launcher.world_size}={world_size!r} and {launcher.rank}={rank!r}"
        raise Incompatible(f"{launcher.name} says {said}, which are no numbers; give world_size and rank")
    return _checked(int(world_size), int(rank))


def _checked(world_size: int, rank: int) -> Topology:
    if not 0 <= rank < world_size:
        raise Incompatible(f"rank {rank} of {world_size}: ranks are numbered from 0 to one less than there are")
    return Topology(world_size, rank)
