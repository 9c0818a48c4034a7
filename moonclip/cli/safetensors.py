"""Writing a safetensors file from a store in bounded memory.

The library's own writer wants every tensor in memory at once. The format is a header and then the tensors' bytes, so
that it takes little to write them one after another as they are decoded.
"""

import json
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Final
from uuid import uuid4

from store.disk.files import Files
from store.errors import Incompatible
from store.format.dtypes import dtype
from store.format.entries import TensorEntry
from store.limits import MIB
from store.repository import Repository

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
_WINDOW_BYTES: Final = 64 * MIB
"""Read at once: enough for sixteen threads to have a chunk each."""

_METADATA: Final = "__metadata__"
_ALIGNMENT: Final = 8


def write(path: Path, repo: Repository, tensors: Mapping[str, TensorEntry], metadata: Mapping[str, str]) -> None:
    """Write tensors into a file, which is replaced if it exists once the new one is complete.

    Args:
        path: the file.
        repo: where the tensors are.
        tensors: by the name that they get. Tied ones are written under each of their names.
        metadata: the file's own metadata.

    Raises:
        Incompatible: a dtype or name that the format lacks; nothing was written.
        NotFound: a chunk is missing.
        Corrupt: a chunk is damaged.
        OSError: the file could not be written.

    Cost: two windows of memory, however large the tensors are.
    """
    _check(tensors)
    repo.bring(tensors.values())
    ordered = _ordered(tensors)
    files, temporary = Files(), path.with_name(f".{path.name}.{uuid4().hex}")
    blocks = files.open_blocks(temporary)
    try:
        blocks.write([_header(ordered, metadata)])
        for _, entry in ordered:
            for window in _windows(repo, entry):
                blocks.write([window])
        blocks.finish()
        files.rename_durable(temporary, path)
    except BaseException:
        blocks.abandon()
        raise


def _check(tensors: Mapping[str, TensorEntry]) -> None:
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
    return len(encoded).to_bytes(8, "little") + encoded


def _windows(repo: Repository, entry: TensorEntry) -> Iterator[memoryview]:
    for start in range(0, entry.size_bytes, _WINDOW_BYTES):
        window = memoryview(bytearray(min(_WINDOW_BYTES, entry.size_bytes - start)))
        repo.read_spans(entry, [(start, window)])
        yield window
