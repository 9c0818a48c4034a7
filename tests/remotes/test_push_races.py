"""D10, and pushes at the same time: by threads, by processes, of the same store and of two."""

import os
import threading
from collections.abc import Callable
from pathlib import Path

import pytest

from store.ids import CommitId
from store.naming.refnames import branch_name
from store.remotes.pushing.push import Pushed, push
from store.remotes.remote import open_remote
from store.remotes.storages.directory import DirectoryStorage
from store.remotes.storages.storage import Storage
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import require_whole
from tests.stores import commit

MAIN = branch_name("main")
RACERS = 4


def make(path: Path, step: int) -> tuple[Path, CommitId]:
    with Repository.init(path) as repo:
        return path, commit(repo, step=step)


def push_from(root: Path, storage: Storage) -> Pushed:
    with Repository.open(root) as repo:
        return push(repo, open_remote(repo, "origin", storage))


def at_once(calls: list[Callable[[], Pushed]]) -> list[str]:
    """Run all at the same time, and say why the one ref of each changed."""
    whys: list[str] = []
    start = threading.Barrier(len(calls))

    def run(call: Callable[[], Pushed]) -> None:
        start.wait()
        whys.extend(change.why for change in call().changes)

    threads = [threading.Thread(target=run, args=(call,)) for call in calls]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return whys


def test_d10_of_first_pushes_to_one_branch_one_wins(tmp_path: Path) -> None:
    storage = MemoryStorage()
    made = dict(make(tmp_path / f"store{number}", number) for number in range(RACERS))
    whys = at_once([lambda root=root: push_from(root, storage) for root in made])  # type: ignore[misc]
    assert sorted(whys) == ["new", *["rejected"] * (RACERS - 1)]
    (winner,) = require_whole(storage).refs.values()
    assert winner in made.values()


def test_pushes_of_one_store_at_the_same_time_are_as_good_as_one(tmp_path: Path) -> None:
    storage = MemoryStorage()
    root, tip = make(tmp_path / "store", 0)
    whys = at_once([lambda: push_from(root, storage)] * RACERS)
    assert "rejected" not in whys
    assert require_whole(storage).refs == {"refs/branches/main": tip}


@pytest.mark.parametrize("is_shared", [True, False])
def test_d10_processes_that_push_to_a_directory(tmp_path: Path, is_shared: bool) -> None:
    place = tmp_path / "remote"
    place.mkdir()
    if not is_shared:  # as if the server had no conditional write: each has refs of its own
        (place / "format").write_bytes(b'{"needs": ["moonclip-remote-1"], "refs": "by-store"}')
    made = dict(make(tmp_path / f"store{number}", number) for number in range(RACERS))
    children: list[int] = []
    for root in made:
        child = os.fork()
        if not child:
            code = 3
            try:
                (change,) = push_from(root, DirectoryStorage(place)).changes
                code = {"new": 0, "rejected": 1}[change.why]
            finally:
                os._exit(code)
        children.append(child)
    codes = sorted(os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) for child in children)
    assert codes == ([0, *[1] * (RACERS - 1)] if is_shared else [0] * RACERS)
    refs = require_whole(DirectoryStorage(place)).refs
    assert set(refs.values()) <= set(made.values())
    assert len(refs) == (1 if is_shared else RACERS)


def test_a_store_is_used_across_a_fork(tmp_path: Path) -> None:
    place = tmp_path / "remote"
    place.mkdir()
    root, tip = make(tmp_path / "store", 0)
    with Repository.open(root) as repo, open_remote(repo, "origin", DirectoryStorage(place)) as remote:
        push(repo, remote)
        commit(repo, step=1)
        child = os.fork()
        if not child:
            code = 3
            try:
                code = {"fast-forward": 0}[push(repo, remote).changes[0].why]
            finally:
                os._exit(code)
        assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
        assert push(repo, remote).changes[0].why == "current"
        assert require_whole(remote.storage).refs == {"refs/branches/main": repo.refs.read(MAIN)}
        assert repo.refs.read(MAIN) != tip
