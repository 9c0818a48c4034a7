"""Hexz: archives of content-defined blocks, and thin ones that need another."""

from collections.abc import Sequence
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar, Final

from .keeper import Model, placed

hexz: Any = import_module("hexz")

_COMPRESSION: Final = "zstd"


class OneArchive:
    """All models in one archive: blocks are found again within it, but no model can be added later."""

    keeps_files: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._archive = str(root / "family.hxz")

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        hexz.pack(str(Path(models[0].path).parent), self._archive, compression=_COMPRESSION)

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        archive = hexz.Archive(self._archive)
        names = {name: Path(name).parts for name in archive.namelist()}
        for model in models:
            for name, (first, *rest) in names.items():
                if first == model.name:
                    placed(folder, model, "/".join(rest)).write_bytes(archive.read(name))


class ThinArchives:
    """An archive for each model, and the base's archive for what the two have in common."""

    keeps_files: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        root.mkdir(parents=True, exist_ok=True)
        self._root = root.resolve()

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        for model in models:
            base = None if model.base is None else self._at(model.base)
            hexz.pack(model.path, self._at(model.name), base=base, compression=_COMPRESSION)

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        for model in models:
            archive = hexz.Archive(self._at(model.name))
            for name in archive.namelist():
                placed(folder, model, name).write_bytes(archive.read(name))

    def _at(self, name: str) -> str:
        return str(self._root / f"{name}.hxz")
