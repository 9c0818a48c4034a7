"""The safetensors format: a header that says where each tensor is, then their bytes.

Written from a store in bounded memory: the library's own writer wants every tensor there at once. What is read is
checked as the library checks it: tensors neither overlap, nor leave holes, nor reach outside of the file.
"""

import json
from collections.abc import Mapping, Sequence
from math import prod
from pathlib import Path
from typing import Any, Final, NamedTuple

from store.disk.files import BlockWriter, Files
from store.disk.replacing import replacing
from store.errors import Corrupt, Incompatible
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.repository import Repository

from .ranges import MAX_SIZE
from .streaming import WINDOW_BYTES, windows

_DTYPES: Final = {
    "bool": "BOOL",
    "uint8": "U8",
    "int8": "I8",
    "uint16": "U16",
    "int16": "I16",
    "uint32": "U32",
    "int32": "I32",
    "uint64": "U64",
    "int64": "I64",
    "float8_e4m3fn": "F8_E4M3",
    "float8_e4m3fnuz": "F8_E4M3FNUZ",
    "float8_e5m2": "F8_E5M2",
    "float8_e5m2fnuz": "F8_E5M2FNUZ",
    "float8_e8m0fnu": "F8_E8M0",
    "bfloat16": "BF16",
    "float16": "F16",
    "float32": "F32",
    "float64": "F64",
    "complex64": "C64",
}
_NAMES: Final = {code: name for name, code in _DTYPES.items()}

_METADATA: Final = "__metadata__"
_ALIGNMENT: Final = 8
_LENGTH_BYTES: Final = 8
_MAX_HEADER_BYTES: Final = 100_000_000
"""The library's own bound."""


# --- writing --------------------------------------------------------------------------------------------------------


def write(
    path: Path,
    repo: Repository,
    tensors: Mapping[str, TensorEntry],
    metadata: Mapping[str, str],
    window_bytes: int = WINDOW_BYTES,
) -> None:
    """Write tensors into a file, which is replaced if it exists once the new one is complete.

    Args:
        path: the file.
        repo: where the tensors are.
        tensors: by the name that they get. Tied ones are written under each of their names.
        metadata: the file's own metadata.
        window_bytes: how much is read at once.

    Raises:
        Incompatible: a dtype or name that the format lacks; nothing was written.
        NotFound: a chunk is missing.
        Corrupt: a chunk is damaged.
        OSError: the file could not be written.

    Cost: two windows of memory, however large the tensors are.
    """
    require_writable(tensors)
    repo.bring(tensors.values())
    with replacing(repo.files, path) as blocks:
        write_blocks(blocks, repo, tensors, metadata, window_bytes)


def write_blocks(
    blocks: BlockWriter,
    repo: Repository,
    tensors: Mapping[str, TensorEntry],
    metadata: Mapping[str, str],
    window_bytes: int = WINDOW_BYTES,
) -> None:
    """Write tensors, which :func:`require_writable` has seen, into a file that is being written.

    Raises:
        NotFound: a chunk is missing.
        Corrupt: a chunk is damaged.
        OSError: the file could not be written.
    """
    ordered = _ordered(tensors)
    blocks.write([_header(ordered, metadata)])
    for _, entry in ordered:
        for window in windows(repo, entry, window_bytes):
            blocks.write([window])


def require_writable(tensors: Mapping[str, TensorEntry]) -> None:
    """Check that the format has a form for tensors.

    Raises:
        Incompatible: it lacks a dtype or a name.
    """
    unknown = [f"{name} ({entry.dtype})" for name, entry in tensors.items() if entry.dtype not in _DTYPES]
    if unknown:
        raise Incompatible(f"safetensors has no dtype for {', '.join(unknown)}; export to .pt", names=unknown)
    if _METADATA in tensors:
        raise Incompatible(f"safetensors cannot hold a tensor named {_METADATA}; export to .pt", name=_METADATA)


def _ordered(tensors: Mapping[str, TensorEntry]) -> list[tuple[str, TensorEntry]]:
    """Widest elements first, so that each tensor is aligned for its dtype; by name among equals."""
    return sorted(tensors.items(), key=lambda pair: (-dtype(pair[1].dtype).item_bytes, pair[0]))


