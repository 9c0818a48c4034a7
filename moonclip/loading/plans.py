"""The plan for loading one item: which leaves are read, and into which memory."""

from collections.abc import Callable, Iterator
from typing import Any

import torch

from store.format.entries import Entry, TensorEntry, ValueEntry

from ..sharding.placed import is_placed
from ..state.entries import FlatContainer, LoadedEntry, LoadedTensor, LoadedValue
from ..state.flattening import unflatten
from ..state.names import METADATA, last_segment
from ..state.policy import Policy
from ..state.values import from_plain
from .filling import SKIPPED
from .matching import Match, is_closed
from .reading import Read, empty_for
from .stored import StoredItem, ancestors


class Plan:
    """What is read of an item. Made before anything is written, then asked for its reads, then for the result.

    Args:
        stored: the item.
        match: how it fits its target; empty if there is none.
        names: names to load, or ``None`` for all.
        has_template: whether the target's own containers are filled, so that a tensor that was written in place is
            of no further interest.
        policy: what decoding may do.
        lazy: makes what stands for a tensor that is not read, from its name and entry. Tensors that make up another
            object (an array, a sparse tensor) are read all the same. ``None`` to read all.

    Raises:
        Incompatible: a tensor of a dtype that this torch lacks, or a value of a class that is not what it was.
        Unsafe: a value that the policy does not allow.
    """

    def __init__(
        self,
        stored: StoredItem,
        match: Match,
        names: set[str] | None,
        policy: Policy,
        *,
        has_template: bool = False,
        lazy: Callable[[str, TensorEntry], object] | None = None,
    ) -> None:
        self.stored = stored
        self.match = match
        self._names = names
        self._policy = policy
        self._has_template = has_template
        self._skipped = {name for name in stored.entries if self._is_skipped(name)}
        self._kept = {name: entry for name, entry in stored.entries.items() if self._is_kept(name)}
        self._new: dict[str, torch.Tensor] = {}
        self._first_of = {name: group[0] for group in stored.ties for name in group}
        self._unread: dict[str, object] = {}
        if lazy is not None:
            self._unread = self._stand_ins(lazy)
        self._allocate()
        self._values = {  # decoded once, and now: what is refused is refused before anything is written
            name: from_plain(stored.values[name], policy, _place(stored.name, name))
            for name in self._kept
            if name in stored.values
        }

    @property
    def passed_over(self) -> list[str]:
        """Names that are on one side only."""
        return [*self.match.missing, *self.match.without_target]

    def reads(self) -> Iterator[Read]:
        """Every memory that has to be filled, once."""
        filled: set[int] = set()
        for name, entry in self._kept.items():
            tensor = self._tensor(name)
            if tensor is None or not isinstance(entry, TensorEntry):
                continue
            if name in self.match.aliases or id(tensor) in filled:
                continue
            if name not in self.match.placements:
                filled.add(id(tensor))
            yield Read(entry, tensor)

    def entries(self) -> dict[str, LoadedEntry]:
        """The item's entries, once the reads are done."""
        return {name: self._loaded(name, entry) for name, entry in self._kept.items()}

    def built(self) -> Any:
        """The item, once the reads are done."""
        return unflatten(self.entries(), policy=self._policy, item=self.stored.name)

    # --- which leaves -----------------------------------------------------------------------------------------------

    def _is_skipped(self, name: str) -> bool:
        """Whether an entry is passed over, with all that is below it."""
        if name in self.match.unexpected:
            return True
        return self._names is not None and name not in self._names and last_segment(name) != METADATA

    def _is_kept(self, name: str) -> bool:
        """Whether an entry has a place in the result. A skipped one has: its neighbours in a list keep theirs."""
        above = list(ancestors(name))
        if not self._skipped.isdisjoint(above):
            return False
        is_taken_whole = not self._has_template or not self.match.closed.isdisjoint(above)
        return not (is_taken_whole and name in self._skipped)

    # --- which memory -----------------------------------------------------------------------------------------------

    def _allocate(self) -> None:
        """New memory for what has none in the target. Names of one tensor share it."""
        shared: dict[str, torch.Tensor] = {}
        for name, entry in self._new_tensors():
            first = self._first_of.get(name, name)
            if first not in shared:
                shared[first] = empty_for(entry)
            self._new[name] = shared[first]

    def _stand_ins(self, lazy: Callable[[str, TensorEntry], object]) -> dict[str, object]:
        """What stands for tensors that are not read. Names of one tensor share it."""
        closed = {name for name, entry in self._kept.items() if is_closed(entry)}
        shared: dict[str, object] = {}
        unread: dict[str, object] = {}
        for name, entry in self._new_tensors():
            if closed.isdisjoint(ancestors(name)):
                first = self._first_of.get(name, name)
                if first not in shared:
                    shared[first] = lazy(first, entry)
                unread[name] = shared[first]
        return unread

    def _new_tensors(self) -> Iterator[tuple[str, TensorEntry]]:
        """Tensors that have no place in the target, nor a stand-in."""
        for name, entry in self._kept.items():
            known = name in self._skipped or name in self._unread or self._tensor(name) is not None
            if isinstance(entry, TensorEntry) and not known:
                yield name, entry

    def _tensor(self, name: str) -> torch.Tensor | None:
        """Where a tensor goes. Asked anew each time: a target on the meta device gets memory after the plan is made."""
        match = self.match
        return match.placements.get(name, match.aliases.get(name, self._new.get(name)))

    def _loaded(self, name: str, entry: Entry) -> LoadedEntry:
        if name in self._skipped:
            return LoadedTensor(entry.position, SKIPPED)
        if name in self._unread:
            return LoadedValue(entry.position, self._unread[name])
        if isinstance(entry, TensorEntry):
            return LoadedTensor(entry.position, self._loaded_tensor(name))
        if isinstance(entry, ValueEntry):
            return LoadedValue(entry.position, self._values[name])
        return FlatContainer(entry.position, entry.container, entry.info)

    def _loaded_tensor(self, name: str) -> torch.Tensor:
        tensor = self._tensor(name)
        assert tensor is not None
        is_in_place = name not in self._new and name not in self.match.made
        is_done = is_placed(tensor) or (self._has_template and is_in_place)
        return SKIPPED if is_done else tensor


def _place(item: str, name: str) -> str:
    """Where a value is, as errors say it."""
    return f"{item}: {name!r}" if name else item
