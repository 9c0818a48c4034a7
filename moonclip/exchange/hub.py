"""Directories as model hubs have them: safetensors files of limited size, and an index of which tensor is in which."""

import json
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from fnmatch import fnmatchcase
from pathlib import Path
from typing import Final

from store.disk.files import Files
from store.errors import Corrupt, Incompatible, Unsafe
from store.format.entries import TensorEntry
from store.format.objects import Commit
from store.repository import Repository

from ..loading.stored import full_name
from . import safetensors
from .named import Named, by_keys, tensors_of
from .outputs import Kind, found_of, require_free, writing_into
from .safetensors import Located
from .streaming import WINDOW_BYTES

SINGLE: Final = "model.safetensors"
INDEX: Final = "model.safetensors.index.json"
_SHARDS: Final = "model-[0-9]*-of-[0-9]*.safetensors"
KIND: Final = Kind((SINGLE, INDEX), (_SHARDS,))
MAX_SHARD_BYTES: Final = 5_000_000_000
"""What hubs cut at by themselves."""

_MAX_INDEX_BYTES: Final = 100_000_000


@dataclass(frozen=True, slots=True)
class HubExport:
    """What was written.

    Attributes:
        files: names, in order.
        size_bytes: of all of them.
        values: names of values, which the format cannot hold.
        tied: names of tensors that are there under another name, by name.
    """

    files: tuple[str, ...]
    size_bytes: int
    values: tuple[str, ...]
    tied: Mapping[str, str]


# --- writing --------------------------------------------------------------------------------------------------------


def write(
    directory: Path,
    repo: Repository,
    commit: Commit,
    item: str,
    *,
    max_shard_bytes: int = MAX_SHARD_BYTES,
    overwrite: bool = False,
    window_bytes: int = WINDOW_BYTES,
) -> HubExport:
    """Write an item's tensors: ``model.safetensors`` if they fit one file, else numbered files and their index.

    Of the names of one tensor the first is written. The others are in each file's metadata, as the library itself
    notes them; who loads a model ties them again. A name is the keys on the way to its tensor with dots between.

    Args:
        directory: made if there is none; other files in it stay.
        repo: the store.
        commit: the commit.
        item: the item.
        max_shard_bytes: of tensors in a file; one that is larger gets a file for itself.
        overwrite: whether an earlier export may be replaced.
        window_bytes: how much is read at once.

    Raises:
        Incompatible: a tensor that the format cannot hold, or there is none; nothing was written.
        Conflict: there is an earlier export, and ``overwrite`` is false.
        NotFound: the commit has no such item, or a chunk is missing.
        Corrupt: a chunk is damaged.
        OSError: a file could not be written.
    """
    named = tensors_of(repo, commit, item)
    tensors, tied = _untied(item, named)
    if not tensors:
        raise Incompatible(f"{item} has no tensors to export", item=item)
    safetensors.require_writable(tensors)
    require_free(directory, found_of(directory, KIND), overwrite=overwrite)
    shards = planned({name: entry.size_bytes for name, entry in tensors.items()}, max_shard_bytes)
    metadata = {**tied, "format": "pt", "moonclip.commit": commit.id.hex()}
    repo.bring(tensors.values())
    with writing_into(repo.files, directory, KIND) as outputs:
        for file, names in shards.items():
            with outputs.open(file) as blocks:
                chosen = {name: tensors[name] for name in names}
                safetensors.write_blocks(blocks, repo, chosen, metadata, window_bytes)
        if len(shards) > 1:
            outputs.write(INDEX, _index(tensors, shards))
        size_bytes = outputs.put()
    files = (*shards, INDEX) if len(shards) > 1 else tuple(shards)
    return HubExport(files, size_bytes, tuple(full_name(item, name) for name in named.values), tied)


def planned(sizes: Mapping[str, int], max_shard_bytes: int) -> dict[str, list[str]]:
    """Which tensors go into which file, in order. Pure.

    Args:
        sizes: bytes of each tensor.
        max_shard_bytes: of tensors in a file; one that is larger gets a file for itself.
    """
    shards: list[list[str]] = [[]]
    room_bytes = max_shard_bytes
    for name, size_bytes in sizes.items():
        if size_bytes > room_bytes and shards[-1]:
            shards.append([])
            room_bytes = max_shard_bytes
        shards[-1].append(name)
        room_bytes -= size_bytes
    if len(shards) == 1:
        return {SINGLE: shards[0]}
    return {f"model-{number:05}-of-{len(shards):05}.safetensors": names for number, names in enumerate(shards, 1)}


