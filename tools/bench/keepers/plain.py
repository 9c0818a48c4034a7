"""Files as they are, and files through zstd."""

import shutil
from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar, Final

from .keeper import Model, placed

_LEVEL: Final = 3


class Copies:
    """The yardstick of speed: files are copied; whoever measures this waits for the disk."""

    keeps_files: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        self._root = root

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        for model in models:
            shutil.copytree(model.path, self._root / model.name)

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        for model in models:
            shutil.copytree(self._root / model.name, folder / model.name)


class Zstd:
    """Each file by itself, at the command's own level, on all cores."""

    keeps_files: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        import zstandard

        self._root = root
        self._zstd: Any = zstandard

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        compressor = self._zstd.ZstdCompressor(level=_LEVEL, threads=-1)
        for model in models:
            for file in model.files():
                source = Path(model.path) / file
                with source.open("rb") as read, placed(self._root, model, f"{file}.zst").open("wb") as written:
                    compressor.copy_stream(read, written, size=source.stat().st_size)

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        decompressor = self._zstd.ZstdDecompressor()
        for model in models:
            for file in model.files():
                kept = self._root / model.name / f"{file}.zst"
                with kept.open("rb") as read, placed(folder, model, file).open("wb") as written:
                    decompressor.copy_stream(read, written)
