"""Checkpoints as git-like commits: the PyTorch surface.

    from moonclip import CheckpointManager

    mgr = CheckpointManager("./checkpoints")
    start = mgr.resume(model=model, optimizer=optimizer)
    mgr.save(step=step, model=model, optimizer=optimizer)

Importing this package imports neither torch nor NumPy: names are looked up when they are first used.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from store.boxes import Box
    from store.errors import (
        Ambiguous,
        Busy,
        Conflict,
        Corrupt,
        DeadlinePassed,
        Incompatible,
        MoonclipError,
        NoRoom,
        NotFound,
        PartsMissing,
        PartsOutdated,
        Pruned,
        PushFailed,
        RankLost,
        ReadOnly,
        RemoteDenied,
        RemoteError,
        RemoteMissing,
        RemoteUnavailable,
        RemoteUnsupported,
        SaveFailed,
        SnapshotGone,
        StateChanged,
        StoreNotFound,
        Unsafe,
        WorkerEnded,
    )
    from store.upkeep.retention import Keep

    from .exchange.loading import load_files
    from .loading.descriptions import Description, Snapshot, TensorDescription
    from .loading.lazy import LazyTensor
    from .manager import CheckpointManager
    from .managing.comparing import Diff
    from .saving.reports import Event
    from .sharding.layouts import Part
    from .specs import ItemSpec, Layout, Sharding

_MODULE_OF: Final = {
    "CheckpointManager": "moonclip.manager",
    "Box": "store.boxes",
    "Diff": "moonclip.managing.comparing",
    "Event": "moonclip.saving.reports",
    "Keep": "store.upkeep.retention",
    "LazyTensor": "moonclip.loading.lazy",
    "Part": "moonclip.sharding.layouts",
    **dict.fromkeys(("ItemSpec", "Layout", "Sharding"), "moonclip.specs"),
    **dict.fromkeys(("Description", "Snapshot", "TensorDescription"), "moonclip.loading.descriptions"),
    "load_files": "moonclip.exchange.loading",
    **dict.fromkeys(
        (
            "Ambiguous",
            "Busy",
            "Conflict",
            "Corrupt",
            "DeadlinePassed",
            "Incompatible",
            "MoonclipError",
            "NoRoom",
            "NotFound",
            "PartsMissing",
            "PartsOutdated",
            "Pruned",
            "PushFailed",
            "RankLost",
            "ReadOnly",
            "RemoteDenied",
            "RemoteError",
            "RemoteMissing",
            "RemoteUnavailable",
            "RemoteUnsupported",
            "SaveFailed",
            "SnapshotGone",
            "StateChanged",
            "StoreNotFound",
            "Unsafe",
            "WorkerEnded",
        ),
        "store.errors",
    ),
}

__all__ = [
    "Ambiguous",
    "Box",
    "Busy",
    "CheckpointManager",
    "Conflict",
    "Corrupt",
    "DeadlinePassed",
    "Description",
    "Diff",
    "Event",
    "Incompatible",
    "ItemSpec",
    "Keep",
    "Layout",
    "LazyTensor",
    "MoonclipError",
    "NoRoom",
    "NotFound",
    "Part",
    "PartsMissing",
    "PartsOutdated",
    "Pruned",
    "PushFailed",
    "RankLost",
    "ReadOnly",
    "RemoteDenied",
    "RemoteError",
    "RemoteMissing",
    "RemoteUnavailable",
    "RemoteUnsupported",
    "SaveFailed",
    "Sharding",
    "Snapshot",
    "SnapshotGone",
    "StateChanged",
    "StoreNotFound",
    "TensorDescription",
    "Unsafe",
    "WorkerEnded",
    "load_files",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
