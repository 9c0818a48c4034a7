"""F8: a push that is killed at any of its requests leaves a remote that is whole, and the next one completes it."""

import os
import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from store import limits
from store.naming.refnames import branch_name, tag_name
from store.remotes.pushing import outpacks
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.remotes.storages.directory import DirectoryStorage
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import require_whole
from tests.remotes.watched_storage import Died, WatchedStorage
from tests.stores import commit, item, noise, tensor

PACK_BYTES = 40_000
WRITES = ("put", "put_if", "upload")


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A store whose push takes several packs, a branch, a tag, and something that is absent."""
    monkeypatch.setattr(outpacks, "PUSH_PACK_BYTES", PACK_BYTES)
    with Repository.init(tmp_path / "store") as repo:
        for step in range(3):
            add_step(repo, step)
        yield repo


def add_step(repo: Repository, step: int) -> None:
    tensors = {f"w{number}": tensor(noise((step, number), 10_000), position=number) for number in range(4)}
    made = commit(repo, items=[item("model", tensors)], step=step)
    repo.set_ref(tag_name(f"step{step}"), None, made, "tag")


def pushed(repo: Repository, storage: WatchedStorage, *tags: str) -> None:
    with open_remote(repo, "origin", storage) as remote:
        push(repo, remote, ["main"], tags=tags).require_all()


@pytest.mark.parametrize("is_done", [False, True])
def test_f8_killed_at_each_request_the_remote_is_whole_and_a_rerun_completes(repo: Repository, is_done: bool) -> None:
    first = WatchedStorage(MemoryStorage())
    pushed(repo, first, "step1")
    before = dict(first.storage._objects)  # type: ignore[attr-defined]
    add_step(repo, 3)
    tip = repo.refs.read(branch_name("main"))
    count = 0
    while True:
        storage = WatchedStorage(MemoryStorage())
        storage.storage._objects.update(before)  # type: ignore[attr-defined]
        storage.storage._count = 1000  # type: ignore[attr-defined]
        (repo.layout.root / "remotes" / "origin" / "known").unlink()
        open_remote(repo, "origin", storage).cache.keep_atomic(atomic=True)
        storage.die_at(count, is_done=is_done)
        try:
            pushed(repo, storage, "step3")
        except Died:
            storage.live()
        else:
            break
        require_whole(storage)
        there = {found.key for found in storage.storage.list("packs/")}
        storage.forget()
        pushed(repo, storage, "step3")
        state = require_whole(storage)
        assert set(state.refs) == {"refs/branches/main", "refs/tags/step1", "refs/tags/step3"}
        assert state.refs["refs/branches/main"] == tip
        assert set(state.copy_count.values()) == {1}
        sent = [key for method, key in storage.requests if method == "upload"]
        assert not there.intersection(sent)
        count += 1
    assert count >= 12


def test_f8_a_first_push_that_was_killed_at_each_write_is_taken_up(tmp_path: Path, repo: Repository) -> None:
    total = 0
    for count in range(200):
        storage = WatchedStorage(MemoryStorage())
        storage.storage.url = f"memory:{count}"  # type: ignore[misc]
        with Repository.open(repo.layout.root) as store:
            left = count

            def die(method: str, key: str) -> None:
                nonlocal left
                if method in WRITES and not key.startswith("scratch/"):
                    left -= 1
                    if left < 0:
                        raise Died

            storage.after = die
            try:
                pushed(store, storage, "step1")
            except Died:
                storage.live()
            else:
                break
            require_whole(storage)
            uploaded = [key for method, key in storage.requests if method == "upload"]
            storage.forget()
            pushed(store, storage, "step1")
            assert not set(uploaded) & {key for method, key in storage.requests if method == "upload"}
            require_whole(storage)
            total += 1
    assert total > 8


def _push_until_killed(root: Path, place: Path, number: int) -> None:
    """In a child: push, and be killed at a write."""
    storage = WatchedStorage(DirectoryStorage(place))
    left = number

    def die(method: str, key: str) -> None:
        nonlocal left
        if method in WRITES and not key.startswith("scratch/"):
            left -= 1
            if left < 0:
                os.kill(os.getpid(), signal.SIGKILL)

    storage.after = die
    with Repository.open(root) as repo:
        pushed(repo, storage, "step1")


@pytest.mark.parametrize("number", [0, 1, 2, 3, 5, 6, 7])
def test_f8_a_process_that_is_killed_leaves_a_directory_that_is_whole(
    repo: Repository, tmp_path: Path, number: int
) -> None:
    place = tmp_path / "remote"
    place.mkdir()
    child = os.fork()
    if not child:
        try:
            _push_until_killed(repo.layout.root, place, number)
        finally:
            os._exit(1)
    _, status = os.waitpid(child, 0)
    assert os.WIFSIGNALED(status)
    require_whole(DirectoryStorage(place))
    pushed(repo, WatchedStorage(DirectoryStorage(place)), "step1")
    assert len(require_whole(DirectoryStorage(place)).refs) == 2


def test_packs_are_as_large_as_they_should(repo: Repository) -> None:
    storage = WatchedStorage(MemoryStorage())
    pushed(repo, storage)
    sizes = [found.size_bytes for found in storage.storage.list("packs/") if found.key.endswith(".pack")]
    assert len(sizes) >= 3
    assert max(sizes) <= PACK_BYTES
    assert limits.PUSH_PACK_BYTES > PACK_BYTES
