"""Comparing what is stored with what it is to be loaded into, before anything is written.

A target is a template: its tensors say which, of what shape and dtype, and where they go. ``None`` and an empty
container take whatever is stored in their place. A list of mere values is replaced whole, like any other value.
"""

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import Final

import torch

from store.format.entries import ContainerEntry, Entry, TensorEntry, ValueEntry
from store.format.values import Plain, Tagged

from ..state.composites import form
from ..state.containers import OPEN
from ..state.entries import FlatContainer, FlatEntry, FlatState, FlatTensor
from ..state.flattening import SEQUENCES
from ..state.names import METADATA, ROOT, join, last_segment, parent_of, segment
from ..state.refusals import Refused
from ..state.tensors import dtype_name, overlaps_itself, torch_dtype
from .stored import StoredItem, ancestors, full_name
from .targets import held, materialize, with_memory

_NUMBERS: Final = (bool, int, float, complex)


@dataclass(slots=True)
class Match:
    """How one item fits its target.

    Attributes:
        item: the item's name.
        placements: tensors to write into, by the name of the stored tensor.
        aliases: further names of tensors in ``placements``: memory that another name fills.
        missing: names the target has and the commit lacks.
        unexpected: names the commit has and the target lacks.
        mismatches: whatever does not fit, in words.
        closed: names of the target that stand for all that is below them.
        made: names whose tensor takes the place of the target's, which had no memory.
        module: the target, if it is a module.
        elsewhere: names among ``unexpected`` that other ranks take.
    """

    item: str
    placements: dict[str, torch.Tensor] = field(default_factory=dict)
    aliases: dict[str, torch.Tensor] = field(default_factory=dict)
    missing: list[str] = field(default_factory=list)
    unexpected: list[str] = field(default_factory=list)
    mismatches: list[str] = field(default_factory=list)
    closed: set[str] = field(default_factory=set)
    made: set[str] = field(default_factory=set)
    module: torch.nn.Module | None = None
    elsewhere: set[str] = field(default_factory=set)

    def problems(self, *, strict: bool) -> list[str]:
        """One line for each thing that stands in the way."""
        if not strict:
            return self.mismatches
        return [
            *(f"{full_name(self.item, name)}: missing in the commit" for name in self.missing),
            *(f"{full_name(self.item, name)}: in the commit, but not in the target" for name in self.without_target),
            *self.mismatches,
        ]

    @property
    def without_target(self) -> list[str]:
        """Names the commit has that nobody takes."""
        return [name for name in self.unexpected if name not in self.elsewhere]

    def mismatch(self, name: str, reason: str) -> None:
        """Note that an entry does not fit."""
        self.mismatches.append(f"{full_name(self.item, name)}: {reason}")

    def make_ready(self) -> None:
        """Give memory to targets on the meta device that are to be filled; called once everything was compared."""
        metas = [tensor for tensor in (*self.placements.values(), *self.aliases.values()) if tensor.is_meta]
        if not metas:
            return
        if self.module is not None:
            memory = materialize(self.module, metas)
        else:
            memory = {id(tensor): with_memory(tensor) for tensor in metas}
        for places in (self.placements, self.aliases):
            made = {name: memory[id(tensor)] for name, tensor in places.items() if id(tensor) in memory}
            places.update(made)
            self.made.update(made)


def match(
    stored: StoredItem, target: FlatState, *, strict: bool, names: set[str] | None = None, any_value: bool = False
) -> Match:
    """Compare an item with its target. Writes nothing.

    Args:
        stored: the item.
        target: the flattened target.
        strict: whether a tensor must have the target's very dtype; if not, one that can be cast to it will do.
        names: the only names that count, or ``None`` for all.
        any_value: whether the target's values say nothing of what may be stored in their place.
    """
    return _Matching(stored, target, strict=strict, names=names, any_value=any_value).run()


