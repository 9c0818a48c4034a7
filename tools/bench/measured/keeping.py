"""Has a library keep a family of models and give it back, and looks whether it is the same."""

import hashlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from ..keepers import keeper
from ..keepers.keeper import Model
from ..peers.library import sync_folder
from .caching import read_all
from .moved import measured
from .series import directory_bytes
from .telling import tell


def keep(library: str, root: str, models: list[list[str]]) -> None:
    """Store all models in a new place, and wait for the disk."""
    kind, family = keeper(library), _family(models)
    for model in family:
        read_all(Path(model.path))
    with measured() as moved:
        kind(Path(root)).put(family)
        sync_folder(Path(root))
        moved.append(sum(directory_bytes(Path(model.path)) for model in family))
    tell("stored", bytes=directory_bytes(Path(root)))


def give_back(library: str, root: str, models: list[list[str]], folder: str) -> None:
    """Write all models again, wait for the disk, then tell what did not come back as it was."""
    kind, family = keeper(library), _family(models)
    read_all(Path(root))
    with measured() as moved:
        kind(Path(root)).get(family, Path(folder))
        sync_folder(Path(folder))
        moved.append(directory_bytes(Path(folder)))
    compared = _changed_files if kind.keeps_files else _changed_tensors
    tell("compared", changed=[what for model in family for what in compared(model, Path(folder) / model.name)])


def _family(models: Sequence[Sequence[str]]) -> list[Model]:
    return [Model(*model) for model in models]


def _changed_files(model: Model, folder: Path) -> Iterator[str]:
    """By SHA-256; a file that is missing, or one too many, is changed."""
    given = {str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file()}
    for file in sorted(given | set(model.files())):
        paths = Path(model.path) / file, folder / file
        if not all(path.exists() for path in paths) or len({_digest(path) for path in paths}) > 1:
            yield f"{model.name}/{file}"


def _changed_tensors(model: Model, folder: Path) -> Iterator[str]:
    import torch

    from ..keepers import tensors

    saved, given = tensors.read(model), tensors.read(Model(model.name, str(folder), model.base))
    for name in sorted(saved.keys() | given.keys()):
        if name not in saved or name not in given:
            yield f"{model.name}/{name}"
            continue
        one, other = saved[name], given[name]
        is_same = one.dtype == other.dtype and one.shape == other.shape
        if not is_same or not torch.equal(one.flatten().view(torch.uint8), other.flatten().view(torch.uint8)):
            yield f"{model.name}/{name}"


def _digest(path: Path) -> str:
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()
