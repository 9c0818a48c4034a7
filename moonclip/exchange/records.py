"""One tensor as ``torch.save`` wrote it, in the middle of a file: where its bytes are, without loading it.

``torch.load`` would bring all of it into memory. The zip's directory says where its storage lies, and a pickle of a few
bytes what the storage means; that is read by an unpickler that knows how to describe a tensor and nothing else.
"""

import io
import zipfile
from math import prod
from typing import Any, Final, NamedTuple

from store.disk.files import Files, ReadHandle
from store.errors import Corrupt, MoonclipError
from store.format.dtypes import dtype
from store.strided import c_strides

from ..state.entries import FlatTensor
from ..state.flattening import flatten
from . import pickling
from .dcpmetadata import Place
from .describing import ToldTensor, described
from .ranges import FileRange, Source

_MAX_PICKLE_BYTES: Final = 1 << 20
LOCAL_HEADER_BYTES: Final = 30
_LITTLE: Final = b"little"


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
    record = zipfile.ZipFile(as_file(handle, place))
    pickled = next(info for info in record.infolist() if info.filename.endswith("/data.pkl"))
    folder = pickled.filename.removesuffix("data.pkl")
    if pickled.file_size > _MAX_PICKLE_BYTES or not is_little_endian(record, folder):
        return None
    tensor = described(record.read(pickled))
    if tensor is None:
        return None
    if not isinstance(tensor, ToldTensor):
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
    begin = info.header_offset + LOCAL_HEADER_BYTES + names_bytes(handle, place.offset + info.header_offset) + start
    if begin + size_bytes > place.size_bytes:
        raise damaged(place, "its storage ends outside of it")
    return FileRange(place.path, place.offset + begin, size_bytes)


def is_little_endian(record: zipfile.ZipFile, folder: str) -> bool:
    """Whether a record says so, or is from the time when there was nothing to say."""
    said = [info for info in record.infolist() if info.filename == f"{folder}byteorder"]
    return all(info.file_size == len(_LITTLE) and record.read(info) == _LITTLE for info in said)


def names_bytes(handle: ReadHandle, offset: int) -> int:
    """How long name and extra field of a file in a zip are, where its content begins; they follow the local header."""
    header = handle.pread(offset, LOCAL_HEADER_BYTES)
    return int.from_bytes(header[26:28], "little") + int.from_bytes(header[28:30], "little")


def as_file(handle: ReadHandle, place: Place) -> io.BufferedReader:
    """A run of a file, as a file."""
    return io.BufferedReader(_Slice(handle, place))


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
