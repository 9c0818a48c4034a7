"""One number for a whole state, to tell whether what was loaded is what was saved, bit for bit."""

import hashlib
from typing import Any

import torch

from ..workloads.run import Items, states, tensors


def digest(items: Items) -> str:
    """Hash of all tensors' bytes, types and shapes, in the order of the state dicts."""
    hashed = hashlib.blake2b(digest_size=16)
    for tensor in tensors(states(items)):
        hashed.update(f"{tensor.dtype}{tuple(tensor.shape)}".encode())
        data: Any = tensor.contiguous().flatten().view(torch.uint8).numpy()
        hashed.update(data)
    return hashed.hexdigest()


def spoil(items: Items) -> None:
    """Overwrite all tensors, so that a load that leaves one out is noticed."""
    for tensor in tensors(states(items)):
        tensor.detach().zero_()
