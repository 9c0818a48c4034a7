"""Tensors from the store into memory.

Straight into their targets where these lie in C order on the host, else by way of temporaries, so many at a time.
"""

from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Final

import torch

from store.format.entries import TensorEntry
from store.limits import MIB
from store.repository import Repository

from .tensors import dtype_name, fill, mark_written, torch_dtype, writable_bytes

_TEMPORARY_BYTES: Final = 256 * MIB
"""Temporaries that are held at once, unless a single tensor is larger."""


@dataclass(frozen=True, slots=True)
class Read:
    """One tensor to read.

    Attributes:
        entry: the tensor as stored.
        out: where it goes; of its shape, and of its dtype or one it is cast to.
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
    direct: list[tuple[TensorEntry, memoryview]] = []
    indirect: list[Read] = []
    for one in reads:
        view = _view(one)
        if view is None:
            indirect.append(one)
        else:
            direct.append((one.entry, view))
    try:
        repo.read_tensors(direct, verify_hash=verify_hash)
    finally:
        mark_written(*(one.out for one in reads))
    for batch in _batches(indirect):
        _read_by_way_of_temporaries(repo, batch, verify_hash=verify_hash)


def _view(one: Read) -> memoryview | None:
    """Memory of the target, if the stored bytes can go there as they are."""
    return writable_bytes(one.out) if dtype_name(one.out.dtype) == one.entry.dtype else None


def _read_by_way_of_temporaries(repo: Repository, batch: Sequence[Read], *, verify_hash: bool) -> None:
    temporaries = [empty_for(one.entry) for one in batch]
    views = [writable_bytes(temporary) for temporary in temporaries]
    wanted = [(one.entry, view) for one, view in zip(batch, views, strict=True) if view is not None]
    repo.read_tensors(wanted, verify_hash=verify_hash)
    for one, temporary in zip(batch, temporaries, strict=True):
        if temporary.dtype == one.out.dtype:
            fill(one.out, temporary)
        else:
            one.out.detach().copy_(temporary)


def _batches(reads: Sequence[Read]) -> Iterator[list[Read]]:
    batch: list[Read] = []
    batch_bytes = 0
    for one in reads:
        if batch and batch_bytes + one.entry.size_bytes > _TEMPORARY_BYTES:
            yield batch
            batch, batch_bytes = [], 0
        batch.append(one)
        batch_bytes += one.entry.size_bytes
    if batch:
        yield batch
