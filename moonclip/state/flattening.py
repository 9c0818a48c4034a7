"""State: whatever a person saves, as named entries, and the entries as what was saved.

Tensors become entries that their bytes are read from; containers with tensors below become entries whose children
continue their name; all else becomes values. Order, types and ties are kept.

Spec: docs/format.md §9.
"""

from collections.abc import Iterable, Mapping
from typing import Any, Final, TypeGuard

import torch

from store.errors import Corrupt, Incompatible, NotFound

from . import composites, containers
from .composites import PLAIN_CLASSES, is_distributed, is_plainly_strided, taken_apart
from .containers import Parts
from .entries import FlatContainer, FlatEntry, FlatState, FlatTensor, FlatValue, LoadedEntry, LoadedTensor, LoadedValue
from .names import METADATA, ROOT, join, key_of, last_segment, parent_of, segment
from .policy import SAFE, Policy
from .refusals import Refused, located
from .tensors import DTYPE_NAMES, TensorSource, lies_in_c_order
from .values import rebuilt
from .walk import Branch, Node, Walk

__all__ = [
    "FlatContainer",
    "FlatEntry",
    "FlatState",
    "FlatTensor",
    "FlatValue",
    "LoadedEntry",
    "LoadedTensor",
    "flatten",
    "unflatten",
]

SEQUENCES: Final = frozenset({"list", "tuple", "deque", "slice", "namedtuple"})
"""Containers whose children are found in order, not by key."""


def flatten(obj: object, policy: Policy = SAFE, item: str = "state", *, is_target: bool = False) -> FlatState:
    """Entries of an item. Copies no tensor: sources read the caller's memory until they have been copied out.

    Args:
        obj: tensors, arrays and values in any nesting of containers.
        policy: whether unknown objects may be pickled.
        item: named in errors.
        is_target: whether it is loaded into, and not saved. Then DTensors and tensors on the meta device are sources,
            of their global shape, that nobody can copy from.

    Raises:
        Incompatible: there is something in it that cannot be kept; the message names its path and type.

    Cost: about 3 µs a tensor.
    """
    taker = _Taker(is_target=is_target)
    with located(item):
        root = Walk(taker.take, policy).visit(obj)
    entries: dict[str, FlatEntry] = {}
    _emit(root, ROOT, 0, entries)
    return FlatState(entries, _ties(entries, taker.shared) if taker.shared else ())


def unflatten(
    entries: Mapping[str, LoadedEntry],
    ties: Iterable[Iterable[str]] = (),
    policy: Policy = SAFE,
    item: str = "state",
    root: str = ROOT,
) -> Any:
    """Inverse of :func:`flatten`, for all of an item's entries or some.

    Args:
        entries: in any order. Children may be missing (a list closes up), but not the containers they lie in.
        ties: names in a group all get the tensor of the first name of it that is here.
        policy: whether classes may be imported and pickles read.
        item: named in errors.
        root: name of the entry to build; what is not below it is ignored.

    Raises:
        NotFound: there is no entry ``root``.
        Unsafe: it holds a pickle, or a class that is not imported, and the policy does not list it.
        Incompatible: a type or class that is not what it was, or a container's entry is missing.
        Corrupt: entries that do not fit together.
    """
    if root not in entries:
        raise NotFound(f"{item} has no entry {root!r}", name=root)
    builder = _Builder(_tied(entries, ties), policy)
    with located(item):
        return builder.build(root)


# --- taking tensors in ------------------------------------------------------------------------------------------


class _Taker:
    """Turns tensors into sources, the same memory into the same source.

    Attributes:
        shared: sources that were met more than once, by ``id``.
    """

    def __init__(self, *, is_target: bool) -> None:
        self._is_target = is_target
        self._by_address: dict[int, TensorSource] = {}
        self._by_view: dict[tuple[object, ...], TensorSource] = {}
        self._shapes: dict[torch.Size, tuple[int, ...]] = {}
        self.shared: set[int] = set()

    def take(self, obj: object) -> TensorSource | Parts | None:
        if not is_plainly_strided(obj):  # known of nearly every tensor, at a third of the cost
            if self._is_target and _lacks_bytes(obj):
                return self._place(obj)
            taken = taken_apart(obj)
            if not isinstance(taken, torch.Tensor):
                return taken
            obj = taken
        source = self._source(obj)
        if not source.size_bytes:
            return source
        first = self._by_address.setdefault(source.address or obj.data_ptr(), source)
        return source if first is source else self._at_same_address(first, source)

    def _place(self, tensor: torch.Tensor) -> TensorSource:
        """A target of which this process has a part, or nothing yet. One object under several names is a tie."""
        name = DTYPE_NAMES.get(tensor.dtype)
        if name is None:
            raise Refused(Incompatible, f"a tensor of {tensor.dtype} cannot be loaded into")
        source = TensorSource(tensor, name, tuple(tensor.shape), tensor.nbytes, 0)
        known = self._by_view.setdefault(_place_key(tensor), source)
        if known is not source:
            self.shared.add(id(known))
        return known

    def _source(self, tensor: torch.Tensor) -> TensorSource:
        """A tensor as it lies. Those of one shape share the tuple that says so: a save of thousands pickles it once."""
        name = DTYPE_NAMES.get(tensor.dtype)
        if name is None:
            raise Refused(Incompatible, f"a tensor of {tensor.dtype} cannot be kept")
        size_bytes = tensor.nbytes
        if size_bytes and not tensor.untyped_storage().nbytes():
            raise Refused(Incompatible, "the tensor's storage was freed (FSDP does so between steps); gather it first")
        size = tensor.shape
        shape = self._shapes.get(size)
        if shape is None:
            shape = self._shapes[size] = tuple(size)
        address = tensor.data_ptr() if lies_in_c_order(tensor) else 0
        return TensorSource(tensor, name, shape, size_bytes, address)

    def _at_same_address(self, first: TensorSource, source: TensorSource) -> TensorSource:
        """The source that is the same view of the memory, or this one if none was met."""
        self._by_view.setdefault(_view_key(first.tensor), first)
        known = self._by_view.setdefault(_view_key(source.tensor), source)
        if known is not source:
            self.shared.add(id(known))
        return known


