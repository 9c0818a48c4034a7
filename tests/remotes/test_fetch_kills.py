"""A fetch that is killed, and what goes on beside one. F8 for fetch."""

import os
import signal
from collections.abc import Callable, Iterator
from contextlib import suppress
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Busy
from store.gc import collect
from store.ids import CommitId
from store.naming.refnames import branch_name, remote_name
from store.remotes.configured import RemoteConfig
from store.remotes.fetching.clone import clone
from store.remotes.fetching.fetch import fetch
from store.remotes.remote import open_remote
from store.remotes.storages.directory import DirectoryStorage
from store.repository import Repository
from store.saving.leases import living_leases
from store.upkeep.prune import Drop, Pruner
from store.upkeep.roots import read_roots
from tests.killing import forked
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import big, cloned, fetched, line, pushed, require_equal, require_sound, tensors
from tests.remotes.watched_storage import Died, WatchedStorage
from tests.stores import commit

WINDOW_BYTES = 20_000


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


@pytest.fixture
def made(one: Repository, storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch) -> list[CommitId]:
    monkeypatch.setattr("store.remotes.fetching.incoming.FETCH_WINDOW_BYTES", WINDOW_BYTES)
    monkeypatch.setattr("store.remotes.fetching.incoming.FETCH_RUN_BYTES", WINDOW_BYTES // 4)
    made = line(one, range(5))
    pushed(one, storage)
    storage.forget()
    return made


def requests_of(root: Path, storage: WatchedStorage) -> int:
    storage.forget()
    cloned(root, storage).close()
    return len(storage.requests)


def test_f8_a_clone_that_is_killed_at_any_request_is_completed_by_another(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    count = requests_of(tmp_path / "whole", storage)
    assert count > 12
    for number in range(count):
        root = tmp_path / f"two{number}"
        storage.die_at(number, is_done=number % 2 == 1)
        with pytest.raises(Died):
            cloned(root, storage)
        storage.live()
        if root.exists():
            with Repository.open(root) as left:
                require_sound(left)
                assert living_leases(root, left.files) == []
        with cloned(root, storage) as two:
            require_equal(one, two, made[-1:])
            assert [row.id for row in two.log([two.resolve("main")])] == made[::-1]


def test_f8_what_came_before_a_kill_does_not_come_again(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    with Repository.init(tmp_path / "whole") as whole:
        all_bytes = fetched(whole, storage).received_bytes
        reads = [number for number, request in enumerate(storage.requests) if request[0] == "read_into"]
    with Repository.init(tmp_path / "two") as two:
        storage.die_at(reads[-1], is_done=False)
        with pytest.raises(Died):
            fetched(two, storage)
        storage.live()
        assert fetched(two, storage).received_bytes < min(all_bytes / 2, 4 * WINDOW_BYTES)
        require_equal(one, two, made)


def test_gc_beside_a_fetch_takes_nothing_that_came(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    """What came is indexed long before a commit needs it."""
    with Repository.init(tmp_path / "two", thread_count=2) as two, Repository.open(tmp_path / "two") as beside:
        line(two, (30, 31), "own")
        collected = 0

        def collect_beside(method: str, _key: str) -> None:
            nonlocal collected
            if method == "read_into":
                with suppress(Busy):
                    collected += 1
                    collect(beside)

        storage.before = collect_beside
        done = fetched(two, storage)
        assert collected > 5
        held = {entry.id for pack in one.packs.pack_ids() for entry in one.packs.table(pack).entries}
        assert done.object_count <= len(held)
        storage.live()
        collect(two)
        require_equal(one, two, made)


def test_what_is_here_and_swept_meanwhile_comes_from_the_remote(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A fetch that counts on what nothing keeps here looks again once that is gone."""
    monkeypatch.setattr("store.upkeep.roots.REFLOG_EXPIRY_NS", -(1 << 60))
    with cloned(tmp_path / "two", storage) as two:
        for name in two.refs.names():
            two.refs.update(name, two.refs.read(name), None, "delete")
        assert not read_roots(two).commits
        new = line(one, (9,))
        pushed(one, storage)
        is_due = True

        def sweep(method: str, _key: str) -> None:
            nonlocal is_due
            if method == "read_into" and is_due:
                is_due = False
                collect(two)

        storage.before = sweep
        fetched(two, storage)
        assert not is_due
        storage.live()
        require_equal(one, two, [*made, *new])


def test_what_is_shared_with_a_commit_that_is_pruned_meanwhile_comes_too(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    """What a commit that is kept here has need not be looked at: but for as long as it is kept."""
    monkeypatch.setattr("store.upkeep.roots.REFLOG_EXPIRY_NS", -(1 << 60))
    with cloned(tmp_path / "two", storage) as two:
        line(two, (30,))
        new = commit(one, items=[big(40)[0], big(4)[1]])
        pushed(one, storage)
        two.delete_ref(remote_name("origin", "main"))
        is_due = True

        def prune_beside(method: str, _key: str) -> None:
            nonlocal is_due
            if method == "read_into" and is_due:
                is_due = False
                row = two.index.commit(made[-1])
                assert row is not None
                assert Pruner(two).apply([Drop(row)])
                collect(two)

        storage.before = prune_beside
        fetched(two, storage)
        assert not is_due
        assert two.absences.reason(made[-1]) is not None
        storage.live()
        assert tensors(two, new) == tensors(one, new)
        require_sound(two)


def test_two_fetches_at_once_into_one_store_both_succeed(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    with Repository.init(tmp_path / "two", thread_count=2) as two, Repository.open(tmp_path / "two") as beside:
        is_due = True

        def fetch_beside(method: str, _key: str) -> None:
            nonlocal is_due
            if method == "read_into" and is_due:
                is_due = False
                fetched(beside, storage.storage)

        storage.before = fetch_beside
        assert {change.why for change in fetched(two, storage).changes} == {"current"}
        require_equal(one, two, made)


# --- real processes -------------------------------------------------------------------------------------------------


class Dying(Disk):
    """Kills the process at a call that changes what is on disk, the first being 0."""

    def __init__(self, number: int) -> None:
        self._left = number

    def _count(self) -> None:
        self._left -= 1
        if self._left < 0:
            os.kill(os.getpid(), signal.SIGKILL)

    def fsync(self, fd: int) -> None:
        self._count()
        super().fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._count()
        super().rename(source, target)

    def sync_directory(self, path: Path) -> None:
        super().sync_directory(path)
        self._count()


def killed(work: Callable[[], object]) -> bool:
    """Run something in a child; whether it was killed, and not done."""
    _, status = os.waitpid(forked(lambda: (work(), None)[1]), 0)
    assert os.WIFSIGNALED(status) or os.WEXITSTATUS(status) == 0
    return os.WIFSIGNALED(status)


@pytest.mark.parametrize("depth", [None, 1], ids=["all", "shallow"])
def test_f8_a_process_that_is_killed_at_any_write_leaves_a_store_that_the_next_completes(
    tmp_path: Path, depth: int | None, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("store.remotes.fetching.incoming.FETCH_WINDOW_BYTES", WINDOW_BYTES)
    (tmp_path / "remote").mkdir()
    storage = DirectoryStorage(tmp_path / "remote")
    with Repository.init(tmp_path / "one", thread_count=1) as one:
        made = line(one, range(3))
        pushed(one, storage)
        content = {each: tensors(one, each) for each in made}
    number = 0
    while True:
        root = tmp_path / f"two{number}"
        Repository.init(root).close()

        def work(root: Path = root, number: int = number) -> None:
            files = Files(Dying(number))
            with Repository.open(root, files=files, thread_count=1) as repo, open_remote(repo, "origin", storage) as at:
                fetch(repo, at, depth=depth)

        was_killed = killed(work)
        with Repository.open(root, thread_count=1) as repo:
            require_sound(repo)
            fetched(repo, storage)
            tip = repo.refs.read("remotes/origin/main")
            assert tip == made[-1]
            assert {each: tensors(repo, each) for each in made} == content
            assert repo.absences.all() == {}
            require_sound(repo)
        if not was_killed:
            break
        number += 4
    assert number > 40


def test_f8_a_clone_in_a_process_that_is_killed_at_a_request_is_completed(tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    config = RemoteConfig("origin", str(tmp_path / "remote"))
    with Repository.init(tmp_path / "one", thread_count=1) as one:
        made = line(one, range(2))
        pushed(one, DirectoryStorage(tmp_path / "remote"))
        watched = WatchedStorage(DirectoryStorage(tmp_path / "remote"))
        for number in range(requests_of(tmp_path / "whole", watched)):

            def work(number: int = number) -> None:
                storage = WatchedStorage(DirectoryStorage(tmp_path / "remote"))
                left = number

                def count(_method: str, _key: str) -> None:
                    nonlocal left
                    left -= 1
                    if left < 0:
                        os.kill(os.getpid(), signal.SIGKILL)

                storage.before = count
                clone(config, tmp_path / f"two{number}", storage=storage, thread_count=1).close()

            assert killed(work)
            with clone(config, tmp_path / f"two{number}", thread_count=1) as two:
                assert two.refs.read(branch_name("main")) == made[-1]
                require_equal(one, two, made)
