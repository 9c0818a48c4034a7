"""A new store from a remote."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Conflict, Incompatible, NotFound, RemoteMissing, RemoteUnavailable
from store.naming.refnames import branch_name, remote_name, tag_name
from store.remotes.configured import RemoteConfig, remotes
from store.remotes.fetching.clone import clone
from store.remotes.remote import open_remote
from store.remotes.remoteformat import encode_format
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import CONFIG, cloned, history_of, line, pushed, require_equal
from tests.remotes.watched_storage import WatchedStorage


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


def test_a_clone_can_be_gone_on_with(tmp_path: Path, one: Repository, storage: WatchedStorage) -> None:
    made = line(one, range(3))
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        assert two.refs.head() == "main"
        assert two.refs.reflog("branches/main")[0].action == "clone"
        assert remotes(two.layout, two.files) == {"origin": CONFIG}
        require_equal(one, two, made)
        new = line(two, (5,))
        pushed(two, storage, ["main"])
        assert history_of(two) == [*new, *made[::-1]]


def test_the_branch_to_begin_with_is_main_or_the_newest_or_as_told(
    tmp_path: Path, one: Repository, storage: WatchedStorage
) -> None:
    line(one, range(2), "older")
    line(one, range(5, 7), "exp/newer")
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        assert two.refs.head() == "exp/newer"
        assert list(two.refs.list("branches/")) == [branch_name("exp/newer")]
    with cloned(tmp_path / "three", storage, branch="older") as three:
        assert three.refs.head() == "older"
        assert three.resolve("HEAD") == one.resolve("older")
    line(one, (9,), "main")
    line(one, (10,), "exp/newer")
    pushed(one, storage)
    with cloned(tmp_path / "four", storage) as four:
        assert four.refs.head() == "main"


def test_a_branch_that_only_ends_like_one_on_which_stores_differ_is_begun_with(
    tmp_path: Path, one: Repository, storage: WatchedStorage
) -> None:
    storage.put("format", encode_format("by-store"))
    line(one, range(2))
    line(one, (5,), "exp/main")
    pushed(one, storage)
    with Repository.init(tmp_path / "other", thread_count=2) as other:
        line(other, (7,))
        pushed(other, storage)
    with cloned(tmp_path / "two", storage) as two:
        assert two.refs.head() == "exp/main"
        assert two.resolve("HEAD") == one.resolve("exp/main")


def test_nothing_is_made_where_there_is_nothing_to_clone(
    tmp_path: Path, one: Repository, storage: WatchedStorage
) -> None:
    two = tmp_path / "two"
    with pytest.raises(NotFound, match="nothing was pushed there"):
        cloned(two, storage)
    line(one, range(2))
    pushed(one, storage)
    with pytest.raises(NotFound, match="no branch 'nope'; it has: main"):
        cloned(two, storage, branch="nope")
    with pytest.raises(RemoteMissing):
        clone(RemoteConfig("origin", str(tmp_path / "nowhere")), two)
    with pytest.raises(Incompatible):
        clone(RemoteConfig("a/b", str(tmp_path)), two)
    with pytest.raises(Incompatible, match="is a store, and no remote"):  # whose refs lie where a remote's would
        clone(RemoteConfig("origin", str(tmp_path / "one")), two)
    assert not two.exists()


def test_a_branch_that_cannot_be_here_beside_another_is_told_of(
    tmp_path: Path, one: Repository, storage: WatchedStorage, caplog: pytest.LogCaptureFixture
) -> None:
    line(one, range(2))
    (tip,) = line(one, range(1), "exp")
    pushed(one, storage)
    with open_remote(one, "origin", storage) as remote:  # a push would refuse it
        remote.swap_ref(remote.own_key(branch_name("exp/lr3")), None, tip)
    with cloned(tmp_path / "two", storage) as two:
        assert set(two.refs.list("remotes/")) == {remote_name("origin", "main"), remote_name("origin", "exp")}
    assert "remote branch 'origin/exp/lr3' was not made: " in caplog.text


def test_a_store_that_is_there_is_left_alone(tmp_path: Path, one: Repository, storage: WatchedStorage) -> None:
    line(one, range(2))
    pushed(one, storage)
    before = one.refs.list()
    with pytest.raises(Conflict, match="there is a store"):
        cloned(tmp_path / "one", storage)
    assert one.refs.list() == before
    assert remotes(one.layout, one.files) == {}


def test_a_clone_does_not_lie_among_somebodys_files(tmp_path: Path, one: Repository, storage: WatchedStorage) -> None:
    line(one, range(2))
    pushed(one, storage)
    mine = tmp_path / "mine"
    mine.mkdir()
    (mine / "train.py").write_text("")
    with pytest.raises(Conflict, match=r"not empty, it has 'train\.py'"):
        cloned(mine, storage)
    assert [path.name for path in mine.iterdir()] == ["train.py"]
    (mine / "train.py").rename(mine / "ballast")  # as the beginning of a store leaves it
    cloned(mine, storage).close()


def test_a_remote_that_fails_leaves_what_another_clone_completes(
    tmp_path: Path, one: Repository, storage: WatchedStorage
) -> None:
    made = line(one, range(3))
    one.set_ref(tag_name("best"), None, made[1], "tag")
    pushed(one, storage, tags=["best"])

    def fail(method: str, _key: str) -> None:
        if method == "read_into":
            raise RemoteUnavailable("no answer")

    storage.before = fail
    with pytest.raises(RemoteUnavailable):
        cloned(tmp_path / "two", storage)
    storage.live()
    with cloned(tmp_path / "two", storage) as two:
        assert two.refs.read(tag_name("best")) == made[1]
        require_equal(one, two, made)
