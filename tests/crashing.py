"""What people do to a store that may be cut short anywhere, and what must hold afterwards."""

import shutil
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path

from store.errors import StoreNotFound
from store.files import Files
from store.ids import CommitId
from store.leases import living_leases
from store.opening import rebuild_index
from store.refnames import branch_name, tag_name
from store.repository import Repository
from tests.arrays import State, drifted, noise, read, require_whole, save

OLD: State = {"w": noise("w", 900), "same": noise("same", 900), "tiny": noise("t", 3)}
NEWER: State = {**OLD, "w": drifted(OLD["w"], 1)}
NEWEST: State = {**OLD, "w": drifted(OLD["w"], 2), "more": noise("more", 200)}

History = dict[CommitId, State]
"""Commits that were acknowledged, and what they hold."""


@dataclass(frozen=True)
class Operation:
    """Something people do.

    Attributes:
        run: does it, on an open store; again after a crash it must succeed. Returns the commits that it makes.
        moves: the ref that it moves, if it moves one.
    """

    run: Callable[[Repository], History]
    moves: str | None = None


def _save(repo: Repository) -> History:
    return {save(repo, NEWEST).commit: NEWEST}


def _save_on_new_branch(repo: Repository) -> History:
    return {save(repo, NEWEST, branch="exp/lr3").commit: NEWEST}


def _tag(repo: Repository) -> History:
    name = tag_name("best")
    repo.set_ref(name, repo.refs.read(name), repo.resolve("branches/main"), "tag")
    return {}


def _reset(repo: Repository) -> History:
    name = branch_name("old")
    repo.set_ref(name, repo.refs.read(name), repo.resolve("branches/main"), "reset")
    return {}


def _delete(repo: Repository) -> History:
    if repo.refs.read(branch_name("gone/away")) is not None:
        repo.delete_ref(branch_name("gone/away"))
    return {}


def _switch(repo: Repository) -> History:
    repo.refs.set_head("old")
    return {}


def _reindex(repo: Repository) -> History:
    rebuild_index(repo.layout, repo.files, repo.packs)
    return {}


OPERATIONS: Mapping[str, Operation] = {
    "save": Operation(_save, "branches/main"),
    "save on a new branch": Operation(_save_on_new_branch, "branches/exp/lr3"),
    "tag": Operation(_tag, "tags/best"),
    "reset": Operation(_reset, "branches/old"),
    "delete": Operation(_delete, "branches/gone/away"),
    "switch": Operation(_switch),
    "reindex": Operation(_reindex),
}


def prepare(root: Path) -> History:
    """A small store with a past."""
    with Repository.init(root, thread_count=1) as repo:
        first = save(repo, OLD).commit
        repo.set_ref(branch_name("old"), None, first, "branch")
        repo.set_ref(branch_name("gone/away"), None, first, "branch")
        second = save(repo, NEWER).commit
    (root / "ballast").unlink()  # 4 MiB that a hundred copies of this store need not have
    return {first: OLD, second: NEWER}


def remove_index(root: Path) -> None:
    """What a person does to an index they mistrust."""
    shutil.rmtree(root / "index", ignore_errors=True)


def garble_index(root: Path) -> None:
    """What a bad disk does."""
    for path in root.glob("index/*/data.mdb"):
        path.write_bytes(b"\xa5" * path.stat().st_size)


def put_index(source: Path) -> Callable[[Path], None]:
    """Put the index of another time in place."""

    def put(root: Path) -> None:
        remove_index(root)
        shutil.copytree(source, root / "index")

    return put


def require_recovered(root: Path, operation: Operation, history: History, *, moved_from: CommitId | None) -> None:
    """The store opens, holds all that was acknowledged, checks clean, and takes what was cut short.

    Args:
        root: the store.
        operation: what was cut short.
        history: what was acknowledged, the operation's own commits among them if it had returned.
        moved_from: where its ref was before.
    """
    with Repository.open(root, thread_count=1) as repo:
        require_whole(repo, history)
        assert living_leases(root, Files()) == []
        if operation.moves is not None:
            found = repo.refs.read(operation.moves)
            if found is not None and found != moved_from:
                assert read(repo, found) in (OLD, NEWER, NEWEST)
        done = operation.run(repo)
        require_whole(repo, {**history, **done})
        if operation.moves is not None and done:
            assert repo.refs.read(operation.moves) in done


def require_makable(root: Path, *, has_returned: bool) -> None:
    """A store whose making was cut short is there, or can be made; and then it works."""
    try:
        repo = Repository.open(root, thread_count=1)
    except StoreNotFound:
        assert not has_returned
        repo = Repository.init(root, thread_count=1)
    with repo:
        assert repo.refs.head() == "main"
        require_whole(repo, _save(repo))
