"""An item's way to stored bytes and back, without a store: what the tests of the state modules share."""

from typing import Any

from moonclip.state.entries import FlatContainer, FlatEntry, FlatState, FlatTensor, FlatValue, LoadedEntry, LoadedTensor
from moonclip.state.flattening import flatten, unflatten
from moonclip.state.policy import SAFE, Policy
from moonclip.state.tensors import TensorSource, tensor_from
from store.format import values

Stored = dict[str, tuple[Any, ...]]
"""Entries as comparable bytes, sorted by name as a tree sorts them."""


def bytes_of(source: TensorSource) -> bytes:
    """Elements of a source in C order."""
    out = bytearray(source.size_bytes)
    source.copy_into(memoryview(out))
    return bytes(out)


def stored(flat: FlatState) -> Stored:
    """Entries as a store would keep them."""
    return {name: _stored_entry(flat.entries[name]) for name in sorted(flat.entries)}


def loaded(kept: Stored, ties: tuple[tuple[str, ...], ...] = (), policy: Policy = SAFE) -> Any:
    """The object that was stored."""
    return unflatten({name: _loaded_entry(entry) for name, entry in kept.items()}, ties, policy)


def trip(obj: object, policy: Policy = SAFE) -> Any:
    """``obj``, saved and loaded; checks on the way that saving it again would store the same."""
    flat = flatten(obj, policy)
    back = loaded(stored(flat), flat.ties, policy)
    again = flatten(back, policy)
    assert stored(again) == stored(flat)
    assert list(again.entries) == list(flat.entries)
    assert again.ties == flat.ties
    return back


def _stored_entry(entry: FlatEntry) -> tuple[Any, ...]:
    if isinstance(entry, FlatTensor):
        return ("tensor", entry.position, entry.source.dtype, entry.source.shape, bytes_of(entry.source))
    if isinstance(entry, FlatValue):
        return ("value", entry.position, values.encode(entry.value))
    return ("container", entry.position, entry.container, values.encode(entry.info))


def _loaded_entry(entry: tuple[Any, ...]) -> LoadedEntry:
    kind, position, *rest = entry
    if kind == "tensor":
        dtype, shape, data = rest
        return LoadedTensor(position, tensor_from(dtype, shape, bytearray(data)))
    if kind == "value":
        return FlatValue(position, values.decode(rest[0]))
    return FlatContainer(position, rest[0], values.decode(rest[1]))
