"""A directory that ``torch.distributed.checkpoint`` wrote, as items to be saved. Its tensors are read when they are."""

from collections.abc import Iterable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Final

import torch

from store.errors import Corrupt
from store.format.entries import TensorEntry
from store.saving.inputs import ItemInput

from ..loading.numbering import GROUPS
from ..state.tensors import torch_dtype
from .dcpmetadata import Keys, Leaf, TensorLeaf, read_leaves
from .ranges import Part, Ranges
from .records import loaded_from, source_of
from .tensorinputs import STATE, by_item, input_of

_GAPS: Final = 64
"""Places of a list that nothing was written for: empty mappings. More, beside those there are, is no list."""


def items_in(directory: Path, ranges: Ranges, item: str | None) -> list[ItemInput]:
    """What a directory holds, as items: its outermost keys, unless it is one itself.

    Args:
        directory: where ``.metadata`` is.
        ranges: reads the tensors.
        item: what to call it as one item; ``None`` if its own form decides.

    Raises:
        Unsafe: its metadata or something else in it would run code, or lies elsewhere.
        Corrupt: something in it is not what it should be.
        Incompatible: something that cannot be stored.
        OSError: it cannot be read.
    """
    stand_ins: dict[int, TensorEntry] = {}
    kept: list[torch.Tensor] = []
    pairs: list[tuple[Keys, Any]] = []
    for leaf in read_leaves(directory, ranges.files):
        value = _value(leaf, ranges)
        if isinstance(value, TensorEntry):
            made = torch.empty(value.shape, dtype=torch_dtype(value.dtype), device="meta")
            kept.append(made)  # so that its id stays its own
            stand_ins[id(made)] = value
            value = made
        pairs.append((leaf.keys, value))
    state = nested(pairs)
    return [input_of(name, _with_ids(each), ranges, stand_ins) for name, each in by_item(state, item).items()]


def nested(pairs: Iterable[tuple[Keys, Any]]) -> dict[str, Any]:
    """Leaves in the containers that they lie in. Pure.

    Args:
        pairs: the keys on the way to each leaf, integers for places in lists, and the leaf.

    Raises:
        Corrupt: a leaf lies in another, two lie at one place, or keys make neither a mapping nor a list.
    """
    root = _Branch(())
    for keys, leaf in pairs:
        branch = root
        for depth, key in enumerate(keys[:-1], 1):
            branch = branch.below(key, keys[:depth])
        branch.put(keys[-1], keys, leaf)
    return {str(key): _built(child) for key, child in root.children.items()}


@dataclass(slots=True)
class _Branch:
    """A container in the making."""

    keys: Keys
    children: dict[str | int, Any] = field(default_factory=dict)

    def below(self, key: str | int, keys: Keys) -> "_Branch":
        child = self.children.setdefault(key, _Branch(keys))
        if not isinstance(child, _Branch):
            raise _misplaced(keys, "is both a value and a container")
        return child

    def put(self, key: str | int, keys: Keys, leaf: Any) -> None:
        if key in self.children:
            raise _misplaced(keys, "is there twice")
        self.children[key] = leaf


def _built(node: Any) -> Any:
    if not isinstance(node, _Branch):
        return node
    kinds = {type(key) for key in node.children}
    if len(kinds) != 1:
        raise _misplaced(node.keys, "has both names and numbers for keys")
    if kinds == {str}:
        return {key: _built(child) for key, child in node.children.items()}
    numbers = [key for key in node.children if isinstance(key, int)]
    if max(numbers) >= 2 * len(numbers) + _GAPS:
        raise _misplaced(node.keys, f"is a list of which only {len(numbers)} of {max(numbers) + 1} places are there")
    return [_built(node.children[place]) if place in node.children else {} for place in range(max(numbers) + 1)]


def _misplaced(keys: Keys, why: str) -> Corrupt:
    return Corrupt(f"{'.'.join(map(str, keys)) or 'the state'} {why}")


def _value(leaf: Leaf, ranges: Ranges) -> Any:
    """A tensor's entry, or the object itself."""
    if not isinstance(leaf, TensorLeaf):
        return loaded_from(leaf.place, ranges.files, leaf.name)
    return ranges.entry(0, leaf.dtype, leaf.shape, list(_parts(leaf, ranges)))


def _parts(leaf: TensorLeaf, ranges: Ranges) -> Iterator[Part]:
    for box, place in leaf.parts:
        yield Part(box, source_of(place, leaf.dtype, box.sizes, ranges.files))


def _with_ids(state: Any) -> Any:
    """An optimizer's state by the numbers of its parameters, which torch has made text of, as its groups have them."""
    if not isinstance(state, dict) or not isinstance(groups := state.get(GROUPS), list):
        return state
    ids = [each for group in groups if isinstance(group, dict) for each in _list(group.get("params"))]
    numbers = {str(each): each for each in ids if type(each) is int}
    if not numbers or not isinstance(of_each := state.get(STATE), dict) or not numbers.keys() >= of_each.keys():
        return state
    return {**state, STATE: {numbers[key]: child for key, child in of_each.items()}}


def _list(found: Any) -> list[Any]:
    return found if isinstance(found, list) else []
