"""One tensor as ``torch.save`` wrote it, in the middle of a file: where its bytes are, without loading it.

``torch.load`` would bring all of it into memory. The zip's directory says where its storage lies, and a pickle of a few
bytes what the storage means; that is read by an unpickler that knows how to describe a tensor and nothing else.
"""

import io
import pickle
import zipfile
from collections import OrderedDict
from collections.abc import Callable, Mapping
from math import prod
from typing import Any, Final, NamedTuple

import torch

from store.disk.files import Files, ReadHandle
from store.errors import Corrupt, MoonclipError
from store.format.dtypes import dtype
from store.strided import c_strides

from ..state.entries import FlatTensor
from ..state.flattening import flatten
from . import pickling
from .dcpmetadata import Place, sizes_of
from .ranges import FileRange, Source

_MAX_PICKLE_BYTES: Final = 1 << 20
_LOCAL_HEADER_BYTES: Final = 30
_LITTLE: Final = b"little"
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


class _Storage(NamedTuple):
    """What holds a tensor's elements: by which key, and of which dtype, if it says so."""

    key: str
    dtype: str | None


class _Tensor(NamedTuple):
    """A tensor as its pickle tells of it; ``start`` and ``strides`` count elements."""

    storage: _Storage
    dtype: str
    start: int
    shape: tuple[int, ...]
    strides: tuple[int, ...]


def source_of(place: Place, dtype_name: str, shape: tuple[int, ...], files: Files) -> Source:
    """Where a tensor's bytes are, or how else to come by them.

    Args:
        place: where ``torch.save`` wrote it.
        dtype_name: what it has to be; stored name.
        shape: what sizes it has to have.
        files: does the I/O.

    Raises:
        Corrupt: it is no such tensor.
        OSError: it cannot be read.
    """
    with files.open_read(place.path) as handle:
        try:
            found = _range(place, handle, dtype_name, shape)
        except MoonclipError:
            raise
        except Exception as error:  # zips and pickles may raise anything
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's own
            raise damaged(place, repr(error)) from error
    return found or Whole(place, dtype_name, shape)


class Whole(NamedTuple):
    """A tensor that does not lie in C order, or is told of in some way that is not known here: torch reads it.

    Attributes:
        place: where it is.
        dtype: what it has to be.
        shape: what sizes it has to have.
    """

    place: Place
    dtype: str
    shape: tuple[int, ...]

    @property
    def size_bytes(self) -> int:
        """Bytes of its elements."""
        return prod(self.shape) * dtype(self.dtype).item_bytes

    def read(self, files: Files) -> memoryview:
        """Its elements in C order, all of them.

        Raises:
            Corrupt: it is no such tensor.
            Unsafe: it is something else, that runs code when it is read.
            Incompatible: it is something else, that cannot be stored.
            OSError: reading failed.
        """
        loaded = loaded_from(self.place, files, self.place.path.name)
        entry = flatten(loaded, item=self.place.path.name).entries[""]
        if not isinstance(entry, FlatTensor) or (entry.source.dtype, entry.source.shape) != (self.dtype, self.shape):
            raise damaged(self.place, f"it holds no {self.dtype} of shape {list(self.shape)}")
        data = memoryview(bytearray(self.size_bytes))
        entry.source.copy_into(data)
        return data


def loaded_from(place: Place, files: Files, what: str) -> Any:
    """What ``torch.save`` wrote there.

    Raises:
        Unsafe: it holds more than tensors, values and containers.
        Corrupt: it cannot be read.
        OSError: reading failed.
    """
    with files.open_read(place.path) as handle:
        data = handle.pread(place.offset, place.size_bytes)
    return pickling.load(io.BytesIO(data), what)


def damaged(place: Place, why: str) -> Corrupt:
    """The error for something that is not what ``torch.save`` writes."""
    return Corrupt(f"{place.path} holds no tensor of torch.save at byte {place.offset}: {why}", path=str(place.path))


