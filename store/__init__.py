"""Moonclip's engine: a content-addressed object store for named arrays.

    from store import Repository

    with Repository.init("checkpoints") as repo:
        repo.save_arrays({"model": {"weight": weight}}, step=100)
        weight = repo.at("main").arrays["model::weight"].read()

The engine deals in bytes, shapes and dtype names. It has never heard of PyTorch; everything that knows what a
state dict is lives in the ``moonclip`` package. What is named here is for others to build on, and docs/engine.md is
the manual; whatever else lies in this package may change. ``docs/design.md`` has the layers, ``docs/format.md`` what
lies on disk. Names are looked up when they are first used: importing this loads nothing.
"""

from importlib import import_module
from typing import TYPE_CHECKING, Any, Final

if TYPE_CHECKING:
    from .beside.files import StoredFile
    from .beside.prefix import Prefix, Synced, sync_prefix
    from .engine.arrays import RawArray
    from .engine.commits import StoredCommit
    from .engine.ranks import Shard, rank_items
    from .engine.stored import StoredArray
    from .ids import CommitId
    from .naming.refnames import branch_name, tag_name
    from .remotes.configured import RemoteConfig, add_remote
    from .remotes.fetching.clone import clone
    from .remotes.fetching.fetch import fetch
    from .remotes.fetching.pull import pull
    from .remotes.pushing.push import push
    from .remotes.remote import open_remote
    from .repository import Repository
    from .saving.ranks import save_rank
    from .saving.saver import SaveRequest

_MODULE_OF: Final = {
    "CommitId": "ids",
    "Prefix": "beside.prefix",
    "RawArray": "engine.arrays",
    "RemoteConfig": "remotes.configured",
    "Repository": "repository",
    "SaveRequest": "saving.saver",
    "Shard": "engine.ranks",
    "StoredArray": "engine.stored",
    "StoredCommit": "engine.commits",
    "StoredFile": "beside.files",
    "Synced": "beside.prefix",
    "add_remote": "remotes.configured",
    "branch_name": "naming.refnames",
    "clone": "remotes.fetching.clone",
    "fetch": "remotes.fetching.fetch",
    "open_remote": "remotes.remote",
    "pull": "remotes.fetching.pull",
    "push": "remotes.pushing.push",
    "rank_items": "engine.ranks",
    "save_rank": "saving.ranks",
    "sync_prefix": "beside.prefix",
    "tag_name": "naming.refnames",
}

__all__ = [
    "CommitId",
    "Prefix",
    "RawArray",
    "RemoteConfig",
    "Repository",
    "SaveRequest",
    "Shard",
    "StoredArray",
    "StoredCommit",
    "StoredFile",
    "Synced",
    "add_remote",
    "branch_name",
    "clone",
    "fetch",
    "open_remote",
    "pull",
    "push",
    "rank_items",
    "save_rank",
    "sync_prefix",
    "tag_name",
]


def __getattr__(name: str) -> Any:
    if name not in _MODULE_OF:
        raise AttributeError(f"module {__name__!r} has no attribute {name!r}")
    return getattr(import_module(f"{__name__}.{_MODULE_OF[name]}"), name)


def __dir__() -> list[str]:
    return __all__
