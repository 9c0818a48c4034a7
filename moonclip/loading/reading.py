"""Tensors from the store into memory.

Straight into their targets where these lie in C order on the host, else by way of temporaries, so many at a time. Of a
tensor that is spread over ranks each reads the chunks that overlap its own shards, and talks with nobody.
"""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Final, NamedTuple, Protocol

import torch

from store.format.dtypes import dtype
from store.format.entries import Entry, TensorEntry
from store.limits import MIB
from store.reading.boxes import contiguous, inner, plan_box
from store.reading.copies import Copy
from store.reading.retrieve import plan_whole

from ..sharding.layouts import Part
from ..state.composites import is_distributed
from ..state.tensors import dtype_name, fill, mark_written, torch_dtype, writable_bytes
from .targets import held

_TEMPORARY_BYTES: Final = 256 * MIB
"""Temporaries that are held at once, unless a single tensor is larger."""


class Readable(Protocol):
    """What tensors are read from: a :class:`~store.repository.Repository`, or files of other tools."""

    def bring(self, entries: Iterable[Entry], /) -> None:
        """Get what is not here yet."""
        ...

    def read_copies(self, copies: Iterable[Copy], /, *, verify_hash: bool = False) -> None:
        """Read what was planned.

        Raises:
            Corrupt: something is damaged. Targets may be partly written.
        """
        ...


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


class LocalRead(NamedTuple):
    """A stored tensor, and what this process has of its target.

    Attributes:
        entry: the tensor as stored.
        tensor: this process's memory; of the tensor's dtype, or one that it is cast to.
        parts: boxes of the stored tensor, and where each goes in ``tensor``; ``None`` if it is all of it.
    """

    entry: TensorEntry
    tensor: torch.Tensor
    parts: tuple[Part, ...] | None = None


def empty_for(entry: TensorEntry, shape: Sequence[int] | None = None) -> torch.Tensor:
    """Host memory for a stored tensor, or for some rows of it.

    Args:
        entry: the tensor.
        shape: of the rows; of the whole tensor if ``None``.

    Raises:
        Incompatible: the installed torch has no such dtype.
    """
    return torch.empty(entry.shape if shape is None else tuple(shape), dtype=torch_dtype(entry.dtype), device="cpu")


def read(source: Readable, reads: Sequence[Read], *, verify_hash: bool = False) -> None:
    """Read tensors in parallel, each into its place.

    Args:
        source: the store.
        reads: what to read.
        verify_hash: also check every chunk's BLAKE3, not only the checksum of what is stored.

    Raises:
        NotFound: a chunk is missing. Corrupt: a chunk is damaged. Targets may be partly written.
    """
    # Of a tensor that is spread, only what overlaps is fetched, when it is read.
    source.bring(one.entry for one in reads if not is_distributed(one.out))
    mine = [LocalRead(one.entry, *held(one.out)) for one in reads]
    try:
        read_local(source, mine, verify_hash=verify_hash)
    finally:
        mark_written(*(one.out for one in reads))


def read_local(source: Readable, reads: Sequence[LocalRead], *, verify_hash: bool = False) -> None:
    """Read boxes of tensors in parallel, each into its place. What has to be fetched is fetched when it is read.

    Args:
        source: the store.
        reads: what to read.
        verify_hash: as for :func:`read`.

    Raises:
        NotFound: a chunk is missing. Corrupt: a chunk is damaged. Targets may be partly written.
    """
    direct: list[Copy] = []
    indirect: list[LocalRead] = []
    for one in reads:
        view = writable_bytes(one.tensor) if dtype_name(one.tensor.dtype) == one.entry.dtype else None
        if view is None:
            indirect.append(one)
        else:
            direct += planned(one.entry, one.tensor.shape, one.parts, view)
    try:
        source.read_copies(direct, verify_hash=verify_hash)
    finally:
        mark_written(*(one.tensor for one in reads if one.parts is not None))
    for batch in _batches(indirect):
        _read_by_way_of_temporaries(source, batch, verify_hash=verify_hash)


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


def _read_by_way_of_temporaries(source: Readable, batch: Sequence[LocalRead], *, verify_hash: bool) -> None:
    temporaries = [empty_for(one.entry, one.tensor.shape) for one in batch]
    copies: list[Copy] = []
    for one, temporary in zip(batch, temporaries, strict=True):
        view = writable_bytes(temporary)
        if view is not None:  # else there is nothing in it
            copies += planned(one.entry, temporary.shape, one.parts, view)
    source.read_copies(copies, verify_hash=verify_hash)
    for one, temporary in zip(batch, temporaries, strict=True):
        if temporary.dtype == one.tensor.dtype:
            fill(one.tensor, temporary)
        else:
            one.tensor.detach().copy_(temporary)


def _batches(reads: Sequence[LocalRead]) -> Iterator[list[LocalRead]]:
    batch: list[LocalRead] = []
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
