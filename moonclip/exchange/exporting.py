"""A commit as files of other tools, whatever the format: what ``moonclip export`` and a manager have in common."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Final, Literal, get_args

from store.beside.files import ITEM, files_in
from store.disk.replacing import replacing
from store.errors import Incompatible
from store.format.entries import TensorEntry
from store.format.objects import Commit
from store.repository import Repository

from ..loading.stored import full_name, items_matching
from ..specs import Layout
from . import filesout, hub, layouts, safetensors
from .directories import BLOBS
from .named import by_keys, tensors_of
from .outputs import require_directory, require_free
from .requirements import require_torch
from .streaming import WINDOW_BYTES

Format = Literal["pt", "safetensors", "hf", "dcp", "dir", "files"]
FORMATS: Final[tuple[Format, ...]] = get_args(Format)
"""One file of ``torch.save`` or safetensors; a hub's directory; one of torch.distributed.checkpoint; a plain file for
each item; the files that were imported, as they were."""

SUFFIXES: Final[Mapping[str, Format]] = {".pt": "pt", ".pth": "pt", ".safetensors": "safetensors"}
"""Formats by what the name of a file ends in."""

_OF_ONE_FILE: Final = frozenset({".bin", ".ckpt", ".gguf", ".gz", ".h5", ".json", ".npz", ".onnx", ".tar", ".zip"})
"""What names of files end in, so that a directory of that name is hardly meant."""

_MODEL: Final = "model"


@dataclass(frozen=True, slots=True)
class Wanted:
    """What to write, and where.

    Attributes:
        path: the file or directory.
        format: one of ``FORMATS``; ``None`` to choose by the path's suffix.
        items: names or globs of items; all if ``None``.
        overwrite: whether what is there may be replaced.
        max_shard_bytes: of tensors in one file of a hub's directory.
        layouts: how items are written as plain files.
        files: paths or globs of files that were imported; all if ``None``.
        window_bytes: how much of a tensor is read at once.
    """

    path: Path
    format: Format | None = None
    items: Sequence[str] | None = None
    overwrite: bool = False
    max_shard_bytes: int = hub.MAX_SHARD_BYTES
    layouts: Mapping[str, Layout] = field(default_factory=dict)
    files: Sequence[str] | None = None
    window_bytes: int = WINDOW_BYTES


@dataclass(frozen=True, slots=True)
class Exported:
    """What was written.

    Attributes:
        path: the file or directory.
        items: names of the items.
        size_bytes: of all files.
        left_out: full names of values that the format cannot hold.
        tied: names of tensors that were written under another name only, by name.
        files: paths of files that are as they were imported.
    """

    path: Path
    items: tuple[str, ...]
    size_bytes: int
    left_out: tuple[str, ...] = ()
    tied: Mapping[str, str] = field(default_factory=dict)
    files: tuple[str, ...] = ()


def format_of(path: Path, asked: Format | None, commit: Commit | None = None) -> Format:
    """The format that is asked for, or that a path's suffix stands for; ``files`` where a commit has any.

    Raises:
        Incompatible: none of these says, or there is no such format.
    """
    found = asked or SUFFIXES.get(path.suffix)
    if found is None and commit is not None and ITEM in commit.items:
        if path.suffix.lower() in _OF_ONE_FILE and not path.is_dir():
            raise Incompatible(
                f"{path.name} is called as one file, and what would be written is a directory of files; name a"
                " directory, or the format",
                path=str(path),
            )
        return "files"
    if asked is not None and asked not in FORMATS:
        raise Incompatible(f"a format is one of {', '.join(FORMATS)}, not {asked!r}", format=asked)
    if found is None:
        suffixes = ", ".join(SUFFIXES)
        raise Incompatible(
            f"{path.name}: the name has to end in {suffixes}, or a format has to be named", path=str(path)
        )
    return found


def export(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    """Write items of a commit into a file or directory. What was there before is replaced by all of it, or stays.

    Args:
        repo: the store.
        commit: the commit.
        wanted: what, where and how.

    Raises:
        Incompatible: something that the format cannot hold; the message names it. Nothing was written.
        Conflict: there is something already that would be replaced.
        NotFound: there is no such item, or a chunk is missing.
        Unsafe: there is a pickle, which is not read.
        Corrupt: stored bytes are damaged.
        MoonclipError: the format needs torch, which is not installed.
        OSError: a file could not be written.
    """
    found = format_of(wanted.path, wanted.format, commit)
    if found in SUFFIXES.values():
        require_free(wanted.path.parent, [wanted.path.name], overwrite=wanted.overwrite)
        require_directory(wanted.path.parent)
    if found != "hf" and wanted.max_shard_bytes != hub.MAX_SHARD_BYTES:
        raise Incompatible("a largest size of files is for the format hf only")
    if found != "dir" and wanted.layouts:
        raise Incompatible("layouts are for the format dir only")
    if found != "files" and wanted.files is not None:
        raise Incompatible("names of files are for the format files only")
    writers = {"pt": _pt, "safetensors": _safetensors, "hf": _hf, "dcp": _dcp, "dir": _dir, "files": _files}
    return writers[found](repo, commit, wanted)


def _chosen(repo: Repository, commit: Commit, wanted: Wanted) -> tuple[list[str], bool]:
    """Items that are wanted, and whether that is one by its name, which then needs none in the file."""
    items = _all_items(repo, commit) if wanted.items is None else items_matching(commit, wanted.items)
    return items, wanted.items is not None and len(wanted.items) == 1 and len(items) == 1


def _all_items(repo: Repository, commit: Commit) -> list[str]:
    """Items of a commit, without those that make up the files of an imported directory: these have a format."""
    if ITEM in commit.items and any(file.composed for file in files_in(repo, commit).values()):
        return [item for item in commit.items if item not in {ITEM, BLOBS}]
    return list(commit.items)


def _pt(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    """Load everything and hand it to ``torch.save``. Nothing stored is unpickled for it: that is refused."""
    require_torch("a .pt file")
    from ..loading.load import Wanted as Loaded
    from ..loading.load import load
    from ..state.policy import SAFE
    from . import pickling

    items, is_single = _chosen(repo, commit, wanted)
    loaded = load(repo, commit, Loaded(items=items), SAFE)
    with replacing(repo.files, wanted.path) as blocks:
        pickling.save(blocks, loaded[items[0]] if is_single else loaded, wanted.path.name)
    return Exported(wanted.path, tuple(items), wanted.path.stat().st_size)


def _safetensors(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    items, is_single = _chosen(repo, commit, wanted)
    tensors: dict[str, TensorEntry] = {}
    left_out: list[str] = []
    for item in items:
        named = tensors_of(repo, commit, item)
        left_out += [full_name(item, name) for name in named.values]
        for key, name in by_keys(item, named.tensors, "/").items():
            text = key if is_single else full_name(item, key if name else name)
            if text in tensors:
                raise Incompatible(f"two tensors would be named {text}; export one item, or to .pt", name=text)
            tensors[text] = named.tensors[name]
    metadata = {"format": "pt", "moonclip.commit": commit.id.hex()}
    safetensors.write(wanted.path, repo, tensors, metadata, wanted.window_bytes)
    return Exported(wanted.path, tuple(items), wanted.path.stat().st_size, tuple(left_out))


def _hf(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    if wanted.items is None:
        items = [_MODEL] if _MODEL in commit.items else _all_items(repo, commit)
    else:
        items = items_matching(commit, wanted.items)
    if len(items) != 1:
        raise Incompatible(f"the format hf holds one item, and there are {', '.join(items)}; name one", items=items)
    written = hub.write(
        wanted.path,
        repo,
        commit,
        items[0],
        max_shard_bytes=wanted.max_shard_bytes,
        overwrite=wanted.overwrite,
        window_bytes=wanted.window_bytes,
    )
    return Exported(wanted.path, tuple(items), written.size_bytes, written.values, written.tied)


def _dcp(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    require_torch("a directory of torch.distributed.checkpoint")
    from . import dcpwriting

    items, is_single = _chosen(repo, commit, wanted)
    size_bytes = dcpwriting.write(
        wanted.path,
        repo,
        commit,
        items,
        is_single=is_single,
        overwrite=wanted.overwrite,
        block_bytes=wanted.window_bytes,
    )
    return Exported(wanted.path, tuple(items), size_bytes)


def _dir(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    items = _all_items(repo, commit) if wanted.items is None else list(wanted.items)
    chosen = layouts.default_layouts(commit, items, wanted.layouts)
    if any(layout.kind == "torch" for layout in chosen.values()):
        require_torch("a file of torch.save")
    written = layouts.export_directory(
        repo, commit, chosen, wanted.path, overwrite=wanted.overwrite, window_bytes=wanted.window_bytes
    )
    return Exported(wanted.path, tuple(written), sum(path.stat().st_size for path in written.values()))


def _files(repo: Repository, commit: Commit, wanted: Wanted) -> Exported:
    if wanted.items is not None:
        raise Incompatible("the format files writes files, whatever items they consist of; name files, not items")
    written = filesout.write(wanted.path, repo, commit, names=wanted.files, overwrite=wanted.overwrite)
    return Exported(wanted.path, (ITEM,), sum(written.values()), files=tuple(written))