class _Matching:
    def __init__(
        self, stored: StoredItem, target: FlatState, *, strict: bool, names: set[str] | None, any_value: bool
    ) -> None:
        self._stored = stored
        self._target = target
        self._strict = strict
        self._names = names
        self._any_value = any_value
        self._match = Match(stored.name)
        self._is_closed_below: dict[str, bool] = {}

    def run(self) -> Match:
        for name, entry in self._target.entries.items():
            if self._counts(name) and not self._is_below_closed(name):
                self._compare(name, entry, self._stored.entries.get(name))
        self._match.unexpected += self._unexpected()
        self._merge_ties()
        return self._match

    def _counts(self, name: str) -> bool:
        return self._names is None or name in self._names

    def _is_below_closed(self, name: str) -> bool:
        """Whether a container around this stands for it. Siblings share the answer: containers come before children."""
        if name == ROOT:
            return False
        parent = parent_of(name)
        known = self._is_closed_below.get(parent)
        if known is None:
            known = self._is_closed_below[parent] = parent in self._match.closed or self._is_below_closed(parent)
        return known

    # --- the target's entries ---

    def _compare(self, name: str, entry: FlatEntry, stored: Entry | None) -> None:
        if last_segment(name) == METADATA:
            return
        if isinstance(entry, FlatContainer):
            self._compare_container(name, entry, stored)
        elif isinstance(entry, FlatTensor):
            self._compare_tensor(name, entry.source.tensor, stored)
        else:
            self._compare_value(name, entry.value, stored)

    def _compare_container(self, name: str, entry: FlatContainer, stored: Entry | None) -> None:
        is_open = entry.container in OPEN
        if is_open and (stored is None or isinstance(stored, ValueEntry) or _is_open_like(entry, stored)):
            return  # its children tell what is missing
        self._match.closed.add(name)
        if stored is None:
            self._match.missing.append(name)
        elif is_open or not isinstance(stored, ContainerEntry) or stored.container != entry.container:
            self._match.mismatch(name, f"{_kind(stored)} in the commit, a {entry.container} in the target")
        elif not (self._any_value and entry.container == "ndarray"):  # in a module's extra state: a value
            self._compare_composite(name, entry, stored)

    def _compare_composite(self, name: str, entry: FlatContainer, stored: ContainerEntry) -> None:
        """What is built anew has to be of the target's form all the same."""
        wanted, found = form(entry.container, entry.info), form(stored.container, stored.info)
        if wanted != found and (self._strict or entry.container != "ndarray"):
            self._match.mismatch(name, f"{entry.container} of {found} in the commit, of {wanted} in the target")
            return
        for child, target in self._target.entries.items():
            there = self._stored.entries.get(child)
            if parent_of(child) == name and isinstance(target, FlatTensor) and isinstance(there, TensorEntry):
                self._compare_field(name, entry.container, target.source.tensor, there)

    def _compare_field(self, name: str, container: str, target: torch.Tensor, stored: TensorEntry) -> None:
        if container == "ndarray" and stored.shape != tuple(target.shape):
            self._match.mismatch(name, _shapes(stored, target))
        elif self._strict and stored.dtype != dtype_name(target.dtype):
            self._match.mismatch(name, _dtypes(stored, target))

    def _compare_tensor(self, name: str, tensor: torch.Tensor, stored: Entry | None) -> None:
        self._match.closed.add(name)
        if stored is None:
            if not self._is_filled_by_tie(name):
                self._match.missing.append(name)
        elif not isinstance(stored, TensorEntry):
            self._match.mismatch(name, f"{_kind(stored)} in the commit, a tensor in the target")
        elif reason := tensor_mismatch(stored, tensor, strict=self._strict):
            self._match.mismatch(name, reason)
        else:
            self._match.placements[name] = tensor

    def _compare_value(self, name: str, value: Plain, stored: Entry | None) -> None:
        if type(value) is dict and value and isinstance(stored, ContainerEntry) and not self._any_value:
            for key, child in value.items():  # values only here, tensors among them there: each for itself
                below = join(name, segment(key))
                self._compare_value(below, child, self._stored.entries.get(below))
            return
        self._match.closed.add(name)
        if _takes_anything(value):
            return
        if stored is None:
            self._match.missing.append(name)
        elif self._any_value:
            return
        elif name not in self._stored.values:
            self._match.mismatch(name, f"{_kind(stored)} in the commit, only values in the target")
        else:
            for inner, reason in _value_mismatches(value, self._stored.values[name], strict=self._strict):
                self._match.mismatch("/".join(part for part in (name, *inner) if part), reason)

    # --- the commit's entries ---

    def _unexpected(self) -> Iterator[str]:
        below: set[str] = set()
        for name in sorted(self._stored.entries, key=lambda name: name.count("/")):
            entry = self._stored.entries[name]
            known = name in self._target.entries or name in self._match.closed or last_segment(name) == METADATA
            if known or not self._counts(name):
                continue
            above = list(ancestors(name))
            if not (self._match.closed.isdisjoint(above) and below.isdisjoint(above)):
                continue
            if isinstance(entry, ContainerEntry) and entry.container in OPEN:
                continue
            below.add(name)
            yield name

    # --- ties ---

    def _is_filled_by_tie(self, name: str) -> bool:
        """Whether the memory of a tensor that the commit lacks is filled under another name of it."""
        others = (other for group in self._target.ties if name in group for other in group if other != name)
        return any(isinstance(self._stored.entries.get(other), TensorEntry) for other in others)

    def _merge_ties(self) -> None:
        """Let each memory be written once, whatever number of names it has."""
        placements = self._match.placements
        for group in self._target.ties:
            placed = [name for name in group if name in placements]
            contents = {_content(self._stored.entries[name]) for name in placed}
            if len(contents) > 1 and self._strict:
                self._match.mismatch(
                    placed[0], f"one tensor with {', '.join(placed[1:])} in the target, not in the commit"
                )
            for name in placed[:-1]:
                self._match.aliases[name] = placements.pop(name)


