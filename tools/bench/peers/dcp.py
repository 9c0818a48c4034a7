"""``torch.distributed.checkpoint.async_save``, in one process, with a stager that keeps its buffers between saves."""

import warnings
from concurrent.futures import Future
from contextlib import AbstractContextManager, nullcontext
from functools import partial
from pathlib import Path
from typing import Any, ClassVar

from torch.distributed.checkpoint.staging import DefaultStager, StagingOptions
from torch.distributed.checkpoint.state_dict_loader import load
from torch.distributed.checkpoint.state_dict_saver import async_save

from ..workloads.run import Items, states
from .library import Settle, sync_folder

warnings.filterwarnings("ignore", "torch.distributed is disabled")


class Dcp:
    """One directory a save. It syncs its files; the directory is synced here."""

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = False

    def __init__(self, root: Path) -> None:
        self._root = root
        self._stager = DefaultStager(
            StagingOptions(
                use_pinned_memory=False,
                use_shared_memory=False,
                use_async_staging=False,
                use_non_blocking_copy=False,
            )
        )
        root.mkdir(parents=True, exist_ok=True)

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""

    def save(self, step: int, items: Items) -> Settle:
        """See :class:`Library`."""
        future = async_save(states(items), async_stager=self._stager, **self._saving(step))
        assert isinstance(future, Future)
        return partial(self._settle, future, step)

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        return nullcontext()

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`. Tensors are filled where they are; the rest is handed over."""
        state = states(items)
        load(state, **self._loading(step))
        for item, value in items.items():
            value.load_state_dict(state[item])

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return sorted(int(path.name) for path in self._root.iterdir())

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        raise NotImplementedError

    def close(self) -> None:
        """See :class:`Library`."""
        self._stager.close()

    def _saving(self, step: int) -> dict[str, Any]:
        return {"checkpoint_id": self._path(step)}

    def _loading(self, step: int) -> dict[str, Any]:
        return {"checkpoint_id": self._path(step)}

    def _settle(self, future: "Future[Any]", step: int) -> None:
        future.result()
        sync_folder(self._path(step))

    def _path(self, step: int) -> Path:
        return self._root / f"{step:06d}"


class OursDcp(Dcp):
    """The same call, into a store of ours, which syncs all by itself."""

    keeps_deltas: ClassVar[bool] = True

    def __init__(self, root: Path) -> None:
        from moonclip.dcp import StorageWriter

        super().__init__(root)
        self._writer = StorageWriter(root)

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        raise NotImplementedError

    def close(self) -> None:
        """See :class:`Library`."""
        super().close()
        self._writer.close()

    def _saving(self, step: int) -> dict[str, Any]:
        return {"checkpoint_id": f"step-{step}", "storage_writer": self._writer}

    def _loading(self, step: int) -> dict[str, Any]:
        from moonclip.dcp import StorageReader

        return {"storage_reader": StorageReader(self._root, f"step:{step}")}

    def _settle(self, future: "Future[Any]", step: int) -> None:  # noqa: ARG002 - as for a directory
        future.result()
