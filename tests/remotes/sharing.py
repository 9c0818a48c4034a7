"""Stores that share a remote, for tests."""

from collections.abc import Iterable, Sequence
from pathlib import Path
from typing import Any

from store.format.entries import TensorEntry
from store.fsck import fsck
from store.ids import CommitId
from store.naming.refnames import branch_name
from store.remotes.configured import RemoteConfig
from store.remotes.fetching.clone import clone
from store.remotes.fetching.fetch import Fetched, fetch
from store.remotes.pushing.push import Pushed, push
from store.remotes.remote import open_remote
from store.remotes.storages.storage import Storage
from store.repository import Repository
from store.saving.inputs import ItemInput
from tests.stores import commit, item, noise, tensor

CONFIG = RemoteConfig("origin", "memory:")


def pushed(repo: Repository, storage: Storage, branches: Sequence[str] = (), **options: Any) -> Pushed:
    """Push, all branches unless some are named."""
    with open_remote(repo, "origin", storage) as remote:
        done = push(repo, remote, branches, every=not branches and "delete" not in options, **options)
    done.require_all()
    return done


def fetched(repo: Repository, storage: Storage, branches: Sequence[str] = (), **options: Any) -> Fetched:
    """Fetch."""
    with open_remote(repo, "origin", storage) as remote:
        return fetch(repo, remote, branches, **options)


def cloned(root: Path, storage: Storage, **options: Any) -> Repository:
    """Clone."""
    return clone(CONFIG, root, storage=storage, thread_count=2, **options)


def big(step: int, size_bytes: int = 200_000) -> list[ItemInput]:
    """Two items, of which each has a tensor that is new at every step and one that hardly changes."""
    drifting = bytearray(noise("drifting", size_bytes))
    for each in range(1, step + 1):
        drifting[each * 97 % size_bytes] ^= each
    return [
        item("model", {"new": tensor(noise(("new", step), 5000)), "drifting": tensor(bytes(drifting), position=1)}),
        item("optimizer", {"moment": tensor(noise(("moment", step), 3000))}),
    ]


def line(repo: Repository, steps: Iterable[int], branch: str = "main") -> list[CommitId]:
    """Commit :func:`big` states, one on another."""
    return [commit(repo, branch, big(step), step=step) for step in steps]


def tensors(repo: Repository, commit_id: CommitId) -> dict[str, bytes]:
    """Every tensor of a commit, as far as its items are here."""
    found = repo.commit(commit_id)
    read: dict[str, bytes] = {}
    for name in found.items:
        if not repo.absences.lacks(commit_id, name):
            for key, entry in repo.tree(found, name):
                if isinstance(entry, TensorEntry):
                    read[f"{name}::{key}"] = bytes(repo.read_tensor(entry))
    return read


def history_of(repo: Repository, branch: str = "main") -> list[CommitId]:
    """Commits of a branch, newest first."""
    tip = repo.refs.read(branch_name(branch))
    return [] if tip is None else [row.id for row in repo.log([tip])]


def require_equal(left: Repository, right: Repository, commits: Iterable[CommitId]) -> None:
    """Both have these, bit by bit, and are sound."""
    for commit_id in commits:
        assert left.commit(commit_id) == right.commit(commit_id)
        assert tensors(left, commit_id) == tensors(right, commit_id)
    require_sound(left)
    require_sound(right)


def require_sound(repo: Repository) -> None:
    """A full check finds nothing."""
    assert fsck(repo, full=True).findings == []