def _range(place: Place, handle: ReadHandle, dtype_name: str, shape: tuple[int, ...]) -> FileRange | None:
    """Where its elements lie in the file, in C order; ``None`` if that cannot be told."""
    record = zipfile.ZipFile(io.BufferedReader(_Slice(handle, place)))
    pickled = next(info for info in record.infolist() if info.filename.endswith("/data.pkl"))
    folder = pickled.filename.removesuffix("data.pkl")
    if pickled.file_size > _MAX_PICKLE_BYTES or not _is_little_endian(record, folder):
        return None
    tensor = _described(record.read(pickled))
    if tensor is None:
        return None
    if not isinstance(tensor, _Tensor):
        raise damaged(place, f"it is a {type(tensor).__name__}")
    if (tensor.dtype, tensor.shape) != (dtype_name, shape):
        raise damaged(place, f"a {tensor.dtype} of shape {list(tensor.shape)}, not a {dtype_name} of {list(shape)}")
    if tensor.strides != c_strides(shape) or tensor.storage.dtype not in {None, tensor.dtype}:
        return None
    info = record.getinfo(f"{folder}data/{tensor.storage.key}")
    item_bytes = dtype(dtype_name).item_bytes
    start, size_bytes = tensor.start * item_bytes, prod(shape) * item_bytes
    if info.compress_type != zipfile.ZIP_STORED or not 0 <= start <= start + size_bytes <= info.file_size:
        raise damaged(place, f"its storage has {info.file_size} bytes")
    begin = info.header_offset + _LOCAL_HEADER_BYTES + _names_bytes(handle, place.offset + info.header_offset) + start
    if begin + size_bytes > place.size_bytes:
        raise damaged(place, "its storage ends outside of it")
    return FileRange(place.path, place.offset + begin, size_bytes)


def _is_little_endian(record: zipfile.ZipFile, folder: str) -> bool:
    """Whether a record says so, or is from the time when there was nothing to say."""
    said = [info for info in record.infolist() if info.filename == f"{folder}byteorder"]
    return all(info.file_size == len(_LITTLE) and record.read(info) == _LITTLE for info in said)


def _names_bytes(handle: ReadHandle, offset: int) -> int:
    """How long name and extra field of a file in a zip are, where its content begins; they follow the local header."""
    header = handle.pread(offset, _LOCAL_HEADER_BYTES)
    return int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


class _Slice(io.RawIOBase):
    """A run of a file, as a file."""

    def __init__(self, handle: ReadHandle, place: Place) -> None:
        super().__init__()
        self._handle = handle
        self._place = place
        self._at = 0

    def readable(self) -> bool:
        return True

    def seekable(self) -> bool:
        return True

    def seek(self, offset: int, whence: int = io.SEEK_SET, /) -> int:
        origin = {io.SEEK_SET: 0, io.SEEK_CUR: self._at, io.SEEK_END: self._place.size_bytes}[whence]
        if origin + offset < 0:
            raise OSError("before the beginning")  # what zipfile expects of a file that is too short for a zip
        self._at = origin + offset
        return self._at

    def tell(self) -> int:
        return self._at

    def readinto(self, out: Any, /) -> int:
        view = memoryview(out)
        view = view[: max(0, self._place.size_bytes - self._at)]
        count = self._handle.pread_into(self._place.offset + self._at, view)
        self._at += count
        return count


# --- the pickle -----------------------------------------------------------------------------------------------------


def _described(data: bytes) -> object:
    """What a pickle holds, tensors as their descriptions; ``None`` if more than that is needed to read it."""
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

    def persistent_load(self, pid: Any, /) -> _Storage:
        kind, named, key, _, _ = pid
        if kind != "storage" or type(key) is not str or not isinstance(named, _Named):
            raise _UnknownError
        return _Storage(key, named.dtype)


class _Rebuilding(NamedTuple):
    """What a pickle may call. A function itself it could alter."""

    function: Callable[..., Any]

    def __call__(self, *args: Any) -> Any:
        return self.function(*args)


class _Named(NamedTuple):
    """A dtype, or a storage that has one."""

    dtype: str | None


def _tensor(storage: _Storage, name: str | None, start: int, shape: Any, strides: Any, metadata: Any) -> _Tensor:
    if metadata or name is None:
        raise _UnknownError  # a conjugation or negation is pending
    return _Tensor(storage, name, sizes_of((start,))[0], sizes_of(shape), sizes_of(strides))


def _plain(
    storage: _Storage, start: int, shape: Any, strides: Any, _grad: Any, _hooks: Any, more: Any = None
) -> _Tensor:
    return _tensor(storage, storage.dtype, start, shape, strides, more)


def _typed(
    storage: _Storage, start: int, shape: Any, strides: Any, _grad: Any, _hooks: Any, named: _Named, more: Any = None
) -> _Tensor:
    return _tensor(storage, named.dtype, start, shape, strides, more)


def _parameter(tensor: _Tensor, _grad: Any, _hooks: Any) -> _Tensor:
    return tensor


_BUILT: Final[Mapping[tuple[str, str], Callable[..., Any] | _Rebuilding | _Named]] = {
    ("torch._utils", "_rebuild_tensor_v2"): _Rebuilding(_plain),
    ("torch._utils", "_rebuild_tensor_v3"): _Rebuilding(_typed),
    ("torch._utils", "_rebuild_parameter"): _Rebuilding(_parameter),
    ("torch.storage", "UntypedStorage"): _Named(None),
    ("collections", "OrderedDict"): OrderedDict,
}
