"""Unpickling the ``.metadata`` of ``torch.distributed.checkpoint``: nothing is run, and nothing altered.

Unpickling calls whatever a pickle names, and lets it set attributes of that, even where it is a class. So this one may
name the few classes of which such metadata is made, and gets for each one of ours, which cannot be altered. What they
hold is for the reader to check.
"""

import io
import pickle
from collections import OrderedDict
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import torch
from torch.distributed.checkpoint import filesystem, metadata

from store.errors import Corrupt, MoonclipError, Unsafe

from .pickling import require_small


def unpickled(path: Path, data: bytes) -> "ToldMetadata":
    """What a file says, none of it checked.

    Args:
        path: the file, for messages.
        data: its content.

    Raises:
        Unsafe: it asks for something that such metadata is not made of.
        Corrupt: it cannot be read, or is something else.
    """
    try:
        require_small(data)
        found = _Unpickler(io.BytesIO(data), path).load()
    except MoonclipError:
        raise
    except Exception as error:  # a pickle may raise anything
        raise damaged(path, repr(error)) from error
    if not isinstance(found, ToldMetadata):
        raise damaged(path, f"it is a {type(found).__name__}")
    return found


def damaged(path: Path, why: str) -> Corrupt:
    """The error for a file that is no such metadata."""
    return Corrupt(f"{path} is no metadata of torch.distributed.checkpoint: {why}", path=str(path))


class _Sealed(type):
    """A class that a pickle cannot alter. Of any other it could, and so change what all of the process does."""

    def __setattr__(cls, name: str, value: Any, /) -> None:
        raise AttributeError(f"{cls.__name__} cannot be altered")


class _Told(metaclass=_Sealed):
    """Something of which the pickle sets the attributes: each stands for a class of torch, all of them unchecked."""


class ToldMetadata(_Told):
    """All that a checkpoint is."""

    state_dict_metadata: Any
    planner_data: Any = None
    storage_data: Any = None


class ToldTensor(_Told):
    """A tensor: its properties, size, and chunks."""


class ToldObject(_Told):
    """Something else than a tensor."""


class ToldProperties(_Told):
    """Of a tensor: its dtype, and more that does not matter."""

    def __setstate__(self, state: Any) -> None:
        self.dtype = state[0]


class ToldIndex(_Told):
    """Key of a place: a name, and the offsets of a box of a tensor."""

    offset: tuple[int, ...] | None = None

    def __init__(self, fqn: str, offset: tuple[int, ...] | None = None) -> None:
        self.fqn, self.offset = fqn, offset

    def __eq__(self, other: object) -> bool:
        return isinstance(other, ToldIndex) and (self.fqn, self.offset) == (other.fqn, other.offset)

    def __hash__(self) -> int:
        return hash((self.fqn, self.offset))


class _Ignored(_Told):
    """What is made with some arguments, and not looked at."""

    def __init__(self, *_: Any) -> None:
        pass


_ALLOWED: Final[Mapping[tuple[str, str], Any]] = {
    (metadata.__name__, "BytesStorageMetadata"): ToldObject,
    (metadata.__name__, "ChunkStorageMetadata"): _Told,
    (metadata.__name__, "Metadata"): ToldMetadata,
    (metadata.__name__, "MetadataIndex"): ToldIndex,
    (metadata.__name__, "StorageMeta"): _Ignored,
    (metadata.__name__, "TensorProperties"): ToldProperties,
    (metadata.__name__, "TensorStorageMetadata"): ToldTensor,
    (metadata.__name__, "_MEM_FORMAT_ENCODING"): _Ignored,
    (filesystem.__name__, "_StorageInfo"): _Told,
    ("torch", "Size"): torch.Size,
    ("collections", "OrderedDict"): OrderedDict,
    **{("pathlib", f"{pure}{kind}Path"): _Ignored for pure in ("", "Pure") for kind in ("", "Posix", "Windows")},
    **{("pathlib._local", f"{pure}{kind}Path"): _Ignored for pure in ("", "Pure") for kind in ("", "Posix", "Windows")},
}
"""By what a pickle calls them. Those of C, torch's and Python's, cannot be altered either."""

_LAYOUTS: Final = {str(layout): layout for layout in vars(torch).values() if isinstance(layout, torch.layout)}


class _Unpickler(pickle.Unpickler):
    """Finds what metadata is made of, and nothing else."""

    def __init__(self, file: io.BytesIO, path: Path) -> None:
        super().__init__(file)
        self._path = path

    def find_class(self, module: str, name: str, /) -> Any:
        if (module, name) in _ALLOWED:
            return _ALLOWED[module, name]
        if (module, name) == ("torch.serialization", "_get_layout"):
            return _LAYOUTS.__getitem__
        if module == "torch" and isinstance(dtype := vars(torch).get(name), torch.dtype):
            return dtype
        raise Unsafe(
            f"{self._path} asks for {module}.{name}, which no metadata of torch.distributed.checkpoint needs; nothing"
            " was run. Get the checkpoint from somebody whom you trust",
            path=str(self._path),
            name=f"{module}.{name}",
        )
