"""One file a save, written and synced before ``save`` returns: ``torch.save`` and ``safetensors``."""

import json
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

import torch

from ..workloads.run import Items, states
from .library import Settle, durable_already, sync_file
from .skeleton import fill, taken_apart


class TorchSave:
    """``torch.save``, then an fsync of the file and of its directory."""

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""

    def save(self, step: int, items: Items) -> Settle:
        """See :class:`Library`."""
        torch.save(states(items), self._path(step))
        sync_file(self._path(step))
        return durable_already

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        return nullcontext()

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`."""
        for item, state in self.load_state(step).items():
            items[item].load_state_dict(state)

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return sorted(int(path.stem) for path in self._root.iterdir())

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        state: dict[str, Any] = torch.load(self._path(step), weights_only=True)
        return state

    def close(self) -> None:
        """See :class:`Library`."""

    def _path(self, step: int) -> Path:
        return self._root / f"{step:06d}.pt"


class Safetensors:
    """One file of all tensors, optimizer included, with the rest of the state as JSON in its header; synced as above.

    The format knows no ties, so that a tied tensor is written once and given both its names when it is loaded.
    """

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""

    def save(self, step: int, items: Items) -> Settle:
        """See :class:`Library`."""
        from safetensors.torch import save_file

        skeleton, tensors = taken_apart(states(items))
        save_file(tensors, self._path(step), metadata={"skeleton": json.dumps(skeleton)})
        sync_file(self._path(step))
        return durable_already

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        return nullcontext()

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`."""
        for item, state in self.load_state(step).items():
            items[item].load_state_dict(state)

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return sorted(int(path.stem) for path in self._root.iterdir())

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        from safetensors import safe_open

        with safe_open(self._path(step), framework="pt") as file:
            tensors = {name: file.get_tensor(name) for name in file.keys()}  # noqa: SIM118 - it is no mapping
            state: dict[str, Any] = fill(json.loads(file.metadata()["skeleton"]), tensors)
            return state

    def close(self) -> None:
        """See :class:`Library`."""

    def _path(self, step: int) -> Path:
        return self._root / f"{step:06d}.safetensors"
