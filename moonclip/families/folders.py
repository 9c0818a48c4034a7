"""Which directories of a folder are models."""

from collections.abc import Iterable, Iterator, Sequence
from pathlib import Path
from typing import Final, NamedTuple

from store.errors import Incompatible

_SUFFIXES: Final = frozenset({".safetensors", ".bin", ".pt", ".pth", ".ckpt", ".gguf"})
_SHOWN: Final = 5
_NAMES: Final = frozenset({"config.json", "model_index.json", ".metadata"})
"""What a directory of a model has in itself; below it there may be more of that model."""


class Models(NamedTuple):
    """What paths mean.

    Attributes:
        found: models, in order, each of them once.
        left_out: what cannot be looked into or leads to no model, and why.
    """

    found: list[Path]
    left_out: dict[str, str]


def models_in(paths: Sequence[Path]) -> Models:
    """The models that paths mean: a file, a model's directory, or else those in the directories below, links followed.

    Args:
        paths: where to look. A model that is met again counts once.
    """
    found: dict[Path, Path] = {}
    left_out: dict[str, str] = {}
    for path in paths:
        models = list(_below(path, left_out))
        if not models:
            left_out.setdefault(str(path), "no model in it, nor in a directory below it")
        for model in models:
            found.setdefault(model.resolve(), model)
    return Models(list(found.values()), left_out)


def require_one_model(paths: Iterable[Path]) -> None:
    """Refuse folders of several models: as one commit none of them would be stored against another.

    Raises:
        Incompatible: a path is one; the message names them.
    """
    for path in filter(Path.is_dir, paths):
        _require_one(path, models_in([path]).found)


def _require_one(path: Path, found: Sequence[Path]) -> None:
    if len(found) > 1:
        names = [model.relative_to(path).as_posix() for model in found]
        shown = ", ".join(names[:_SHOWN]) + (", …" if len(names) > _SHOWN else "")
        raise Incompatible(
            f"{path} holds {len(found)} models ({shown}); import each onto a branch of its own, as in"
            f" `moonclip import {path / names[0]} --branch {names[0]}`",
            path=str(path),
        )


def _below(path: Path, left_out: dict[str, str]) -> Iterator[Path]:
    ahead, met = [path], set[Path]()
    while ahead:
        here = ahead.pop()
        place = here.resolve()
        if place in met:  # by another link, or a link to a directory around it
            continue
        met.add(place)
        if not here.is_dir():
            yield here
            continue
        try:
            entries = sorted(here.iterdir())
            is_model = any(entry.name in _NAMES or entry.suffix.lower() in _SUFFIXES for entry in entries)
            below = [] if is_model else [each for each in entries if each.is_dir() and not each.name.startswith(".")]
        except OSError as error:
            left_out[str(here)] = error.strerror or str(error)
            continue
        if is_model:
            yield here
        ahead += reversed(below)
