"""Items of which each rank has its own: random number generators, data loaders.

They are kept under one name, a subtree for each rank: ``rank 0``, ``rank 1``, … Loading gives each rank its own if as
many ranks load as saved. If not, generators of all ranks go on from rank 0's, and anything else is refused, unless
``strict=False`` says that rank 0's will do.
"""

import re
from collections.abc import Collection, Mapping
from typing import Any, Final

from store.errors import Incompatible

from ..state.entries import FlatContainer, FlatEntry, FlatState, FlatTensor, FlatValue
from ..state.items import GENERATORS, Stateful, is_stateful
from ..state.names import ROOT, join, segment

_RANK: Final = re.compile(r"rank ([0-9]{1,9})")


def key_of_rank(rank: int) -> str:
    """Key of a rank's subtree."""
    return f"rank {rank}"


def under_rank(state: FlatState, rank: int) -> FlatState:
    """A rank's own state, as part of an item that has one of each rank."""
    top = segment(key_of_rank(rank))
    entries: dict[str, FlatEntry] = {ROOT: FlatContainer(0, "dict")}
    for name, entry in state.entries.items():
        position = rank if name == ROOT else entry.position
        entries[join(top, name) if name else top] = _at(entry, position)
    return FlatState(entries, tuple(tuple(join(top, name) if name else top for name in tie) for tie in state.ties))


def _at(entry: FlatEntry, position: int) -> FlatEntry:
    if isinstance(entry, FlatTensor):
        return FlatTensor(position, entry.source)
    if isinstance(entry, FlatValue):
        return FlatValue(position, entry.value)
    return FlatContainer(position, entry.container, entry.info)


class OwnState:
    """A target that takes what its rank saved.

    Args:
        item: its name.
        target: takes the state.
        rank: which rank this is.
        world_size: how many load.
        strict: whether another number of ranks is refused, but for generators.
    """

    def __init__(self, item: str, target: Stateful, rank: int, world_size: int, *, strict: bool) -> None:
        self._item = item
        self._target = target
        self._rank = rank
        self._world_size = world_size
        self._strict = strict and item != GENERATORS

    def state_dict(self) -> Any:
        """The target's state."""
        return self._target.state_dict()

    def load_state_dict(self, state: Any, /) -> None:
        """Take this rank's.

        Raises:
            Incompatible: another number of ranks saved it, and it is no state of generators; or the rank whose it would
                be saved none.
        """
        if not is_per_rank(state):
            self._target.load_state_dict(state)
            return
        saved_by = _ranks_of(state)
        if saved_by != self._world_size and self._strict:
            raise Incompatible(
                f"{self._item}: {saved_by} ranks saved one each, and {self._world_size} load it; with strict=False"
                " all of them take rank 0's",
                item=self._item,
            )
        rank = self._rank if saved_by == self._world_size else 0
        own = state.get(key_of_rank(rank))
        if own is None:
            raise Incompatible(
                f"{self._item}: rank {rank} saved none; leave it out on rank {self._rank}", item=self._item
            )
        self._target.load_state_dict(own)


def is_per_rank(state: Any) -> bool:
    """Whether this is what ranks saved of their own."""
    return (
        isinstance(state, Mapping)
        and len(state) > 0
        and all(isinstance(key, str) and _RANK.fullmatch(key) for key in state)
    )


def _ranks_of(state: Mapping[str, Any]) -> int:
    """How many ranks there were, as far as can be told: some may have had none, so it is not how many saved one."""
    return 1 + max(int(found[1]) for found in map(_RANK.fullmatch, state) if found is not None)


def own_targets(
    targets: Mapping[str, Any], per_rank: Collection[str], rank: int, world_size: int, *, strict: bool
) -> dict[str, Any]:
    """Targets of which those of each rank's own take their rank's. Templates among them are left as they are."""
    return {
        item: OwnState(item, target, rank, world_size, strict=strict)
        if item in per_rank and is_stateful(target)
        else target
        for item, target in targets.items()
    }
