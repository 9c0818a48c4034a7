"""This repository, through its commands: ``init``, ``import``, ``export``."""

import sys
from collections.abc import Sequence
from pathlib import Path
from typing import ClassVar

from moonclip.cli import export, importing, init  # noqa: F401 - loaded before anything is measured, as others are
from moonclip.cli.app import commands
from store import kernels

from .keeper import Model

kernels.warm()  # as `make setup` leaves it


class Ours:
    """A branch for each model. No base is named: it is found."""

    keeps_files: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        self._root = str(root)

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        self._run("init")
        for model in models:
            self._run("import", model.path, "--branch", model.name)

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        for model in models:
            self._run("export", model.name, "--format", "files", "-o", str(folder / model.name))

    def _run(self, *words: str) -> None:
        if commands(["-C", self._root, *words], standalone_mode=False):
            sys.exit(f"moonclip {' '.join(words)} failed")
