"""NumPy arrays as tensors, and whatever else offers itself as an array."""

from collections.abc import Mapping
from typing import Any, Final

import numpy as np
import torch

from store.errors import Corrupt, Incompatible

from .classes import dotted
from .containers import Parts
from .policy import Policy
from .refusals import Refused
from .tensors import DTYPE_NAMES

_NUMERIC_KINDS: Final = "biufc"


def split_array(array: Any) -> Parts:
    """Numbers keep their dtype, so that they share chunks with tensors; text, dates and records become bytes.

    Raises:
        Refused: it holds objects, or is more than an array.
    """
    if type(array) not in (np.ndarray, np.memmap):
        raise Refused(Incompatible, f"a {type(array).__name__} is more than its values; convert it with np.asarray")
    dtype = array.dtype
    if dtype.hasobject or dtype.isbuiltin == 2:
        raise Refused(Incompatible, f"an array of dtype {dtype} cannot be kept; convert it to numbers or a list")
    descriptor = np.lib.format.dtype_to_descr(dtype)
    return Parts("ndarray", {"data": _array_tensor(np.asarray(array))}, descriptor)


def _array_tensor(array: Any) -> torch.Tensor:
    """A tensor of an array's values, in its memory where that is plain C order and writable."""
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=not array.flags.writeable)
    number = _number_dtype(array.dtype)
    shape = array.shape if number else (*array.shape, array.dtype.itemsize)
    if not little.nbytes:
        return torch.empty(shape, dtype=number or torch.uint8, device="cpu")
    return torch.frombuffer(little.reshape(-1).view(np.uint8), dtype=number or torch.uint8).view(shape)


def _number_dtype(dtype: Any) -> torch.dtype | None:
    """Torch's dtype of the same name, for numbers."""
    found = vars(torch).get("bool" if dtype.kind == "b" else dtype.name) if dtype.kind in _NUMERIC_KINDS else None
    return found if found in DTYPE_NAMES else None


def build_array(fields: Mapping[str, Any], info: Any, policy: Policy) -> object:
    """Inverse of :func:`split_array`; the result shares the tensor's memory where it can.

    Raises:
        Refused: the tensor's dtype or shape does not fit the array's dtype.
    """
    dtype = np.lib.format.descr_to_dtype(info)
    data = fields["data"]
    number = _number_dtype(dtype)
    if dtype.hasobject or data.dtype != (number or torch.uint8) or not (number or data.shape[-1] == dtype.itemsize):
        raise Refused(Corrupt, f"{data.dtype} {tuple(data.shape)} is no array of {dtype}")
    shape = tuple(data.shape) if number else tuple(data.shape[:-1])
    if not data.numel():
        return np.empty(shape, dtype)
    little = data.contiguous().view(-1).view(torch.uint8).numpy().view(dtype.newbyteorder("<"))
    return little.reshape(shape).astype(dtype, copy=False)


def foreign_tensor(obj: Any) -> torch.Tensor:
    """A tensor of an array-like object's values, in its memory where it lets us.

    Raises:
        Refused: the object does not give its values away.
    """
    text = dotted((type(obj).__module__, type(obj).__qualname__))
    try:
        if hasattr(obj, "__dlpack__"):
            return torch.utils.dlpack.from_dlpack(obj)
        return _array_tensor(np.asarray(obj))
    except Exception as error:  # conversions of other libraries raise anything
        raise Refused(Incompatible, f"{text} cannot be read as a tensor ({error}); convert it first") from error
