"""``moonclip`` as the index has it, written in Rust."""

from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any, ClassVar

from ..workloads.run import Items
from .library import Settle

_OWN_ITEMS = ("model", "optimizer", "scheduler", "scaler")


class Rust:
    """With its defaults, which lose nothing."""

    is_exact: ClassVar[bool] = True
    keeps_deltas: ClassVar[bool] = True
    settings: ClassVar[dict[str, Any]] = {}

    def __init__(self, root: Path) -> None:
        import moonclip

        self._manager: Any = moonclip.CheckpointManager(str(root), **self.settings)

    def begin(self, items: Items) -> None:
        """See :class:`Library`."""
        self._manager.resume(**{item: value for item, value in items.items() if item in _OWN_ITEMS})

    def save(self, step: int, items: Items) -> Settle:
        """See :class:`Library`."""
        own = {item: value for item, value in items.items() if item in _OWN_ITEMS}
        self._manager.save(step=step, **own, extra={name: items[name] for name in items.keys() - own.keys()})
        settle: Settle = self._manager.flush
        return settle

    def guard(self) -> AbstractContextManager[object]:
        """See :class:`Library`."""
        return nullcontext()

    def load(self, step: int, items: Items) -> None:
        """See :class:`Library`."""
        own = {item: value for item, value in items.items() if item in _OWN_ITEMS}
        loaded = self._manager.load(self._id(step), **own)
        for item in items.keys() - own.keys():
            items[item].load_state_dict(loaded[f"extra/{item}"])

    def steps(self) -> list[int]:
        """See :class:`Library`."""
        return [snapshot["step"] for snapshot in self._manager.list_snapshots()]

    def load_state(self, step: int) -> dict[str, Any]:
        """See :class:`Library`."""
        loaded: dict[str, Any] = self._manager.load(self._id(step))
        return {item.removeprefix("extra/"): state for item, state in loaded.items()}

    def close(self) -> None:
        """See :class:`Library`."""
        self._manager.flush()

    def _id(self, step: int) -> str:
        ids = {snapshot["step"]: snapshot["id"] for snapshot in self._manager.list_snapshots()}
        found: str = ids[step]
        return found


class RustBf16(Rust):
    """Float32 is rounded to bfloat16 as it is stored."""

    is_exact: ClassVar[bool] = False
    settings: ClassVar[dict[str, Any]] = {"save_dtype": "bf16"}
