"""A commit as torch sees a checkpoint: flattened names, and what lies under each.

Which names there are torch's own flattening says, of a state in which each tensor has a stand-in without elements. So
what a planner asks for is found whoever saved it.
"""

import logging
from collections.abc import Callable, Iterator, Mapping
from dataclasses import replace
from functools import partial
from typing import Any, NamedTuple
from uuid import uuid4

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.metadata import (
    STORAGE_TYPES,
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    TensorProperties,
    TensorStorageMetadata,
)

from store.errors import Incompatible, MoonclipError, Pruned, Unsafe
from store.format.entries import TensorEntry
from store.format.objects import Commit
from store.format.values import Plain
from store.ids import short
from store.repository import Repository

from ..loading.matching import Match
from ..loading.plans import Plan
from ..loading.reading import Read, empty_for, read
from ..loading.stored import StoredItem, full_name, read_item
from ..state.entries import FlatTensor, LoadedEntry, LoadedTensor
from ..state.flattening import flatten, unflatten
from ..state.policy import Policy
from ..state.tensors import torch_dtype
from ..state.values import from_plain
from .layout import WHOLE, Path, kind_of, top_level

_log = logging.getLogger("moonclip")


class StoredState(NamedTuple):
    """A commit's content under torch's names.

    Attributes:
        leaves: by flattened name: a stand-in for each tensor, and all else as it is, perhaps with stand-ins inside.
        paths: keys that lead to each; ``None`` if the commit was saved without flattening.
        tensors: what stand-ins stand for, by their ``id``.
        refused: errors of values that cannot be decoded, by what stands in for them.
    """

    leaves: Mapping[str, Any]
    paths: Mapping[str, Path] | None
    tensors: Mapping[int, TensorEntry]
    refused: Mapping[str, MoonclipError]

    def entry(self, fqn: str) -> TensorEntry | None:
        """The tensor under a name; ``None`` if what is there is none, or is made of several."""
        leaf = self.leaves.get(fqn)
        return self.tensors.get(id(leaf)) if isinstance(leaf, torch.Tensor) else None

    def metadata(self) -> Metadata:
        """What a planner is told. Every tensor is one chunk there: reads take of it what overlaps, not chunks."""
        return Metadata({fqn: self._metadata(fqn) for fqn in self.leaves}, planner_data=self.paths)

    def _metadata(self, fqn: str) -> STORAGE_TYPES:
        entry = self.entry(fqn)
        if entry is None:
            return BytesStorageMetadata()
        size = torch.Size(entry.shape)
        chunk = ChunkStorageMetadata(torch.Size((0,) * len(size)), size)
        return TensorStorageMetadata(TensorProperties(dtype=torch_dtype(entry.dtype)), size, [chunk])


def stored_state(repo: Repository, commit: Commit, policy: Policy) -> StoredState:
    """Read a commit's structure and values; of tensors only such as make up another object.

    What was pruned, or what the policy does not let us decode, is in nobody's way who does not ask for it.

    Raises:
        Pruned: none of its items is here.
        Incompatible: two names become one when they are flattened.
        Corrupt: stored bytes are damaged.
    """
    refused: dict[str, MoonclipError] = {}
    tensors: dict[int, TensorEntry] = {}
    standing_in: list[torch.Tensor] = []  # so that no two of them ever have one id
    take: Callable[[str, TensorEntry], object] = partial(_stand_in, tensors, standing_in)
    items = [_decodable(item, policy, refused) for item in _present(repo, commit)]
    plans = [Plan(item, Match(item.name), None, policy, lazy=take) for item in items]
    read(repo, [one for plan in plans for one in plan.reads()])
    kind = kind_of(commit.metadata)
    state = top_level({plan.stored.name: plan.built() for plan in plans}, kind)
    if kind == WHOLE:
        return StoredState(state, None, tensors, refused)
    try:
        leaves, paths = flatten_state_dict(state)
    except ValueError as error:
        raise Incompatible(
            f"commit {short(commit.id)} has names that torch's checkpointing takes for one ({error}); load it with"
            " CheckpointManager",
            commit=commit.id.hex(),
        ) from error
    return StoredState(leaves, paths, tensors, refused)


def whole_leaf(repo: Repository, state: StoredState, fqn: str, policy: Policy) -> Any:
    """What is no tensor, with the tensors that are inside it read.

    Raises:
        MoonclipError: it cannot be decoded here: most likely ``Unsafe``, being a pickle.
        NotFound: a chunk is missing. Corrupt: a chunk is damaged.
    """
    leaf = state.leaves[fqn]
    if isinstance(leaf, str) and leaf in state.refused:
        raise state.refused[leaf]
    flat = flatten(leaf, policy, fqn, is_target=True).entries
    inside = {name: each for name, each in flat.items() if isinstance(each, FlatTensor)}
    stored = {name: entry for name, each in inside.items() if (entry := state.tensors.get(id(each.source.tensor)))}
    if not stored:
        return leaf
    made = {name: empty_for(entry) for name, entry in stored.items()}
    read(repo, [Read(entry, made[name]) for name, entry in stored.items()])
    entries: dict[str, LoadedEntry] = {name: each for name, each in flat.items() if not isinstance(each, FlatTensor)}
    for name, each in inside.items():
        entries[name] = LoadedTensor(each.position, made.get(name, each.source.tensor))
    return unflatten(entries, (), policy, fqn)


def _present(repo: Repository, commit: Commit) -> Iterator[StoredItem]:
    """Items of a commit, without those that were dropped, or left where the commit came from."""
    absent: list[Pruned] = []
    for item in commit.items:
        try:
            yield read_item(repo, commit, item)
        except Pruned as error:
            absent.append(error)
            _log.warning("%s", error)
    if absent and len(absent) == len(commit.items):
        raise absent[0]


def _decodable(item: StoredItem, policy: Policy, refused: dict[str, MoonclipError]) -> StoredItem:
    """An item with something else in the place of values that cannot be decoded."""
    values: dict[str, Plain] = dict(item.values)
    for name, plain in item.values.items():
        try:
            from_plain(plain, policy, full_name(item.name, name))
        except (Unsafe, Incompatible) as error:
            stand_in = values[name] = f"refused {uuid4().hex}"
            refused[stand_in] = error
            _log.warning("%s; it cannot be loaded here, nor anything in it", error)
    return replace(item, values=values)


def _stand_in(
    tensors: dict[int, TensorEntry], standing_in: list[torch.Tensor], name: str, entry: TensorEntry
) -> torch.Tensor:
    del name
    made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="meta")
    standing_in.append(made)
    tensors[id(made)] = entry
    return made
