"""This repository."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from moonclip import CheckpointManager

from ..workloads.run import Items
from .library import Settle


class Ours:
    """``capture="copy"``, the default."""

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = True
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, root: Path) -> None:
        self._manager = CheckpointManager(root, **self.settings)

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""
        self._manager.resume(**items)

    def save(self, step: int, items: Items) -> Settle:
        """See :class:`Library`."""
        return self._manager.save(step=step, **items).result

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        return nullcontext()

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`."""
        self._manager.load(f"step:{step}", into=items)

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return [snapshot.step for snapshot in self._manager.list_snapshots() if snapshot.step is not None]

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        return self._manager.load(f"step:{step}")

    def close(self) -> None:
        """See :class:`Library`."""
        self._manager.close()


class OursBf16(Ours):
    """Floats are rounded to bfloat16 as they are stored."""

    is_exact: ClassVar[bool] = False
    settings: ClassVar[dict[str, Any]] = {"save_dtype": "bf16"}


class Overlapping(Ours):
    """``capture="overlap"``: large state is copied while the next step computes."""

    settings: ClassVar[dict[str, Any]] = {"capture": "overlap"}


class Prewarmed(Ours):
    """Memory is got ready before the first save, as resuming from a commit does by itself."""

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""
        super().begin(items)
        self._manager.prewarm(**items)
