"""The plan for loading one item: which leaves are read, and into which memory."""

from collections.abc import Iterator
from typing import Any

import torch

from store.entries import Entry, TensorEntry, ValueEntry

from .entries import FlatContainer, LoadedEntry, LoadedTensor, LoadedValue
from .filling import SKIPPED
from .matching import Match
from .names import METADATA, last_segment
from .policy import Policy
from .reading import Read, empty_for
from .state import unflatten
from .stored import StoredItem, ancestors
from .values import from_plain


class Plan:
    """What is read of an item. Made before anything is written, then asked for its reads, then for the result.

    Args:
        stored: the item.
        match: how it fits its target; empty if there is none.
        names: names to load, or ``None`` for all.
        has_template: whether the target's own containers are filled, so that a tensor that was written in place is
            of no further interest.
        policy: what decoding may do.

    Raises:
        Incompatible: a tensor of a dtype that this torch lacks, or a value of a class that is not what it was.
        Unsafe: a value that the policy does not allow.
    """

    def __init__(
        self, stored: StoredItem, match: Match, names: set[str] | None, policy: Policy, *, has_template: bool = False
    ) -> None:
        self.stored = stored
        self.match = match
        self._names = names
        self._policy = policy
        self._has_template = has_template
        self._skipped = {name for name in stored.entries if self._is_skipped(name)}
        self._kept = {name: entry for name, entry in stored.entries.items() if self._is_kept(name)}
        self._tensors: dict[str, torch.Tensor] = {**match.placements, **match.aliases}
        self._allocate()
        self._values = {  # decoded once, and now: what is refused is refused before anything is written
            name: from_plain(stored.values[name], policy, _place(stored.name, name))
            for name in self._kept
            if name in stored.values
        }

    @property
    def passed_over(self) -> list[str]:
        """Names that are on one side only."""
        return [*self.match.missing, *self.match.unexpected]

    def reads(self) -> Iterator[Read]:
        """Every memory that has to be filled, once."""
        filled: set[int] = set()
        for name, entry in self._kept.items():
            tensor = self._tensors.get(name)
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
        first_of = {name: group[0] for group in self.stored.ties for name in group}
        shared: dict[str, torch.Tensor] = {}
        for name, entry in self._kept.items():
            if isinstance(entry, TensorEntry) and name not in self._skipped and name not in self._tensors:
                first = first_of.get(name, name)
                if first not in shared:
                    shared[first] = empty_for(entry)
                self._tensors[name] = shared[first]

    def _loaded(self, name: str, entry: Entry) -> LoadedEntry:
        if name in self._skipped or (self._has_template and name in self.match.placements | self.match.aliases):
            return LoadedTensor(entry.position, SKIPPED)
        if isinstance(entry, TensorEntry):
            return LoadedTensor(entry.position, self._tensors[name])
        if isinstance(entry, ValueEntry):
            return LoadedValue(entry.position, self._values[name])
        return FlatContainer(entry.position, entry.container, entry.info)


def _place(item: str, name: str) -> str:
    """Where a value is, as errors say it."""
    return f"{item}: {name!r}" if name else item
