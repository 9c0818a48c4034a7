"""Two directories that are one store by their id, as after ``cp -r``, where each store has refs of its own."""

import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.ids import CommitId
from store.naming.refnames import branch_name
from store.remotes.configured import change_id, store_id
from store.remotes.pushing.push import push
from store.remotes.refchanges import RefChange
from store.remotes.remote import open_remote
from store.remotes.remoteformat import encode_format
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import require_whole
from tests.remotes.watched_storage import WatchedStorage
from tests.stores import commit


@pytest.fixture
def storage() -> WatchedStorage:
    storage = WatchedStorage(MemoryStorage())
    storage.put("format", encode_format("by-store"))
    return storage


@pytest.fixture
def one(tmp_path: Path, storage: WatchedStorage) -> Path:
    root = tmp_path / "one"
    with Repository.init(root):
        pass
    save_and_push(root, storage, 0)
    return root


@pytest.fixture
def two(one: Path) -> Path:
    shutil.copytree(one, one.with_name("two"))
    return one.with_name("two")


def save_and_push(root: Path, storage: WatchedStorage, *steps: int) -> tuple[CommitId, RefChange]:
    """Commit, and push ``main``; gives its tip, and what became of it there."""
    with Repository.open(root) as repo:
        for step in steps:
            commit(repo, step=step)
        with open_remote(repo, "origin", storage) as remote:
            (change,) = push(repo, remote).changes
        tip = repo.refs.read(branch_name("main"))
        assert tip is not None
        return tip, change


def id_of(root: Path) -> str:
    with Repository.open(root) as repo:
        return store_id(repo.layout, repo.files)


def held(storage: WatchedStorage) -> dict[str, CommitId]:
    """What each store has on ``main`` there; the remote is whole."""
    return {key.split("/")[2]: tip for key, tip in require_whole(storage).refs.items()}


def once(act: Callable[[], object], method: str, prefix: str, storage: WatchedStorage) -> Callable[[str, str], None]:
    """A hook that does something at the first request of a kind."""

    def hook(found: str, key: str) -> None:
        if found == method and key.startswith(prefix):
            storage.live()
            act()

    return hook


def test_the_copy_that_finds_the_others_work_goes_by_another_id(
    one: Path, two: Path, storage: WatchedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    first, _ = save_and_push(one, storage, 1)
    assert not caplog.records
    second, change = save_and_push(two, storage, 2)
    assert change.why == "new"
    assert "copy" in caplog.text
    assert id_of(two) != id_of(one)
    assert held(storage) == {id_of(one): first, id_of(two): second}
    caplog.clear()
    first, _ = save_and_push(one, storage, 3)
    second, _ = save_and_push(two, storage, 4)
    assert held(storage) == {id_of(one): first, id_of(two): second}
    assert not caplog.records


def test_what_a_copy_overwrote_at_the_same_moment_comes_back(one: Path, two: Path, storage: WatchedStorage) -> None:
    made: list[CommitId] = []
    storage.before = once(lambda: made.append(save_and_push(two, storage, 2)[0]), "put", "refs/by/", storage)
    first, _ = save_and_push(one, storage, 1)
    assert list(held(storage).values()) == [first]
    save_and_push(two, storage)
    assert held(storage) == {id_of(one): first, id_of(two): made[0]}


def test_a_branch_that_a_copy_deleted_is_told_from_ones_own(one: Path, two: Path, storage: WatchedStorage) -> None:
    with Repository.open(two) as repo, open_remote(repo, "origin", storage) as remote:
        push(repo, remote, delete=["main"])
    first, _ = save_and_push(one, storage, 1)
    assert id_of(one) != id_of(two)
    assert held(storage) == {id_of(one): first}


def test_other_processes_of_the_same_store_are_no_copies(one: Path, storage: WatchedStorage) -> None:
    before = id_of(one)
    storage.after = once(
        lambda: (save_and_push(one, storage, 2), save_and_push(one, storage, 3)), "list", "refs/", storage
    )
    _, change = save_and_push(one, storage, 1)
    assert change.why == "rejected"  # it had read what was there before
    assert id_of(one) == before
    tip, _ = save_and_push(one, storage, 4)
    assert held(storage) == {before: tip}


@pytest.mark.parametrize("is_moved", [True, False])
def test_a_store_that_was_moved_or_lost_its_cache_stays_what_it_is(
    one: Path, storage: WatchedStorage, *, is_moved: bool
) -> None:
    before = id_of(one)
    root = one.rename(one.with_name("moved")) if is_moved else one
    if not is_moved:
        shutil.rmtree(one / "remotes")
    tip, change = save_and_push(root, storage, 1)
    assert change.why == "fast-forward"
    assert held(storage) == {before: tip}


def test_a_ref_does_not_move_if_that_cannot_be_written_down(one: Path, storage: WatchedStorage) -> None:
    before = held(storage)
    known = one / "remotes" / "origin" / "known"

    def block() -> None:
        known.unlink()
        (known / "in the way").mkdir(parents=True)

    storage.after = once(block, "put", "packs/", storage)
    with pytest.raises(OSError, match="known"):
        save_and_push(one, storage, 1)
    assert held(storage) == before
    shutil.rmtree(known)
    tip, _ = save_and_push(one, storage)
    assert held(storage) == {id_of(one): tip}


def test_who_finds_that_the_id_was_changed_already_takes_that(one: Path) -> None:
    with Repository.open(one) as repo:
        old = store_id(repo.layout, repo.files)
        new = change_id(repo.layout, repo.files, old)
        assert new != old
        assert change_id(repo.layout, repo.files, old) == new == store_id(repo.layout, repo.files)


def test_what_copies_say_at_the_same_moment_of_what_they_lack_is_kept(one: Path, two: Path) -> None:
    storage = WatchedStorage(MemoryStorage())
    storage.put("format", encode_format("shared"))
    lines = [f"{'ab' * 32} * pruned 5", f"{'cd' * 32} model partial 6"]

    def say(root: Path, line: str) -> None:
        with Repository.open(root) as repo, open_remote(repo, "origin", storage) as remote:
            remote.add_absent([line])

    storage.before = once(lambda: say(two, lines[1]), "put_if", "absent/", storage)
    say(one, lines[0])
    (key,) = [found.key for found in storage.list("absent/")]
    found = storage.get(key, 1000)
    assert found is not None
    assert sorted(found[0].decode().splitlines()) == sorted(lines)
