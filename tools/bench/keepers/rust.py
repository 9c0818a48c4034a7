"""``moonclip`` as the index has it, written in Rust."""

from collections.abc import Sequence
from pathlib import Path
from typing import Any, ClassVar

import moonclip

from ..workloads.run import Held
from . import tensors
from .keeper import Model


class Snapshots:
    """A snapshot for each model, one after the other: it stores what differs from the last one."""

    keeps_files: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._manager: Any = moonclip.CheckpointManager(str(root))

    def put(self, models: Sequence[Model]) -> None:
        """See :class:`Keeper`."""
        for step, model in enumerate(models):
            self._manager.save(step=step, model=Held(tensors.read(model)))
            self._manager.flush()

    def get(self, models: Sequence[Model], folder: Path) -> None:
        """See :class:`Keeper`."""
        snapshots = {snapshot["step"]: snapshot["id"] for snapshot in self._manager.list_snapshots()}
        for step, model in enumerate(models):
            tensors.write(folder, model, self._manager.load(snapshots[step])["model"])
