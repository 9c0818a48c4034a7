"""Objects through ``torch.save`` and ``torch.load``: never anything that runs when it is read."""

import errno
import pickle
import pickletools
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import IO, Any, Final, cast

import torch

from store.disk.files import BlockWriter
from store.errors import Corrupt, Incompatible, MoonclipError, Unsafe

from ..state.composites import PLAIN_CLASSES

_ZIP: Final = b"PK"
_PICKLE: Final = b"\x80"
"""What files begin with that torch has written since version 1.6, and before."""

_MEMOIZING: Final = frozenset({"PUT", "BINPUT", "LONG_BINPUT"})

_MAX_NODES: Final = 1 << 24
_MAX_UNFOLDED: Final = 4
"""A state may hold so many values however often it tells them, and so many times more than it tells."""

_MAX_REPEATED_BYTES: Final = 1 << 30
"""Tensors may have so many bytes beyond those of their storages, and ``_MAX_UNFOLDED`` times what these have: a mask or
a bias that was expanded."""

_REASON_LETTERS: Final = 120
"""Of torch's reasons, which may quote what it has found."""


def save(blocks: BlockWriter, obj: object, what: str) -> None:
    """Write an object behind what has been written so far.

    Args:
        blocks: the file.
        obj: tensors, values and containers.
        what: named in errors.

    Raises:
        Incompatible: pickle has no form for something in it.
        OSError: writing failed.
    """
    sink = _Sink(blocks)
    try:
        torch.save(obj, cast(IO[bytes], sink))
    except Exception as error:
        if sink.failure is not None:  # of which torch, on its way out, makes something else
            raise sink.failure from None
        if not isinstance(error, pickle.PicklingError | TypeError | AttributeError | LookupError | RuntimeError):
            raise
        raise Incompatible(f"{what} cannot be written by torch.save: {error}", name=what) from error


def load(source: Path | IO[bytes], what: str) -> Any:
    """Read what ``torch.save`` wrote, if nothing has to be run for that.

    Args:
        source: a file, whose tensors are mapped and not read yet; or one that is open.
        what: named in errors.

    Raises:
        Unsafe: it holds more than tensors, values and containers.
        Corrupt: it cannot be read.
        OSError: reading failed.
    """
    try:
        found = _mapped(source, what) if isinstance(source, Path) else _read(source, what)
        require_bounded(found, what)
        return found
    except MoonclipError:
        raise
    except pickle.UnpicklingError as error:
        raise Unsafe(
            f"{what} holds more than tensors and plain values ({_reason(error)}), and reading that runs code; nothing"
            " was run. If you trust it, load it with torch.load(…, weights_only=False), and save what that gives",
            name=what,
        ) from error
    except Exception as error:  # zips, pickles and what they hold may raise anything
        if isinstance(error, OSError) and error.errno != errno.EINVAL:  # which a zip's reader gets by seeking nowhere
            raise
        raise Corrupt(f"{what} is not what torch.save writes: {error!r:.200}", name=what) from error


def require_small(data: bytes) -> None:
    """Check that a pickle takes no more memory than its length lets expect, before it is unpickled.

    A few bytes can ask Python for a table of 2³² places, or for a string as long.

    Raises:
        ValueError: it does, or is no pickle.
    """
    for opcode, argument, _ in pickletools.genops(data):  # which notices strings that are not there
        if opcode.name in _MEMOIZING and int(argument or 0) > len(data):
            raise ValueError(f"a pickle of {len(data)} bytes with {argument} places")


def _mapped(path: Path, what: str) -> Any:
    with path.open("rb") as file:
        is_zip = _is_zip(file, what)
    return torch.load(path, map_location="cpu", weights_only=True, mmap=is_zip or None)


def _read(file: IO[bytes], what: str) -> Any:
    _is_zip(file, what)
    return torch.load(file, map_location="cpu", weights_only=True)


def _is_zip(file: IO[bytes], what: str) -> bool:
    """Whether it is a zip; it is read from its beginning next.

    Raises:
        Corrupt: it is neither that nor a pickle; or its content is compressed, and may be of any size unpacked.
    """
    start = file.read(2)
    if start != _ZIP and start[:1] != _PICKLE:
        raise Corrupt(f"{what} is not what torch.save writes: it begins with {start!r}", name=what)
    if start == _ZIP and any(info.compress_type != zipfile.ZIP_STORED for info in zipfile.ZipFile(file).infolist()):
        raise Corrupt(
            f"{what} is not what torch.save writes: its content is compressed; unpack it, and zip it without",
            name=what,
        )
    file.seek(0)
    return start == _ZIP


def require_bounded(obj: object, what: str) -> None:
    """Refuse a file that is small because it tells most of its content many times: stored, each is written out.

    Raises:
        Corrupt: it would become that large.
    """
    counts: dict[int, int] = {}
    held = 0
    tensors: dict[int, torch.Tensor] = {}

    def count(node: object) -> int:
        nonlocal held
        if not isinstance(node, dict | list | tuple | set | frozenset):
            if isinstance(node, torch.Tensor):
                tensors[id(node)] = node
            return 1
        if id(node) not in counts:
            held += len(node)
            counts[id(node)] = 0  # in a cycle, which is refused where it is to be stored
            counts[id(node)] = 1 + sum(map(count, node.values() if isinstance(node, dict) else node))
        return counts[id(node)]

    if (found := count(obj)) > _MAX_UNFOLDED * held + _MAX_NODES:
        raise Corrupt(f"{what} is not what training writes: {held:,} values that unfold to {found:,}", name=what)
    _require_stored(tensors.values(), what)


def _require_stored(tensors: Iterable[torch.Tensor], what: str) -> None:
    """Refuse tensors of which the storages hold next to nothing.

    Raises:
        Corrupt: they would become that large.
    """
    held: dict[int, int] = {}
    repeated_bytes = 0
    for tensor in tensors:
        if type(tensor) in PLAIN_CLASSES and tensor.layout is torch.strided and not tensor.is_nested:
            storage = tensor.untyped_storage()
            held[storage.data_ptr()] = storage.nbytes()
            repeated_bytes += max(0, tensor.numel() * tensor.element_size() - storage.nbytes())
    held_bytes = sum(held.values())
    if repeated_bytes > _MAX_UNFOLDED * held_bytes + _MAX_REPEATED_BYTES:
        raise Corrupt(
            f"{what} is not what training writes: its tensors tell {held_bytes:,} bytes and {repeated_bytes:,} more of"
            " them again",
            name=what,
        )


def _reason(error: Exception) -> str:
    """What torch does not allow; the rest of its message tells how to allow it."""
    text = str(error).partition("WeightsUnpickler error: ")[2] or str(error)
    told = [line for line in text.splitlines() if line.strip()] or [repr(error)]
    lines = [line for line in told if "GLOBAL" in line] or told
    return lines[0].partition(" was not")[0][:_REASON_LETTERS]


@dataclass(slots=True)
class _Sink:
    """Blocks as a file to write to; ``failure`` is why that ended, if it did."""

    blocks: BlockWriter
    failure: OSError | None = None

    def write(self, data: Any) -> int:
        try:
            self.blocks.write([data])
        except OSError as error:
            self.failure = error
            raise
        return memoryview(data).nbytes

    def flush(self) -> None:
        """Nothing: the file is made durable when it is finished."""