def _header(ordered: Sequence[tuple[str, TensorEntry]], metadata: Mapping[str, str]) -> bytes:
    header: dict[str, object] = {_METADATA: dict(metadata)}
    offset = 0
    for name, entry in ordered:
        end = offset + entry.size_bytes
        header[name] = {"dtype": _DTYPES[entry.dtype], "shape": list(entry.shape), "data_offsets": [offset, end]}
        offset = end
    encoded = json.dumps(header, ensure_ascii=False, separators=(",", ":")).encode()
    encoded += b" " * (-len(encoded) % _ALIGNMENT)
    return len(encoded).to_bytes(_LENGTH_BYTES, "little") + encoded


# --- reading --------------------------------------------------------------------------------------------------------


class Located(NamedTuple):
    """A tensor in a file.

    Attributes:
        dtype: stored name.
        shape: sizes.
        start: where its bytes begin in the file.
    """

    dtype: str
    shape: tuple[int, ...]
    start: int

    @property
    def size_bytes(self) -> int:
        """Length of its bytes."""
        return prod(self.shape) * dtype(self.dtype).item_bytes


def read_header(path: Path, files: Files) -> dict[str, Located]:
    """Tensors of a file by name, in the order of their bytes. Reads no tensor.

    Raises:
        Corrupt: it is no file of this format, or not whole.
        Incompatible: a dtype that cannot be stored.
        OSError: it cannot be read.
    """
    if path.exists() and not (path.is_file() or path.is_dir()):
        raise _damaged(path, "a pipe, a socket or a device")  # whoever opened it might wait for ever
    handle = files.open_read(path)
    with handle:
        file_bytes = handle.size
        length = int.from_bytes(handle.pread(0, _LENGTH_BYTES), "little")
        if not 2 <= length <= min(_MAX_HEADER_BYTES, file_bytes - _LENGTH_BYTES):
            raise _damaged(path, f"a header of {length} bytes in a file of {file_bytes}")
        encoded = handle.pread(_LENGTH_BYTES, length)
    data_start = _LENGTH_BYTES + length
    found = {name: _located(path, name, node, data_start) for name, node in _parsed(path, encoded).items()}
    ordered = dict(sorted(found.items(), key=lambda pair: (pair[1].start, pair[1].size_bytes)))
    end = data_start
    for name, tensor in ordered.items():
        if tensor.start != end:
            raise _damaged(path, f"{name} begins at byte {tensor.start}, and what is before it ends at {end}")
        end += tensor.size_bytes
    if end != file_bytes:
        raise _damaged(path, f"tensors end at byte {end} of {file_bytes}")
    return ordered


def _parsed(path: Path, encoded: bytes) -> dict[str, Any]:
    try:
        header = json.loads(encoded, object_pairs_hook=_without_doubles)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its header cannot be read ({error})") from error
    if not isinstance(header, dict):
        raise _damaged(path, "its header is no object")
    header.pop(_METADATA, None)
    return header


def _without_doubles(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    found = dict(pairs)
    if len(found) != len(pairs):
        raise ValueError("a name stands there twice")
    return found


def _located(path: Path, name: str, node: Any, data_start: int) -> Located:
    try:
        code, shape, (start, end) = node["dtype"], tuple(node["shape"]), node["data_offsets"]
    except (TypeError, KeyError, ValueError) as error:
        raise _damaged(path, f"{name} is described by {node!r:.80}") from error
    if not all(type(number) is int and 0 <= number <= MAX_SIZE for number in (*shape, start, end)):
        raise _damaged(path, f"{name} has sizes or offsets that are no numbers, or too large")
    if not isinstance(code, str) or code not in _NAMES:
        raise Incompatible(
            f"{path}: {name} is of dtype {code!r:.40}, which cannot be stored", path=str(path), name=name
        )
    tensor = Located(_NAMES[code], shape, data_start + start)
    if end - start != tensor.size_bytes:
        raise _damaged(path, f"{name} has {end - start} bytes for {code} of shape {list(shape)}")
    return tensor


def _damaged(path: Path, why: str) -> Corrupt:
    return Corrupt(f"{path} is no whole safetensors file: {why}", path=str(path))
