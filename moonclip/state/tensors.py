"""Tensors as bytes: describing one, copying it out in C order, making one over a buffer, writing one in place.

Bytes are moved as integers of the element's width: for some dtypes (the sub-byte ones) torch has no copy, and no
dtype may have its NaNs quieted on the way. Plain strided tensors only; see ``composites`` for all others.
"""

from dataclasses import dataclass
from math import prod
from typing import Any, Final

import numpy as np
import torch

from store.errors import Incompatible
from store.format.dtypes import DTYPES
from store.ids import Buffer

_TORCH_DTYPES: Final[dict[str, torch.dtype]] = {
    name: found for name in DTYPES if isinstance(found := vars(torch).get(name), torch.dtype)
}
DTYPE_NAMES: Final[dict[torch.dtype, str]] = {found: name for name, found in _TORCH_DTYPES.items()}
"""Stored name of each of torch's dtypes; quantized ones are missing, being kept as integers with a scale."""

_COMPLEX: Final = frozenset(found for found in DTYPE_NAMES if found.is_complex)
_KNOWN_TO_MEMORYVIEWS: Final = frozenset(
    found for name, found in _TORCH_DTYPES.items() if name in np.sctypeDict and not found.is_complex
)
_WORDS: Final = {1: torch.uint8, 2: torch.int16, 4: torch.int32, 8: torch.int64, 16: torch.complex128}
"""Dtype that elements of so many bytes are moved as."""


@dataclass(slots=True, eq=False)
class TensorSource:
    """One tensor to be captured. Compared by identity: names that share a source are tied.

    Attributes:
        tensor: plain, strided, on any device; what it aliases is the caller's memory.
        dtype: stored name.
        shape: sizes.
        size_bytes: bytes in C order, of the view only, whatever the storage holds.
        address: where they lie, if host memory holds them in C order just as they are to be stored; else 0.
        stored: narrower dtype to store them in; ``None`` for their own.
        by_row: whether each row gets a scale of its own then.
        part_of: the tensor of which it is a part, in the same memory; ``None`` if it is all there is.
    """

    tensor: torch.Tensor
    dtype: str
    shape: tuple[int, ...]
    size_bytes: int
    address: int
    stored: str | None = None
    by_row: bool = False
    part_of: torch.Tensor | None = None

    @property
    def whole(self) -> torch.Tensor:
        """The tensor that its owner has."""
        return self.tensor if self.part_of is None else self.part_of

    def copy_into(self, out: memoryview) -> None:
        """Copy the elements in C order.

        Args:
            out: writable bytes, exactly ``size_bytes`` of them; not kept.

        Cost: one pass without the GIL. A tensor on a device is copied synchronously.
        """
        if out.nbytes != self.size_bytes:
            raise Incompatible(f"{out.nbytes} bytes of room for a tensor of {self.size_bytes}")
        if not self.size_bytes:
            return
        words = words_of(self.tensor)
        torch.frombuffer(out, dtype=words.dtype).view(self.shape).copy_(words)


def is_tensor_like(obj: object) -> bool:
    """Whether this is a tensor, an array, or an object that offers itself as one (DLPack or ``__array__``)."""
    if isinstance(obj, torch.Tensor | np.ndarray):
        return True
    kind = type(obj)
    offers = hasattr(kind, "__dlpack__") or hasattr(kind, "__array__")
    # NumPy's scalars are values. What has keys is a labelled array, and would lose its labels.
    return offers and not isinstance(obj, np.generic) and hasattr(obj, "shape") and not hasattr(kind, "keys")


def dtype_name(dtype: torch.dtype) -> str:
    """Stored name of a dtype.

    Raises:
        Incompatible: it has none.
    """
    try:
        return DTYPE_NAMES[dtype]
    except KeyError:
        raise Incompatible(f"{dtype} has no stored form", dtype=str(dtype)) from None


def torch_dtype(name: str) -> torch.dtype:
    """Inverse of :func:`dtype_name`.

    Raises:
        Incompatible: the installed torch has no such dtype.
    """
    try:
        return _TORCH_DTYPES[name]
    except KeyError:
        raise Incompatible(f"torch {torch.__version__} has no dtype {name!r}; use a newer torch", dtype=name) from None