def _lacks_bytes(obj: object) -> TypeGuard[torch.Tensor]:
    """Whether this is a DTensor, or a plain tensor on the meta device."""
    if not isinstance(obj, torch.Tensor):
        return False
    return is_distributed(obj) or (obj.is_meta and type(obj) in PLAIN_CLASSES and obj.layout is torch.strided)


def _place_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are one target: the same object, or DTensors of one memory."""
    if not is_distributed(tensor):
        return (id(tensor),)
    with torch.no_grad():
        local = tensor.to_local()  # type: ignore[attr-defined]
    return (tensor.shape, *_view_key(local)) if local.data_ptr() else (id(tensor),)


def _view_key(tensor: torch.Tensor) -> tuple[object, ...]:
    """Equal for tensors that are one and the same view of one memory."""
    where = (tensor.data_ptr(), tensor.device, tensor.dtype)
    return (*where, tensor.shape, tensor.stride(), tensor.is_conj(), tensor.is_neg())


# --- flattening -------------------------------------------------------------------------------------------------


def _emit(node: Node, name: str, position: int, entries: dict[str, FlatEntry]) -> None:
    if type(node) is TensorSource:
        entries[name] = FlatTensor(position, node)
    elif type(node) is Branch:
        _emit_branch(node, name, position, entries)
    else:
        entries[name] = FlatValue(position, node)


def _emit_branch(branch: Branch, name: str, position: int, entries: dict[str, FlatEntry]) -> None:
    """The container, then its children. A state dict's ``_metadata`` can be large, so it is a child, not an info."""
    has_metadata = branch.kind == "OrderedDict" and branch.info is not None
    entries[name] = FlatContainer(position, branch.kind, None if has_metadata else branch.info)
    for index, (key, child) in enumerate(branch.children):
        child_name = join(name, segment(key))
        if type(child) is TensorSource:  # here, because a call for each of many thousands is felt
            entries[child_name] = FlatTensor(index, child)
        else:
            _emit(child, child_name, index, entries)
    if has_metadata:
        entries[join(name, METADATA)] = FlatValue(len(branch.children), branch.info)


def _ties(entries: Mapping[str, FlatEntry], shared: set[int]) -> tuple[tuple[str, ...], ...]:
    names_of: dict[int, list[str]] = {}
    for name, entry in entries.items():
        if type(entry) is FlatTensor and id(entry.source) in shared:
            names_of.setdefault(id(entry.source), []).append(name)
    return tuple(map(tuple, names_of.values()))


# --- building ---------------------------------------------------------------------------------------------------


def _tied(entries: Mapping[str, LoadedEntry], ties: Iterable[Iterable[str]]) -> dict[str, LoadedEntry]:
    tied = dict(entries)
    for names in ties:
        tensors = {name: entry for name in names if isinstance(entry := entries.get(name), LoadedTensor)}
        for name, entry in tensors.items():
            first = next(iter(tensors.values()))
            tied[name] = LoadedTensor(entry.position, first.tensor)
    return tied


class _Builder:
    """Builds objects from entries, children first."""

    def __init__(self, entries: Mapping[str, LoadedEntry], policy: Policy) -> None:
        self._entries = entries
        self._policy = policy
        self._children: dict[str, list[str]] = {}
        for name in sorted(entries.keys() - {ROOT}, key=lambda name: entries[name].position):
            self._children.setdefault(parent_of(name), []).append(name)
        self._require_parents()

    def build(self, name: str) -> Any:
        entry = self._entries[name]
        if isinstance(entry, LoadedTensor):
            return entry.tensor
        if isinstance(entry, LoadedValue):
            return entry.value
        if isinstance(entry, FlatValue):
            return rebuilt(entry.value, self._policy)
        return self._container(name, entry)

    def _container(self, name: str, entry: FlatContainer) -> Any:
        children = {last_segment(child): self._child(child) for child in self._children.get(name, ())}
        info = rebuilt(entry.info, self._policy)
        if METADATA in children:
            info = children.pop(METADATA)
        kind = entry.container
        if kind in composites.BUILDERS:
            return composites.build(kind, children, info, self._policy)
        if kind not in containers.BUILDERS:
            raise Refused(Incompatible, f"unknown container {kind!r}; a newer moonclip may know it")
        if kind in SEQUENCES:
            return containers.build(kind, list(children.values()), info, self._policy)
        return containers.build(kind, self._keyed(children), info, self._policy)

    def _child(self, name: str) -> Any:
        try:
            return self.build(name)
        except Refused as refused:
            raise refused.inside(last_segment(name)) from refused.__cause__

    def _keyed(self, children: Mapping[str, Any]) -> dict[Any, Any]:
        try:
            return {rebuilt(key_of(part), self._policy): child for part, child in children.items()}
        except TypeError as error:
            raise Refused(Corrupt, f"a key that cannot be one ({error})") from error

    def _require_parents(self) -> None:
        for parent, names in self._children.items():
            if not isinstance(self._entries.get(parent), FlatContainer):
                raise Incompatible(f"{names[0]!r} lies in {parent!r}, which is not among the containers given")
