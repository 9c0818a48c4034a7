"""A commit as a directory of plain files, one for each item, in the format that its layout says."""

import json
import math
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

from store.disk.files import BlockWriter
from store.errors import Incompatible
from store.format.entries import TensorEntry, ValueEntry
from store.format.objects import Commit
from store.repository import Repository

from ..loading.stored import full_name, items_matching, no_such_item
from ..specs import Layout, file_paths
from ..state.names import ROOT
from . import safetensors
from .named import by_keys, tensors_of
from .outputs import require_free, require_inside, writing_into
from .streaming import WINDOW_BYTES, windows

_JSON: Final = (str, bool, int, float, type(None))


def export_directory(
    repo: Repository,
    commit: Commit,
    layouts: Mapping[str, Layout],
    directory: Path,
    *,
    overwrite: bool = False,
    window_bytes: int = WINDOW_BYTES,
) -> dict[str, Path]:
    """Write items as files: all of them, or none.

    ``torch`` writes what the item was, with ``torch.save``; all of it is in memory at once. ``safetensors`` writes its
    tensors by name, and ``raw`` the bytes of one tensor, bytes or text, a window at a time. ``json`` writes a value of
    what JSON has: text, numbers, truth values, ``None``, lists, tuples and mappings with text for keys.

    Args:
        repo: the store.
        commit: the commit.
        layouts: how each item is written, and where; items that have none are not.
        directory: made if there is none; other files in it stay.
        overwrite: whether files may be replaced.
        window_bytes: how much of a tensor is read at once.

    Returns:
        The files by item.

    Raises:
        Incompatible: a path that leaves the directory or is used twice, or an item that its format cannot hold. Nothing
            was written.
        Conflict: a file exists, and ``overwrite`` is false.
        NotFound: there is no such item, or a chunk is missing.
        Unsafe: an item holds a pickle, which is not read.
        Corrupt: stored bytes are damaged.
        OSError: a file could not be written.
    """
    paths = file_paths(layouts)
    for item in layouts:
        if item not in commit.items:
            raise no_such_item(commit, item)
    require_inside(directory, list(paths.values()))
    require_free(directory, list(paths.values()), overwrite=overwrite)
    with writing_into(repo.files, directory) as outputs:
        for item, layout in layouts.items():
            with outputs.open(paths[item]) as file:
                _Writer(repo, commit, item, window_bytes).write(layout.kind, file)
        outputs.put()
    return {item: directory / path for item, path in paths.items()}


def default_layouts(commit: Commit, items: list[str] | None, layouts: Mapping[str, Layout]) -> dict[str, Layout]:
    """Layouts of the items that are wanted; of those that have none, ``torch``.

    Args:
        commit: the commit.
        items: names or globs; all if ``None``.
        layouts: by item.

    Raises:
        NotFound: there is no such item.
    """
    lacking = [item for item in layouts if item not in commit.items]
    if lacking:
        raise no_such_item(commit, lacking[0])
    wanted = items_matching(commit, items)
    return {item: layouts.get(item, Layout("torch")) for item in wanted}


class _Writer:
    """One item into one file."""

    def __init__(self, repo: Repository, commit: Commit, item: str, window_bytes: int) -> None:
        self._repo = repo
        self._commit = commit
        self._item = item
        self._window_bytes = window_bytes

    def write(self, kind: str, file: BlockWriter) -> None:
        {"torch": self._torch, "json": self._json, "raw": self._raw, "safetensors": self._safetensors}[kind](file)

    def _torch(self, file: BlockWriter) -> None:
        from . import pickling

        pickling.save(file, self._loaded(), self._item)

    def _json(self, file: BlockWriter) -> None:
        value = self._value("JSON")
        _require_json(self._item, value)
        file.write([(json.dumps(value, indent=2, ensure_ascii=False, allow_nan=False) + "\n").encode()])

    def _raw(self, file: BlockWriter) -> None:
        entry = dict(self._repo.tree(self._commit, self._item)).get(ROOT)
        if isinstance(entry, TensorEntry):
            self._repo.bring([entry])
            for window in windows(self._repo, entry, self._window_bytes):
                file.write([window])
            return
        value = self._value("a raw file")
        if not isinstance(value, str | bytes | bytearray):
            raise Incompatible(
                f"{self._item} is a {type(value).__name__}, and a raw file holds bytes, text or one tensor; give it"
                " another layout",
                item=self._item,
            )
        file.write([value.encode() if isinstance(value, str) else value])

    def _safetensors(self, file: BlockWriter) -> None:
        named = tensors_of(self._repo, self._commit, self._item)
        if named.values:
            raise Incompatible(
                f"{full_name(self._item, named.values[0])} is no tensor, and safetensors holds nothing else; give"
                f" {self._item} another layout",
                item=self._item,
            )
        names = by_keys(self._item, named.tensors, "/")
        tensors = {key: named.tensors[name] for key, name in names.items()}
        safetensors.require_writable(tensors)
        self._repo.bring(tensors.values())
        metadata = {"format": "pt", "moonclip.commit": self._commit.id.hex()}
        safetensors.write_blocks(file, self._repo, tensors, metadata, self._window_bytes)

    def _value(self, what: str) -> Any:
        entries = dict(self._repo.tree(self._commit, self._item))
        if not isinstance(entries.get(ROOT), ValueEntry):
            raise Incompatible(f"{self._item} has tensors, which {what} cannot hold; give it another layout")
        return self._loaded()

    def _loaded(self) -> Any:
        from ..loading.load import Wanted, load
        from ..state.policy import SAFE

        return load(self._repo, self._commit, Wanted(items=[self._item]), SAFE)[self._item]


def _require_json(where: str, value: Any) -> None:
    """Refuse what JSON would lose or cannot say."""
    if type(value) is dict:
        for key, child in value.items():
            if type(key) is not str:
                raise Incompatible(f"{where} has {key!r} for a key, and JSON has text only; give it another layout")
            _require_json(f"{where}/{key}", child)
    elif type(value) in (list, tuple):
        for number, child in enumerate(value):
            _require_json(f"{where}/{number}", child)
    elif type(value) not in _JSON or (type(value) is float and not math.isfinite(value)):
        raise Incompatible(f"{where} is {value!r:.60}, which JSON has no form for; give it another layout")
