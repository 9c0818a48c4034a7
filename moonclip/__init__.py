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
    from store.errors import (
        Ambiguous,
        Busy,
        Conflict,
        Corrupt,
        Incompatible,
        MoonclipError,
        NoRoom,
        NotFound,
        Pruned,
        PushFailed,
        ReadOnly,
        RemoteDenied,
        RemoteError,
        RemoteMissing,
        RemoteUnavailable,
        RemoteUnsupported,
        SaveFailed,
        StateChanged,
        StoreNotFound,
        Unsafe,
    )
    from store.upkeep.retention import Keep

    from .comparing import Diff
    from .descriptions import Description, Snapshot, TensorDescription
    from .lazy import LazyTensor
    from .manager import CheckpointManager

_MODULE_OF: Final = {
    "CheckpointManager": "moonclip.manager",
    "Diff": "moonclip.comparing",
    "Keep": "store.upkeep.retention",
    "LazyTensor": "moonclip.lazy",
    **dict.fromkeys(("Description", "Snapshot", "TensorDescription"), "moonclip.descriptions"),
    **dict.fromkeys(
        (
            "Ambiguous",
            "Busy",
            "Conflict",
            "Corrupt",
            "Incompatible",
            "MoonclipError",
            "NoRoom",
            "NotFound",
            "Pruned",
            "PushFailed",
            "ReadOnly",
            "RemoteDenied",
            "RemoteError",
            "RemoteMissing",
            "RemoteUnavailable",
            "RemoteUnsupported",
            "SaveFailed",
            "StateChanged",
            "StoreNotFound",
            "Unsafe",
        ),
        "store.errors",
    ),
}

__all__ = [
    "Ambiguous",
    "Busy",
    "CheckpointManager",
    "Conflict",
    "Corrupt",
    "Description",
    "Diff",
    "Incompatible",
    "Keep",
    "LazyTensor",
    "MoonclipError",
    "NoRoom",
    "NotFound",
    "Pruned",
    "PushFailed",
    "ReadOnly",
    "RemoteDenied",
    "RemoteError",
    "RemoteMissing",
    "RemoteUnavailable",
    "RemoteUnsupported",
    "SaveFailed",
    "Snapshot",
    "StateChanged",
    "StoreNotFound",
    "TensorDescription",
    "Unsafe",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(_MODULE_OF[name]), name)


def __dir__() -> list[str]:
    return __all__
