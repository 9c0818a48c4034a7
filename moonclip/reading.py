"""Tensors from the store into memory.

Straight into their targets where these lie in C order on the host, else by way of temporaries, so many at a time. Of a
tensor that is spread over ranks each reads the chunks that overlap its own shards, and talks with nobody.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple

import torch

from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.limits import MIB
from store.reading.boxes import contiguous, inner, plan_box
from store.reading.copies import Copy
from store.reading.retrieve import plan_whole
from store.repository import Repository

from .composites import is_distributed
from .sharding.layouts import Part
from .targets import held
from .tensors import dtype_name, fill, mark_written, torch_dtype, writable_bytes

_TEMPORARY_BYTES: Final = 256 * MIB
"""Temporaries that are held at once, unless a single tensor is larger."""


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor to read.

    Attributes:
        entry: the tensor as stored.
        out: where it goes; of its shape, and of its dtype or one it is cast to. Of a DTensor, what this process holds
            is read and nothing else.
    """

    entry: TensorEntry
    out: torch.Tensor


def empty_for(entry: TensorEntry, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Host memory for a stored tensor, or for some rows of it.

    Args:
        entry: the tensor.
        shape: of the rows; of the whole tensor if ``None``.

    Raises:
        Incompatible: the installed torch has no such dtype.
    """
    return torch.empty(entry.shape if shape is None else tuple(shape), dtype=torch_dtype(entry.dtype), device="cpu")


def read(repo: Repository, reads: Sequence[Read], *, verify_hash: bool = False) -> None:
    """Read tensors in parallel, each into its place.

    Args:
        repo: the store.
        reads: what to read.
        verify_hash: also check every chunk's BLAKE3, not only the checksum of what is stored.

    Raises:
        NotFound: a chunk is missing. Corrupt: a chunk is damaged. Targets may be partly written.
    """
    # Of a tensor that is spread, only what overlaps is fetched, when it is read.
    repo.bring(one.entry for one in reads if not is_distributed(one.out))
    direct: list[Copy] = []
    indirect: list[_Local] = []
    mine = [_Local(one.entry, *held(one.out)) for one in reads]
    for one in mine:
        view = writable_bytes(one.tensor) if dtype_name(one.tensor.dtype) == one.entry.dtype else None
        if view is None:
            indirect.append(one)
        else:
            direct += planned(one.entry, one.tensor.shape, one.parts, view)
    try:
        repo.read_copies(direct, verify_hash=verify_hash)
    finally:
        mark_written(*(one.out for one in reads), *(one.tensor for one in mine if one.parts is not None))
    for batch in _batches(indirect):
        _read_by_way_of_temporaries(repo, batch, verify_hash=verify_hash)


def planned(entry: TensorEntry, shape: tuple[int, ...], parts: Sequence[Part] | None, memory: memoryview) -> list[Copy]:
    """Which bytes of which chunks make up a tensor of this process. Pure, but for tensors that sit in the tree.

    Args:
        entry: the tensor as stored.
        shape: what this process has of it.
        parts: boxes of it, and where they lie in that; ``None`` if it is all of it.
        memory: bytes of what this process has, in C order.
    """
    if parts is None:
        return plan_whole(entry, memory)
    target = contiguous(shape, dtype(entry.dtype).item_bytes, memory)
    return [copy for part in parts for copy in plan_box(entry, part.box, inner(target, part.local))]


class _Local(NamedTuple):
    """A stored tensor, and what this process has of its target."""

    entry: TensorEntry
    tensor: torch.Tensor
    parts: tuple[Part, ...] | None


def _read_by_way_of_temporaries(repo: Repository, batch: Sequence[_Local], *, verify_hash: bool) -> None:
    temporaries = [empty_for(one.entry, one.tensor.shape) for one in batch]
    copies: list[Copy] = []
    for one, temporary in zip(batch, temporaries, strict=True):
        view = writable_bytes(temporary)
        if view is not None:  # else there is nothing in it
            copies += planned(one.entry, temporary.shape, one.parts, view)
    repo.read_copies(copies, verify_hash=verify_hash)
    for one, temporary in zip(batch, temporaries, strict=True):
        if temporary.dtype == one.tensor.dtype:
            fill(one.tensor, temporary)
        else:
            one.tensor.detach().copy_(temporary)


def _batches(reads: Sequence[_Local]) -> Iterator[list[_Local]]:
    batch: list[_Local] = []
    batch_bytes = 0
    for one in reads:
        size_bytes = one.tensor.numel() * dtype(one.entry.dtype).item_bytes
        if batch and batch_bytes + size_bytes > _TEMPORARY_BYTES:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(one)
        batch_bytes += size_bytes
    if batch:
        yield batch