def is_closed(entry: Entry) -> bool:
    """Whether an entry is a container whose tensors make up one object."""
    return isinstance(entry, ContainerEntry) and entry.container not in OPEN


def tensor_mismatch(stored: TensorEntry, tensor: torch.Tensor, *, strict: bool) -> str | None:
    """Why a stored tensor cannot be written into ``tensor``, in words, or ``None`` if it can."""
    if stored.shape != tuple(tensor.shape):
        return _shapes(stored, tensor)
    wanted = dtype_name(tensor.dtype)
    if stored.dtype != wanted and (strict or not torch.can_cast(torch_dtype(stored.dtype), tensor.dtype)):
        return _dtypes(stored, tensor)
    try:
        own = held(tensor).tensor
    except Refused as refused:
        return refused.reason
    if overlaps_itself(own):
        return "several elements of the target share memory (an expanded view)"
    return None


def _shapes(stored: TensorEntry, target: torch.Tensor) -> str:
    return f"shape {list(stored.shape)} in the commit, {list(target.shape)} in the target"


def _dtypes(stored: TensorEntry, target: torch.Tensor) -> str:
    return f"dtype {stored.dtype} in the commit, {dtype_name(target.dtype)} in the target"


def _content(entry: Entry) -> object:
    if not isinstance(entry, TensorEntry):
        return None
    return (entry.dtype, entry.shape, entry.inline, entry.chunks, entry.stored, entry.scale)


def _is_open_like(target: FlatContainer, stored: Entry) -> bool:
    """Whether what is stored is an open container whose children are found as the target's are: by key, or in order."""
    if not isinstance(stored, ContainerEntry) or stored.container not in OPEN:
        return False
    return (stored.container in SEQUENCES) == (target.container in SEQUENCES)


def _kind(entry: Entry) -> str:
    if isinstance(entry, TensorEntry):
        return "a tensor"
    return f"a {entry.container} with tensors" if isinstance(entry, ContainerEntry) else "a value"


# --- values -------------------------------------------------------------------------------------------------------


def _takes_anything(value: Plain) -> bool:
    body = value.payload[1] if isinstance(value, Tagged) and type(value.payload) is tuple else value
    return body is None or (type(body) in (dict, list, tuple) and not body)


def _value_mismatches(target: Plain, stored: Plain, *, strict: bool) -> Iterator[tuple[list[str], str]]:
    """Where a stored value does not fit the one in its place: keys inside it, and why."""
    if _takes_anything(target) or isinstance(target, Tagged) or isinstance(stored, Tagged):
        return
    if isinstance(target, dict) and isinstance(stored, dict):
        yield from _key_mismatches(target, stored, strict=strict)
    elif not _same_type(target, stored):
        yield [], f"a {type(stored).__name__} in the commit, a {type(target).__name__} in the target"


def _key_mismatches(
    target: dict[Plain, Plain], stored: dict[Plain, Plain], *, strict: bool
) -> Iterator[tuple[list[str], str]]:
    if strict:
        yield from (([str(key)], "missing in the commit") for key in target.keys() - stored.keys())
        yield from (([str(key)], "in the commit, but not in the target") for key in stored.keys() - target.keys())
    for key in target.keys() & stored.keys():
        for inner, reason in _value_mismatches(target[key], stored[key], strict=strict):
            yield [str(key), *inner], reason


def _same_type(target: Plain, stored: Plain) -> bool:
    """Numbers stand for one another, a list for a tuple, and ``None`` for whatever was not known yet."""
    return stored is None or any(
        isinstance(target, kinds) and isinstance(stored, kinds) for kinds in (_NUMBERS, (list, tuple), type(target))
    )
