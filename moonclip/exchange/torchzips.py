"""What ``torch.save`` wrote into a zip: its structure, and where in the file each tensor lies. No tensor is read."""

import zipfile
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

import torch

from store.boxes import whole
from store.disk.files import ReadHandle
from store.errors import MoonclipError
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.strided import c_strides

from ..state.tensors import torch_dtype
from .dcpmetadata import Place
from .describing import ToldTensor, described
from .pickling import require_bounded
from .ranges import FileRange, Part, Ranges
from .records import LOCAL_HEADER_BYTES, as_file, is_little_endian, names_bytes

_MAX_PICKLE_BYTES: Final = 1 << 28
_MAGIC: Final = b"PK"


class NotSimple(Exception):
    """A file in which tensors do not just lie one behind the other. Says why; never leaves the package."""


class Unzipped(NamedTuple):
    """A file's content.

    Attributes:
        state: what was saved, with a tensor on the meta device in the place of each.
        stand_ins: where the tensor is, by the ``id`` of what stands for it.
        starts: the first byte of it in the file, likewise.
        kept: what stands for tensors, so that ids stay theirs.
    """

    state: Any
    stand_ins: dict[int, TensorEntry]
    starts: dict[int, int]
    kept: list[torch.Tensor]


def unzipped(path: Path, ranges: Ranges) -> Unzipped:
    """Read the structure of a file.

    Raises:
        NotSimple: it has to be read by torch, if at all.
        OSError: it cannot be read.
    """
    with ranges.files.open_read(path) as handle:
        try:
            return _Zip(path, handle, ranges).read()
        except (NotSimple, MoonclipError) as error:
            raise NotSimple(str(error)) from error
        except Exception as error:  # zips and pickles may raise anything
            if isinstance(error, OSError) and error.errno is not None:
                raise  # the disk's own
            raise NotSimple(f"it is not what torch.save writes ({error!r:.80})") from error


class _Zip:
    """One file, and what was found in it."""

    def __init__(self, path: Path, handle: ReadHandle, ranges: Ranges) -> None:
        self._path = path
        self._handle = handle
        self._ranges = ranges
        self._records: dict[str, zipfile.ZipInfo] = {}
        self._folder = ""
        self._begins: dict[str, int] = {}
        self._placed: dict[ToldTensor, torch.Tensor] = {}
        self._seen: dict[int, Any] = {}
        self._found = Unzipped(None, {}, {}, [])

    def read(self) -> Unzipped:
        told = self._told()
        require_bounded(told, self._path.name)
        return self._found._replace(state=self._with_stand_ins(told))

    def _told(self) -> object:
        if self._handle.pread(0, len(_MAGIC)) != _MAGIC:
            raise NotSimple("it is no zip, as torch writes since version 1.6")
        place = Place(self._path, 0, self._handle.size)
        archive = zipfile.ZipFile(as_file(self._handle, place))
        self._records = {info.filename: info for info in archive.infolist()}
        if any(info.compress_type != zipfile.ZIP_STORED for info in self._records.values()):
            raise NotSimple("its content is compressed")
        pickled = next((name for name in self._records if name.endswith("/data.pkl")), None)
        if pickled is None or self._records[pickled].file_size > _MAX_PICKLE_BYTES:
            raise NotSimple("it is not what torch.save writes")
        self._folder = pickled.removesuffix("data.pkl")
        if not is_little_endian(archive, self._folder):
            raise NotSimple("its numbers are big-endian")
        told = described(archive.read(pickled))
        if told is None:
            raise NotSimple("it holds more than tensors and plain values, and was not read: that could run code")
        return told

    def _with_stand_ins(self, node: Any) -> Any:
        """The same, with what stands for tensors. Mappings and lists are altered: that keeps their attributes."""
        if isinstance(node, ToldTensor):
            return self._stand_in(node)
        if id(node) in self._seen:
            return self._seen[id(node)]
        if isinstance(node, dict | list):
            self._seen[id(node)] = node
            pairs = node.items() if isinstance(node, dict) else enumerate(node)
            for key, child in list(pairs):
                node[key] = self._with_stand_ins(child)
            return node
        if type(node) is tuple:
            return tuple(self._with_stand_ins(child) for child in node)
        return node

    def _stand_in(self, told: ToldTensor) -> torch.Tensor:
        if told not in self._placed:
            self._placed[told] = made = torch.empty(told.shape, dtype=torch_dtype(told.dtype), device="meta")
            start, size_bytes = self._range(told)
            part = Part(whole(told.shape), FileRange(self._path, start, size_bytes))
            self._found.kept.append(made)
            self._found.stand_ins[id(made)] = self._ranges.entry(0, told.dtype, told.shape, [part])
            self._found.starts[id(made)] = start
        return self._placed[told]

    def _range(self, told: ToldTensor) -> tuple[int, int]:
        """Where a tensor's bytes lie in the file."""
        if not _is_c_order(told.shape, told.strides):
            raise NotSimple("a tensor in it does not lie in C order")
        if told.storage.dtype not in {None, told.dtype}:
            raise NotSimple("a tensor in it has another dtype than its memory")
        item_bytes = dtype(told.dtype).item_bytes
        start, size_bytes = told.start * item_bytes, prod(told.shape) * item_bytes
        key = told.storage.key
        info = self._records.get(f"{self._folder}data/{key}")
        if info is None or start + size_bytes > info.file_size:
            raise NotSimple("a tensor in it lies outside of its memory")
        if key not in self._begins:
            names = names_bytes(self._handle, info.header_offset)
            self._begins[key] = info.header_offset + LOCAL_HEADER_BYTES + names
        begin = self._begins[key] + start
        if begin + size_bytes > self._handle.size:
            raise NotSimple("a tensor in it lies outside of the file")
        return begin, size_bytes


def _is_c_order(shape: tuple[int, ...], strides: tuple[int, ...]) -> bool:
    """Whether elements follow one another: the stride of a dim of one index does not matter."""
    if not prod(shape):
        return True
    pairs = zip(shape, strides, c_strides(shape), strict=True)
    return all(size == 1 or stride == wanted for size, stride, wanted in pairs)