def _untied(item: str, named: Named) -> tuple[dict[str, TensorEntry], dict[str, str]]:
    """Tensors by what they are called in files, and the names that are left out, with those that stand for them."""
    texts = {name: text for text, name in by_keys(item, named.tensors, ".").items()}
    groups = [[texts[name] for name in group if name in texts] for group in named.ties]
    tied = {name: first for first, *others in groups for name in others}
    return {text: named.tensors[name] for name, text in texts.items() if text not in tied}, tied


def _index(tensors: Mapping[str, TensorEntry], shards: Mapping[str, Iterable[str]]) -> bytes:
    total_bytes = sum(entry.size_bytes for entry in tensors.values())
    file_of = {name: file for file, names in shards.items() for name in names}
    index = {"metadata": {"total_size": total_bytes}, "weight_map": dict(sorted(file_of.items()))}
    return (json.dumps(index, indent=2, ensure_ascii=False) + "\n").encode()


# --- reading --------------------------------------------------------------------------------------------------------


def tensors_in(path: Path, files: Files) -> dict[str, tuple[Path, Located]]:
    """Tensors of a safetensors file, or of a directory of them, by name. Reads no tensor.

    Args:
        path: a file; or a directory with ``model.safetensors``, with an index of other files, or with just one
            safetensors file.
        files: does the I/O.

    Raises:
        Corrupt: a file is not whole, or has not what the index says.
        Incompatible: a dtype that cannot be stored, or a directory that is none of these.
        Unsafe: the index names a file elsewhere.
        OSError: it cannot be read.
    """
    if not path.is_dir():
        return {name: (path, tensor) for name, tensor in safetensors.read_header(path, files).items()}
    if (path / SINGLE).is_file():
        return tensors_in(path / SINGLE, files)
    if (path / INDEX).is_file():
        return dict(_indexed(path, files))
    found = [file for file in _files_in(path) if not fnmatchcase(file.name, _SHARDS)]
    if len(found) != 1:
        raise Incompatible(f"{path} has neither {SINGLE} nor {INDEX}; name a file in it", path=str(path))
    return tensors_in(found[0], files)


def is_hub(path: Path) -> bool:
    """Whether a directory holds safetensors files."""
    return path.is_dir() and ((path / INDEX).is_file() or any(_files_in(path)))


def _files_in(directory: Path) -> Iterator[Path]:
    """Safetensors files there; a pipe is none, and whoever opened it would wait for ever."""
    return (path for path in directory.glob("*.safetensors") if path.is_file())


def _indexed(directory: Path, files: Files) -> Iterator[tuple[str, tuple[Path, Located]]]:
    by_file: dict[str, list[str]] = {}
    for name, file in weight_map(directory / INDEX, files).items():
        by_file.setdefault(file, []).append(name)
    for file, names in by_file.items():
        tensors = safetensors.read_header(directory / file, files)
        lacking = [name for name in names if name not in tensors]
        if lacking:
            raise Corrupt(f"{directory / file} has no tensor {lacking[0]!r}, as {INDEX} says", path=str(directory))
        wanted = frozenset(names)
        yield from ((name, (directory / file, tensor)) for name, tensor in tensors.items() if name in wanted)


def weight_map(path: Path, files: Files) -> dict[str, str]:
    """Names of tensors, and the files beside an index in which it says that they are.

    Raises:
        Corrupt: it is no index.
        Unsafe: it names a file elsewhere.
        OSError: it cannot be read.
    """
    if files.size(path) > _MAX_INDEX_BYTES:
        raise Corrupt(f"{path} is larger than {_MAX_INDEX_BYTES:,} bytes", path=str(path))
    try:
        found = json.loads(files.read_bytes(path))["weight_map"]
    except (ValueError, TypeError, KeyError, RecursionError) as error:
        raise Corrupt(f"{path} is no index of safetensors files ({error!r:.80})", path=str(path)) from error
    if not isinstance(found, dict) or not all(isinstance(file, str) for file in found.values()):
        raise Corrupt(f"{path} is no index of safetensors files: its weight_map names none", path=str(path))
    for file in found.values():
        if not file.isprintable() or not file or file.startswith(".") or "/" in file or "\\" in file:
            raise Unsafe(f"{path} names {file!r}, which is no file beside it", path=str(path), name=file)
    return found
