"""Tensors in a pickle of ``torch.save`` as descriptions: what each is, and where in which storage. Nothing is run.

It is read by an unpickler that knows how to describe a tensor, and beside that only what pickles need nothing for.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Callable, Mapping
from typing import Any, Final, NamedTuple

import torch

from . import pickling
from .dcpmetadata import sizes_of

_STORAGES: Final[Mapping[str, str]] = {
    "BFloat16Storage": "bfloat16",
    "BoolStorage": "bool",
    "ByteStorage": "uint8",
    "CharStorage": "int8",
    "ComplexDoubleStorage": "complex128",
    "ComplexFloatStorage": "complex64",
    "DoubleStorage": "float64",
    "FloatStorage": "float32",
    "HalfStorage": "float16",
    "IntStorage": "int32",
    "LongStorage": "int64",
    "ShortStorage": "int16",
}


class ToldStorage(NamedTuple):
    """What holds a tensor's elements: by which key, and of which dtype, if it says so."""

    key: str
    dtype: str | None


class ToldTensor(NamedTuple):
    """A tensor as its pickle tells of it; ``start`` and ``strides`` count elements."""

    storage: ToldStorage
    dtype: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def described(data: bytes) -> object:
    """What a pickle holds, tensors as their descriptions; ``None`` if more than that is needed to read it.

    A pickle that is damaged raises whatever comes of that.
    """
    pickling.require_small(data)
    try:
        return _Describing(io.BytesIO(data)).load()
    except _UnknownError:
        return None


class _UnknownError(Exception):
    """The pickle says more than is understood here."""


class _Describing(pickle.Unpickler):
    """Makes descriptions in the place of tensors and storages."""

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _BUILT:
            return _BUILT[module, name]
        if module == "torch" and name in _STORAGES:
            return _Named(_STORAGES[name])
        if module == "torch" and isinstance(vars(torch).get(name), torch.dtype):
            return _Named(name)
        raise _UnknownError

    def persistent_load(self, pid: Any, /) -> ToldStorage:
        kind, named, key, _, _ = pid
        if kind != "storage" or type(key) is not str or not isinstance(named, _Named):
            raise _UnknownError
        return ToldStorage(key, named.dtype)


class _Rebuilding(NamedTuple):
    """What a pickle may call. A function itself it could alter."""

    function: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class _Named(NamedTuple):
    """A dtype, or a storage that has one."""

    dtype: str | None


def _tensor(storage: ToldStorage, name: str | None, start: int, shape: Any, strides: Any, metadata: Any) -> ToldTensor:
    if metadata or name is None:
        raise _UnknownError  # a conjugation or negation is pending
    return ToldTensor(storage, name, sizes_of((start,))[0], sizes_of(shape), sizes_of(strides))


def _plain(
    storage: ToldStorage, start: int, shape: Any, strides: Any, _grad: Any, _hooks: Any, more: Any = None
) -> ToldTensor:
    return _tensor(storage, storage.dtype, start, shape, strides, more)


def _typed(
    storage: ToldStorage, start: int, shape: Any, strides: Any, _grad: Any, _hooks: Any, named: _Named, more: Any = None
) -> ToldTensor:
    return _tensor(storage, named.dtype, start, shape, strides, more)


def _encoded(text: Any, encoding: Any) -> bytes:
    """Bytes, which have no form of their own in the pickles of torch."""
    if type(text) is not str or encoding != "latin1":
        raise _UnknownError
    return text.encode("latin1")


def _parameter(tensor: ToldTensor, _grad: Any, _hooks: Any) -> ToldTensor:
    return tensor


_BUILT: Final[Mapping[tuple[str, str], Callable[..., Any] | _Rebuilding | _Named]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Rebuilding(_plain),
    ("torch._utils", "_rebuild_tensor_v3"): _Rebuilding(_typed),
    ("torch._utils", "_rebuild_parameter"): _Rebuilding(_parameter),
    ("torch.storage", "UntypedStorage"): _Named(None),
    ("collections", "OrderedDict"): OrderedDict,
    ("__builtin__", "set"): set,
    ("_codecs", "encode"): _Rebuilding(_encoded),
}
