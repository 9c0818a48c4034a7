"""What a library has to do to be measured with a family. Each is used as its own documentation would have it."""

from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar, NamedTuple, Protocol


class Model(NamedTuple):
    """A model directory to keep.

    Attributes:
        name: what it is called.
        path: the directory. All models' directories lie in one.
        base: name of the model that it was trained from; it comes before. Who can use it is told.
    """

    name: str
    path: str
    base: str | None

    def files(self) -> list[str]:
        """Its files, relative to the directory, in order."""
        folder = Path(self.path)
        return sorted(str(path.relative_to(folder)) for path in folder.rglob("*") if path.is_file())


class Keeper(Protocol):
    """One library, at a directory of its own."""

    keeps_files: ClassVar[bool]
    """Whether files come back; else tensors do, in one ``model.safetensors`` for each model."""

    def __init__(self, root: Path) -> None: ...

    def put(self, models: Sequence[Model]) -> None:
        """Store them, one after the other where that makes a difference."""

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """Write them again, each below ``folder`` under its name."""


def placed(folder: Path, model: Model, file: str) -> Path:
    """Where a model's file goes below ``folder``; the directory is there."""
    path = folder / model.name / file
    path.parent.mkdir(parents=True, exist_ok=True)
    return path
