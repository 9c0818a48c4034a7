"""NumPy arrays as the engine's bytes, and back.

NumPy and the engine call dtypes by the same names. Those that NumPy itself lacks (``bfloat16``, the floats of one byte)
are those of the package ``ml_dtypes``, which JAX brings along.
"""

import operator
from contextlib import suppress
from importlib import import_module
from typing import Any, NamedTuple

import numpy as np

from ..errors import Incompatible
from ..format.dtypes import dtype
from ..ids import Buffer
from ..saving.inputs import TensorInput

Array = np.ndarray[Any, np.dtype[Any]]


class RawArray(NamedTuple):
    """An array as a buffer, for whoever has no NumPy array of it.

    Attributes:
        dtype: dtype name, see docs/format.md §4.1: ``"bfloat16"``.
        shape: its shape.
        data: its elements, little-endian, in C order; unaltered until the save is done.
    """

    dtype: str
    shape: tuple[int, ...]
    data: Buffer


def is_array(given: Any) -> bool:
    """Whether something is stored as a tensor: a buffer, a NumPy array or number, or what can be made one."""
    return isinstance(given, RawArray | np.ndarray | np.generic) or hasattr(given, "__array__")


def tensor_input(name: str, position: int, given: Any) -> TensorInput:
    """What is stored of an array: its own memory where that is in C order, else a copy.

    Args:
        name: named in errors.
        position: its place among its siblings.
        given: something of which :func:`is_array` is true.

    Raises:
        Incompatible: a dtype that cannot be stored, or a raw array's shape or buffer that makes none.
    """
    if isinstance(given, RawArray):
        return _raw_input(name, position, given)
    array = _array_of(name, given)
    try:
        known = dtype(array.dtype.name)
    except Incompatible as error:
        raise Incompatible(f"{name}: an array of {array.dtype} cannot be stored; {error}", tensor=name) from None
    little = array.astype(array.dtype.newbyteorder("<"), order="C", copy=False)
    return TensorInput(position, known.name, array.shape, flat_bytes(little))


def _raw_input(name: str, position: int, given: RawArray) -> TensorInput:
    data = memoryview(given.data)
    try:
        shape = tuple(map(operator.index, given.shape))
    except TypeError:
        raise Incompatible(f"{name}: {given.shape!r:.80} is no shape", tensor=name) from None
    if any(size < 0 for size in shape) or not data.c_contiguous:
        raise Incompatible(f"{name}: a buffer in C order and sizes that are not negative are needed", tensor=name)
    return TensorInput(position, given.dtype, shape, data.cast("B") if data.nbytes else memoryview(b""))


def _array_of(name: str, given: Any) -> Array:
    try:
        return np.asarray(given)
    except Exception as error:  # conversions of other libraries raise anything
        kind = type(given)
        raise Incompatible(
            f"{name}: a {kind.__module__}.{kind.__qualname__} cannot be made an array ({error}); convert it first",
            tensor=name,
        ) from error


def flat_bytes(array: Array) -> memoryview:
    """The bytes of an array in C order, as a flat view of its memory."""
    return array.reshape(-1).view(np.uint8).data


def empty(name: str, dtype_name: str, shape: tuple[int, ...]) -> Array:
    """Memory for an array.

    Args:
        name: named in errors.
        dtype_name: its dtype, as the engine calls it.
        shape: its shape.

    Raises:
        Incompatible: NumPy has no such dtype.
    """
    found = _numpy_dtype(dtype_name)
    if found is None:
        raise Incompatible(
            f"{name}: NumPy has no dtype {dtype_name}; install ml_dtypes, or read its bytes with"
            " repo.read_tensor(stored.entry)",
            tensor=name,
            dtype=dtype_name,
        )
    return np.empty(shape, found)


def _numpy_dtype(name: str) -> np.dtype[Any] | None:
    """NumPy's dtype of that name and of as many bytes."""
    found: np.dtype[Any] | None = None
    with suppress(TypeError):
        found = np.dtype(name)
    if found is None:
        with suppress(ImportError, AttributeError):
            found = np.dtype(getattr(import_module("ml_dtypes"), name))
    return found if found is not None and found.itemsize == dtype(name).item_bytes else None
