"""Tensors of items by the names that files give them, for formats that hold tensors and nothing else."""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from typing import Final

from store.errors import Incompatible
from store.format.entries import ContainerEntry, Entry, TensorEntry, ValueEntry
from store.format.objects import Commit
from store.format.trees import Tree
from store.repository import Repository

from ..loading.stored import ancestors, full_name
from ..state.names import METADATA, ROOT, key_of, last_segment

_OPEN: Final = frozenset({"dict", "list", "tuple", "namedtuple", "OrderedDict", "defaultdict", "Counter", "deque"})
"""Containers whose tensors stand for themselves; those in any other make up one tensor (sparse, quantized, …)."""


@dataclass(frozen=True, slots=True)
class Named:
    """Tensors of one item.

    Attributes:
        tensors: by their names in the item, in the order in which they were saved.
        ties: groups of names of one tensor, each in that order.
        values: names of what is no tensor.
    """

    tensors: Mapping[str, TensorEntry]
    ties: tuple[tuple[str, ...], ...]
    values: tuple[str, ...]


def tensors_of(repo: Repository, commit: Commit, item: str) -> Named:
    """Tensors of an item; reads no tensor.

    Raises:
        Incompatible: it holds a tensor that is made of several: a sparse one, an array of NumPy, …
        NotFound: the commit has no such item.
        Corrupt: no intact copy.
    """
    tree = repo.tree(commit, item)
    entries = dict(tree)
    _refuse_composites(item, entries)
    order = {name: number for number, name in enumerate(in_order(entries))}
    tensors = {name: entry for name in order if isinstance(entry := entries[name], TensorEntry)}
    return Named(tensors, _ties_in_order(tree, order), tuple(_values(entries)))


def in_order(entries: Mapping[str, Entry]) -> list[str]:
    """Names in the order in which they were saved, which is not that of the tree."""

    def place(name: str) -> tuple[int, ...]:
        path = [name, *(above for above in ancestors(name) if above != ROOT)]
        return tuple(entries[each].position if each in entries else 0 for each in reversed(path))

    return sorted(entries, key=place)


def by_keys(item: str, names: Iterable[str], mark: str) -> dict[str, str]:
    """Names of an item by what files of other tools call them: the keys on the way, with a mark between them.

    Raises:
        Incompatible: two become the same; the message names them.
    """
    found: dict[str, str] = {}
    for name in names:
        text = item if name == ROOT else mark.join(str(key_of(part)) for part in name.split("/"))
        if text in found:
            pair = f"{full_name(item, found[text])} and {full_name(item, name)}"
            raise Incompatible(f"{pair} would both be named {text}; export to .pt", name=text)
        found[text] = name
    return found


def _values(entries: Mapping[str, Entry]) -> Iterable[str]:
    for name, entry in entries.items():
        if isinstance(entry, ValueEntry) and last_segment(name) != METADATA:
            yield name


def _ties_in_order(tree: Tree, order: Mapping[str, int]) -> tuple[tuple[str, ...], ...]:
    return tuple(tuple(sorted(group, key=lambda name: order.get(name, 0))) for group in tree.ties)


def _refuse_composites(item: str, entries: Mapping[str, Entry]) -> None:
    for name, entry in entries.items():
        if isinstance(entry, ContainerEntry) and entry.container not in _OPEN and _holds_tensors(name, entries):
            raise Incompatible(
                f"{full_name(item, name)} is a {entry.container}, which safetensors cannot hold; export to .pt",
                name=full_name(item, name),
            )


def _holds_tensors(container: str, entries: Mapping[str, Entry]) -> bool:
    return any(isinstance(entry, TensorEntry) and container in ancestors(name) for name, entry in entries.items())
