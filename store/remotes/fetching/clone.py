"""A new store from a remote."""

import logging
from collections.abc import Sequence
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING

from ...disk.files import Files
from ...errors import Conflict, NotFound
from ...limits import MAX_REMOTE_SETTING_BYTES
from ...naming.refnames import BRANCHES, branch_name, describe, remote_name, short_name
from ...repository import DEFAULT_BRANCH, Repository
from ..configured import RemoteConfig, add_remote, check_remote, remotes
from ..listing import listed_refs
from ..names import FORMAT
from ..remote import open_remote
from ..remoteformat import decode_format
from ..storages.clients import open_storage
from ..storages.storage import Storage
from ..tracked import newest_branch
from .fetch import Fetched, fetch
from .obtaining import Progress

if TYPE_CHECKING:
    from ..storages.credentials import Keys

_log = logging.getLogger(__name__)

_OF_STORES = frozenset(
    {"HEAD", "ballast", "config", "index", "index.lock", "logs", "packs", "refs", "refs.lock", "writers"}
)
"""What the beginning of a store leaves, if it is killed before there is one."""


def clone(
    config: RemoteConfig,
    path: str | Path,
    *,
    branch: str | None = None,
    items: Sequence[str] | None = None,
    depth: int | None = None,
    lazy: bool = False,
    progress: Progress | None = None,
    keys: "Keys | None" = None,
    storage: Storage | None = None,
    thread_count: int | None = None,
) -> Repository:
    """Make a store that has what a remote has, and put a local branch where the remote's is.

    What a clone left that was killed is completed.

    Args:
        config: the remote, which is remembered.
        path: the new store's directory.
        branch: short name of the branch to make current: ``main`` if ``None``, or if there is none the newest.
        items: names of the items to fetch; all if ``None``.
        depth: how many commits of each line to fetch with their content; all if ``None``.
        lazy: fetch commits only, and their content when it is read.
        progress: told how far it is.
        keys: credentials, if they are not to be taken from the environment; they are kept nowhere.
        storage: the place, if it is none that a URL can name.
        thread_count: threads of the new store; as many as there are CPUs if ``None``.

    Returns:
        The store, open.

    Raises:
        Conflict: there is a store already, and it is none that a clone from there left; or stores that push there
            differ on that branch.
        NotFound: the remote has no such branch, or none at all. Nothing was made.
        Incompatible: a bad name or URL, or a remote that needs a newer version.
        Corrupt: something of that branch is damaged on the remote.
        RemoteError: the remote failed. What was received need not be received again.
        OSError: the disk failed; likewise.
    """
    config = replace(config, lazy=lazy)
    check_remote(config)
    storage = open_storage(config, keys) if storage is None else storage
    try:
        _require_branch(storage, branch)
        repo = _begin(config, Path(path), branch or DEFAULT_BRANCH, thread_count)
        try:
            with open_remote(repo, config.name, storage) as remote:
                fetched = fetch(repo, remote, items=items, depth=depth, lazy=lazy, progress=progress)
            _check_out(repo, config, fetched, branch)
            if keys is not None:  # what is read lazily needs them too
                repo.remote_openers[config.name] = partial(open_remote, repo, config.name, keys=keys)
        except BaseException:
            repo.close()
            raise
    except BaseException:
        storage.close()
        raise
    return repo


def _require_branch(storage: Storage, branch: str | None) -> None:
    """See that there is something to clone, and that it can be, before anything is made."""
    found = storage.get(FORMAT, MAX_REMOTE_SETTING_BYTES)
    if found is not None:
        decode_format(found[0], storage.url)
    names = {key.name for key, _ in listed_refs(storage) if key.name.startswith(f"{BRANCHES}/")}
    if not names:
        raise NotFound(f"{storage.url}: nothing was pushed there, or all of it deleted; check the URL", url=storage.url)
    if branch is not None and branch_name(branch) not in names:
        listed = ", ".join(sorted(map(short_name, names)))
        raise NotFound(f"{storage.url} has no branch {branch!r}; it has: {listed}", ref=branch)


def _begin(config: RemoteConfig, path: Path, branch: str, thread_count: int | None) -> Repository:
    taken: Conflict | None = None
    _require_free(path)
    try:
        repo = Repository.init(path, branch=branch, thread_count=thread_count)
    except Conflict as error:
        taken = error
        repo = Repository.open(path, thread_count=thread_count)
    try:
        if taken is not None:
            _require_left(repo, config, taken)
        if config.name not in remotes(repo.layout, repo.files):
            add_remote(repo.layout, repo.files, config)
    except BaseException:
        repo.close()
        raise
    return repo


def _require_free(path: Path) -> None:
    """See that a store would not lie among somebody's files: it would then be the store of that whole directory."""
    found = set(Files().list_directory(path)) if path.is_dir() else set()
    foreign = sorted(name for name in found - _OF_STORES if not name.startswith(".tmp-"))
    if foreign and FORMAT not in found:
        raise Conflict(
            f"{path} is not empty, it has {foreign[0]!r}; clone into a directory of its own",
            path=str(path),
            got=foreign[0],
        )


def _require_left(repo: Repository, config: RemoteConfig, taken: Conflict) -> None:
    """See that a store is what a clone from there left that was killed; or one in which there is nothing yet."""
    known = remotes(repo.layout, repo.files)
    found = known.get(config.name)
    is_from_there = not known or (found is not None and found.url == config.url)
    if repo.refs.names(f"{BRANCHES}/") or not is_from_there:
        raise Conflict(f"{taken}; `moonclip fetch` there brings what is new", **taken.details)


def _check_out(repo: Repository, config: RemoteConfig, fetched: Fetched, branch: str | None) -> None:
    """Make a local branch, and make it the current one."""
    chosen = branch or newest_branch(repo, config.name, fetched.diverged)
    tip = None if chosen is None else repo.refs.read(remote_name(config.name, chosen))
    if chosen is None or tip is None:
        fetched.require_sound()
        raise Conflict(
            f"{config.url}: stores that push there went different ways on every branch that was asked for"
            f" ({', '.join(fetched.diverged)}); everything was fetched: make a branch from one of `moonclip branch -r`"
        )
    for name, why in fetched.damaged.items():
        _log.warning("%s was not fetched: %s", name, why)
    for change in fetched.changes:
        if change.why == "rejected":
            _log.warning("%s was not made: %s", describe(change.name), change.reason)
    repo.refs.set_head(chosen)
    repo.set_ref(branch_name(chosen), None, tip, "clone", f"from {config.url}")
