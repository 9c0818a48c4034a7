"""A commit as a directory that ``torch.distributed.checkpoint`` loads, with its own reader, into any layout.

Names and places are torch's: the state is flattened by its own code. Tensors are written in blocks of rows, each of
them a shard to torch, so that neither this nor who loads it has ever more than a block of one in memory.
"""

import pickle
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint._nested_dict import flatten_state_dict
from torch.distributed.checkpoint.filesystem import CURRENT_DCP_VERSION, DEFAULT_SUFFIX, _StorageInfo
from torch.distributed.checkpoint.metadata import (
    BytesStorageMetadata,
    ChunkStorageMetadata,
    Metadata,
    MetadataIndex,
    StorageMeta,
    TensorProperties,
    TensorStorageMetadata,
)
from torch.utils._pytree import tree_map_only

from store.disk.files import BlockWriter
from store.errors import Incompatible
from store.format.dtypes import dtype
from store.format.entries import ContainerEntry, TensorEntry
from store.format.objects import Commit
from store.repository import Repository

from ..loading.matching import Match
from ..loading.plans import Plan
from ..loading.reading import read
from ..loading.stored import full_name, read_item
from ..state.policy import SAFE
from ..state.tensors import tensor_from, torch_dtype
from . import pickling
from .dcpmetadata import NAME
from .outputs import Kind, found_of, require_free, writing_into
from .streaming import WINDOW_BYTES, blocks, read_block

KIND: Final = Kind((NAME,), (f"__*{DEFAULT_SUFFIX}",))
_DATA: Final = f"__0_0{DEFAULT_SUFFIX}"


def write(
    directory: Path,
    repo: Repository,
    commit: Commit,
    items: list[str],
    *,
    is_single: bool = False,
    overwrite: bool = False,
    block_bytes: int = WINDOW_BYTES,
) -> int:
    """Write items of a commit. Each tensor is written once, under all its names.

    What torch keeps as one object (a tuple, a sparse tensor, a value) is read whole.

    Args:
        directory: made if there is none; other files in it stay.
        repo: the store.
        commit: the commit.
        items: the items, which become the outermost keys of the state.
        is_single: whether the one item, if it is a mapping, is the state itself.
        overwrite: whether an earlier export may be replaced.
        block_bytes: the most that is written of a tensor at once.

    Returns:
        Bytes that were written.

    Raises:
        Conflict: there is an earlier export, and ``overwrite`` is false.
        Incompatible: two names become one with dots between their keys, or there is something that torch cannot hold.
        Unsafe: it holds a pickle, which is not read.
        NotFound: there is no such item, or a chunk is missing.
        Corrupt: stored bytes are damaged.
        OSError: a file could not be written.
    """
    require_free(directory, found_of(directory, KIND), overwrite=overwrite)
    state = _State(repo, commit, items)
    nested = state.built[items[0]] if is_single and isinstance(state.built[items[0]], Mapping) else state.built
    try:
        flat, places = flatten_state_dict(dict(nested))
    except ValueError as error:
        raise Incompatible(f"torch.distributed.checkpoint cannot tell all names apart: {error}") from error
    with writing_into(repo.files, directory, KIND) as outputs:
        with outputs.open(_DATA) as file:
            writer = _Writer(repo, state, file, block_bytes)
            for name, leaf in flat.items():
                writer.add(name, leaf)
        found = Metadata(writer.entries, places, writer.places, StorageMeta(), CURRENT_DCP_VERSION)
        outputs.write(NAME, pickle.dumps(found))
        return outputs.put()


class _State:
    """Items with tensors on the meta device in the places of those that are stored, which are read later.

    Attributes:
        built: the items.
    """

    def __init__(self, repo: Repository, commit: Commit, items: list[str]) -> None:
        self._repo = repo
        self._entries: dict[int, TensorEntry] = {}
        self._stand_ins: list[torch.Tensor] = []
        plans = [self._plan(commit, item) for item in items]
        read(repo, [one for plan in plans for one in plan.reads()])
        self.built = {plan.stored.name: plan.built() for plan in plans}

    def entry(self, leaf: object) -> TensorEntry | None:
        """The stored tensor that a leaf stands for."""
        return self._entries.get(id(leaf))

    def loaded(self, leaf: object) -> object:
        """A leaf with the tensors themselves in it."""
        return tree_map_only(torch.Tensor, self._loaded, leaf)

    def _plan(self, commit: Commit, item: str) -> Plan:
        stored = read_item(self._repo, commit, item)
        for name, entry in stored.entries.items():
            if isinstance(entry, ContainerEntry) and entry.container == "slice":
                raise Incompatible(f"{full_name(item, name)} is a slice with tensors in it; export to .pt", name=name)
        self._repo.bring(stored.entries.values())
        return Plan(stored, Match(item), None, SAFE, lazy=self._stand_in)

    def _stand_in(self, _name: str, entry: TensorEntry) -> torch.Tensor:
        made = torch.empty(entry.shape, dtype=torch_dtype(entry.dtype), device="meta")
        self._stand_ins.append(made)  # so that its id stays its own
        self._entries[id(made)] = entry
        return made

    def _loaded(self, tensor: torch.Tensor) -> torch.Tensor:
        entry = self._entries.get(id(tensor))
        return tensor if entry is None else tensor_from(entry.dtype, entry.shape, self._repo.read_tensor(entry))


class _Writer:
    """Leaves of a state, one after another into one file.

    Attributes:
        entries: what torch calls ``state_dict_metadata``.
        places: where everything is, ``storage_data``.
    """

    def __init__(self, repo: Repository, state: _State, file: BlockWriter, block_bytes: int) -> None:
        self._repo = repo
        self._state = state
        self._file = file
        self._block_bytes = block_bytes
        self._written: dict[int, list[tuple[ChunkStorageMetadata, _StorageInfo]]] = {}
        self.entries: dict[str, Any] = {}
        self.places: dict[MetadataIndex, _StorageInfo] = {}

    def add(self, name: str, leaf: object) -> None:
        entry = self._state.entry(leaf)
        if entry is None:
            self.entries[name] = BytesStorageMetadata()
            self.places[MetadataIndex(name)] = self._put(name, self._state.loaded(leaf))
            return
        if id(leaf) not in self._written:
            self._written[id(leaf)] = self._put_blocks(name, entry)
        shards = self._written[id(leaf)]
        properties = TensorProperties(dtype=torch_dtype(entry.dtype))
        self.entries[name] = TensorStorageMetadata(properties, torch.Size(entry.shape), [chunk for chunk, _ in shards])
        for number, (chunk, info) in enumerate(shards):
            self.places[MetadataIndex(name, chunk.offsets, number)] = info

    def _put_blocks(self, name: str, entry: TensorEntry) -> list[tuple[ChunkStorageMetadata, _StorageInfo]]:
        written = []
        for box in blocks(entry.shape, dtype(entry.dtype).item_bytes, self._block_bytes):
            tensor = tensor_from(entry.dtype, box.sizes, read_block(self._repo, entry, box))
            chunk = ChunkStorageMetadata(torch.Size(box.offsets), torch.Size(box.sizes))
            written.append((chunk, self._put(name, tensor)))
        return written

    def _put(self, name: str, obj: object) -> _StorageInfo:
        offset = self._file.size_bytes
        pickling.save(self._file, obj, name)
        return _StorageInfo(_DATA, offset, self._file.size_bytes - offset)
