"""Moving a branch forward to the remote's; and a remote on which each store has its own refs."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Conflict, NotFound
from store.naming.refnames import branch_name, remote_name, short_name
from store.remotes.fetching.pull import Pulled, pull
from store.remotes.names import RefKey
from store.remotes.remote import open_remote
from store.remotes.remoteformat import encode_format
from store.remotes.storages.storage import Storage
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import cloned, fetched, history_of, line, pushed, require_equal


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


def pulled(repo: Repository, storage: Storage, branch: str | None = None) -> Pulled:
    with open_remote(repo, "origin", storage) as remote:
        return pull(repo, remote, branch)


def test_a_branch_moves_forward_and_no_more(tmp_path: Path, one: Repository, storage: MemoryStorage) -> None:
    made = line(one, range(2))
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        new = line(one, (2, 3))
        pushed(one, storage)
        done = pulled(two, storage)
        assert (done.branch, done.old, done.new) == ("main", made[-1], new[-1])
        assert two.refs.reflog("branches/main")[0].action == "pull"
        require_equal(one, two, new)
        assert pulled(two, storage).old == pulled(two, storage).new == new[-1]
        ahead = line(two, (4,))
        assert pulled(two, storage).new == ahead[-1]


def test_a_branch_that_is_not_here_is_made(tmp_path: Path, one: Repository, storage: MemoryStorage) -> None:
    made = line(one, range(2), "exp/a")
    line(one, range(1))
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        assert pulled(two, storage, "exp/a").old is None
        assert two.refs.read(branch_name("exp/a")) == made[-1]
        with pytest.raises(NotFound, match="no branch 'nope'"):
            pulled(two, storage, "nope")


def test_lines_that_went_apart_are_not_put_together_silently(
    tmp_path: Path, one: Repository, storage: MemoryStorage
) -> None:
    line(one, range(2))
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        own, theirs = line(two, (5,)), line(one, (6,))
        pushed(one, storage)
        with pytest.raises(Conflict, match="merge --average main origin/main") as caught:
            pulled(two, storage)
        assert (caught.value.details["expected"], caught.value.details["got"]) == (own[0].hex(), theirs[0].hex())
        assert two.refs.read(branch_name("main")) == own[0]
        assert two.refs.read(remote_name("origin", "main")) == theirs[0]
        require_equal(one, two, theirs)


# --- each store its own refs ----------------------------------------------------------------------------------------


@pytest.fixture
def apart(storage: MemoryStorage) -> MemoryStorage:
    """A remote whose server cannot compare and swap."""
    storage.put("format", encode_format("by-store"))
    return storage


def test_where_refs_are_each_stores_own_the_one_that_is_ahead_is_the_branch(
    tmp_path: Path, one: Repository, apart: MemoryStorage
) -> None:
    line(one, range(2))
    pushed(one, apart)
    with cloned(tmp_path / "two", apart) as two:
        new = line(two, (3,))
        pushed(two, apart, ["main"])
        with open_remote(one, "origin", apart) as remote:
            assert len({key.store for key in remote.refs()}) == 2
            assert all(isinstance(key, RefKey) and key.store for key in remote.refs())
        assert pulled(one, apart).new == new[-1]
        assert history_of(one) == history_of(two)
        require_equal(one, two, new)


def test_where_they_went_apart_each_sees_the_other_and_is_told(
    tmp_path: Path, one: Repository, apart: MemoryStorage
) -> None:
    line(one, range(2))
    pushed(one, apart)
    with cloned(tmp_path / "two", apart) as two:
        mine, theirs = line(one, (5,)), line(two, (6,))
        pushed(one, apart)
        pushed(two, apart, ["main"])
        done = fetched(one, apart)
        assert done.diverged == ["main"]
        with open_remote(two, "origin", apart) as remote:
            other = remote_name("origin", f"{remote.store_id[:8]}/main")
        assert one.refs.read(remote_name("origin", "main")) == mine[0]
        assert one.refs.read(other) == theirs[0]
        with pytest.raises(Conflict, match=f"went different ways.*merge --average main {short_name(other)}`"):
            pulled(one, apart)
        require_equal(one, two, theirs)
        fetched(two, apart)
        require_equal(one, two, mine)
        with pytest.raises(Conflict, match="went different ways"):
            cloned(tmp_path / "three", apart)
        for repo in (one,):
            repo.set_ref(branch_name("main"), mine[0], theirs[0], "reset")
        pushed(one, apart, force_with_lease=True)
        done = fetched(one, apart, prune=True)
        assert done.diverged == []
        assert one.refs.read(other) is None