def tensor_from(dtype: str, shape: tuple[int, ...], buffer: Buffer) -> torch.Tensor:
    """A CPU tensor over a buffer.

    Args:
        dtype: stored name.
        shape: sizes.
        buffer: its elements in C order. A writable buffer becomes the tensor's memory and is kept alive by it, a
            read-only one is copied.

    Raises:
        Incompatible: the buffer's length does not fit, or torch has no such dtype.
    """
    found = torch_dtype(dtype)
    view = memoryview(buffer)
    if view.nbytes != prod(shape) * found.itemsize:
        raise Incompatible(f"{view.nbytes} bytes are no {dtype} tensor of shape {shape}")
    if not view.nbytes:
        return torch.empty(shape, dtype=found, device="cpu")
    return torch.frombuffer(bytearray(view) if view.readonly else buffer, dtype=found).view(shape)


def writable_bytes(tensor: torch.Tensor) -> memoryview | None:
    """Memory of a tensor as writable bytes, for loading in place; call :func:`mark_written` afterwards.

    Returns:
        A view (format ``B``) that keeps the tensor's memory alive, or ``None`` unless the tensor is plain, on the CPU,
        contiguous and not empty: then use :func:`fill`.
    """
    plain = tensor.layout is torch.strided and tensor.is_cpu and tensor.dtype in DTYPE_NAMES
    if not plain or not tensor.is_contiguous() or tensor.is_conj() or tensor.is_neg() or not tensor.numel():
        return None
    array: Any = tensor.detach()
    if tensor.dtype in _KNOWN_TO_MEMORYVIEWS:  # which saves two views, as much as all else takes
        return memoryview(array.numpy()).cast("B")
    return memoryview(array.view(-1).view(torch.uint8).numpy())


def lies_in_c_order(tensor: torch.Tensor) -> bool:
    """Whether host memory holds a plain tensor's bytes in C order, just as they are to be stored."""
    if not tensor.is_cpu or not tensor.is_contiguous() or tensor.is_neg():
        return False
    return tensor.dtype not in _COMPLEX or not tensor.is_conj()


def overlaps_itself(tensor: torch.Tensor) -> bool:
    """Whether several elements of a strided tensor share memory, as those of an expanded view do."""
    if tensor.is_contiguous():
        return False
    reach = 0  # of the dims so far, in elements
    for stride, size in sorted(zip(tensor.stride(), tensor.shape, strict=True)):
        if not size:
            return False
        if size > 1 and stride <= reach:
            return _has_equal_addresses(tensor)
        reach += (size - 1) * stride
    return False


def _has_equal_addresses(tensor: torch.Tensor) -> bool:
    """The same, exactly: dims may interleave without sharing anything."""
    if 0 in tensor.shape:
        return False
    reach = sum((size - 1) * stride for size, stride in zip(tensor.shape, tensor.stride(), strict=True))
    if reach + 1 < tensor.numel():
        return True
    addresses = torch.arange(reach + 1, device="cpu").as_strided(tensor.shape, tensor.stride())
    return len(addresses.reshape(-1).bincount().nonzero()) < tensor.numel()


def version_of(tensor: torch.Tensor) -> int:
    """The counter that operations in place raise, which torch keeps for autograd. Inference tensors have none."""
    return tensor._version  # noqa: SLF001 - torch's documentation names it, and there is no other door


def mark_written(*tensors: torch.Tensor) -> None:
    """Tell autograd that tensors' memory was changed behind its back, as an in-place operation would."""
    torch.autograd.graph.increment_version([tensor for tensor in tensors if not tensor.is_inference()])


def fill(tensor: torch.Tensor, loaded: torch.Tensor) -> None:
    """Copy ``loaded`` into ``tensor``'s memory, bit for bit, whatever its strides or device.

    Args:
        tensor: plain and strided; may be a leaf that requires gradients.
        loaded: of its shape and dtype.

    Raises:
        Incompatible: shape or dtype differ, or several elements of ``tensor`` share memory (an expanded view).
    """
    if tensor.dtype != loaded.dtype or tensor.shape != loaded.shape:
        found = f"{loaded.dtype} {tuple(loaded.shape)}"
        raise Incompatible(f"a tensor of {tensor.dtype} {tuple(tensor.shape)} cannot take one of {found}")
    target = tensor.detach()
    try:
        if target.is_conj() or target.is_neg():  # resolving these would write to a copy
            target.copy_(loaded)
        else:
            words_of(target).copy_(words_of(loaded))
    except RuntimeError as error:
        raise Incompatible(f"cannot be written in place ({error})") from error


def words_of(tensor: torch.Tensor) -> torch.Tensor:
    """A plain tensor's elements as integers, detached; shares memory unless a conjugation or negation is pending."""
    plain = tensor.detach() if tensor.requires_grad else tensor
    if plain.is_conj() or plain.is_neg():
        plain = plain.resolve_conj().resolve_neg()
    return plain.view(_WORDS[plain.dtype.itemsize])
