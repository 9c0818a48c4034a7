"""``torch-checkpointing``, asynchronous as it is by default, set up for a host without CUDA as its documentation says.

It syncs nothing: what it has written counts as durable once it is synced here. Its direct writes fail on ext4, so
they are off. Its staging reads live tensors, so that its ``lock()`` is held while the optimizer steps.
"""

from contextlib import AbstractContextManager
from functools import partial
from importlib import import_module
from pathlib import Path
from typing import Any, ClassVar

from ..workloads.run import Items, states
from .library import Settle, sync_folder


class TorchCheckpointing:
    """One directory a save."""

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        config: Any = import_module("torch_checkpointing.config")
        staging: Any = import_module("torch_checkpointing.staging")
        storage: Any = import_module("torch_checkpointing.storage.filesystem")
        manager: Any = import_module("torch_checkpointing").CheckpointManager
        stager = staging.CheckpointStagerConfig(use_pinned_memory=False, use_non_blocking_copy=False)
        self._manager = manager(
            manager.Config(
                save=config.AsyncCheckpointSaverConfig(staging_config=stager),
                storage_config=storage.LocalFileSystemStorageConfig(use_direct_io=False),
            )
        )
        self._root = root
        root.mkdir(parents=True, exist_ok=True)

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""

    def save(self, step: int, items: Items) -> Settle:
        """See :class:`Library`."""
        future = self._manager.save(str(self._path(step)), states(items))
        return partial(self._settle, future, step)

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        lock: AbstractContextManager[object] = self._manager.lock()
        return lock

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`. Tensors are filled where they are; the rest is handed over."""
        loaded = self._manager.load(str(self._path(step)), into=states(items))
        for item, state in loaded.items():
            items[item].load_state_dict(state)

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return sorted(int(path.name) for path in self._root.iterdir())

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        raise NotImplementedError

    def close(self) -> None:
        """See :class:`Library`."""
        self._manager.close()

    def _settle(self, future: Any, step: int) -> None:
        future.result()
        sync_folder(self._path(step))

    def _path(self, step: int) -> Path:
        return self._root.absolute() / f"{step:06d}"
