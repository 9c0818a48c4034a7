"""Which directories of a folder are models."""

from collections.abc import Iterator
from pathlib import Path
from typing import Final

from store.errors import Incompatible

_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf"})
_NAMES: Final = frozenset({"config.json", "model_index.json", ".metadata"})
"""What a directory of a model has in itself; below it there may be more of that model."""


def models_in(path: Path) -> list[Path]:
    """The models that a path means: a file, a model's directory, or else those in the directories below, in order.

    Raises:
        Incompatible: there is none.
        OSError: a directory cannot be read.
    """
    found = list(_below(path))
    if not found:
        raise Incompatible(f"there is no model in {path}, nor in a directory below it", path=str(path))
    return found


def _below(path: Path) -> Iterator[Path]:
    if not path.is_dir():
        yield path
        return
    entries = sorted(path.iterdir())
    if any(entry.name in _NAMES or entry.suffix.lower() in _SUFFIXES for entry in entries):
        yield path
        return
    for entry in entries:
        if entry.is_dir() and not entry.is_symlink() and not entry.name.startswith("."):
            yield from _below(entry)
