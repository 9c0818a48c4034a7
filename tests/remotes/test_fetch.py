"""Fetching: what comes, what moves, and what does not."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Incompatible, NotFound
from store.ids import CommitId
from store.naming.refnames import RefName, branch_name, remote_name, tag_name
from store.remotes.fetching.fetch import Fetched
from store.remotes.refchanges import RefChange
from store.remotes.remoteformat import encode_format
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import cloned, fetched, history_of, line, pushed, require_equal, require_sound
from tests.remotes.watched_storage import WatchedStorage
from tests.stores import commit, state


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "two", thread_count=2) as repo:
        yield repo


def change_of(done: Fetched, name: RefName) -> RefChange:
    (found,) = (change for change in done.changes if change.name == name)
    return found


def force(repo: Repository, branch: str, commit_id: CommitId) -> None:
    name = branch_name(branch)
    repo.set_ref(name, repo.refs.read(name), commit_id, "reset")


ORIGIN_MAIN = remote_name("origin", "main")


def test_everything_comes_and_is_the_same(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    made = line(one, range(6))
    one.set_ref(branch_name("exp/lr3"), None, made[2], "branch")
    made += line(one, (10, 11), "exp/lr3")
    one.set_ref(tag_name("best"), None, made[4], "tag")
    pushed(one, storage, tags=["best"])
    done = fetched(two, storage)
    assert {change.name: change.why for change in done.changes} == {
        ORIGIN_MAIN: "new",
        remote_name("origin", "exp/lr3"): "new",
        tag_name("best"): "new",
    }
    assert done.commit_count == 8
    assert two.refs.list("branches/") == {}
    assert two.refs.reflog(ORIGIN_MAIN)[0].action == "fetch"
    require_equal(one, two, made)


def test_a_second_fetch_asks_twice_and_reads_nothing(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    line(one, range(2))
    pushed(one, storage)
    fetched(two, storage)
    storage.forget()
    done = fetched(two, storage)
    assert (done.commit_count, done.object_count, done.received_bytes) == (0, 0, 0)
    assert {change.why for change in done.changes} == {"current"}
    assert len(storage.requests) == 2


def test_only_what_is_new_comes(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    line(one, range(3))
    pushed(one, storage)
    fetched(two, storage)
    made = line(one, (3,))
    new = pushed(one, storage)
    storage.forget()
    done = fetched(two, storage)
    assert change_of(done, ORIGIN_MAIN).why == "fast-forward"
    assert done.commit_count == 1
    assert done.stored_bytes == new.stored_bytes
    assert done.received_bytes < new.stored_bytes * 1.05
    assert len(storage.requests) <= 8
    require_equal(one, two, made)


def test_what_the_other_history_has_is_not_fetched_again(
    one: Repository, two: Repository, storage: WatchedStorage
) -> None:
    """Both saved the same weights, each in a commit of its own."""
    commit(one, items=state(1))
    commit(two, items=state(1))
    new = pushed(one, storage)
    done = fetched(two, storage)
    assert (done.object_count, new.object_count) == (1, 7)
    require_sound(two)


def test_a_branch_that_was_reset_there_is_told_as_forced(
    one: Repository, two: Repository, storage: WatchedStorage
) -> None:
    made = line(one, range(3))
    pushed(one, storage)
    fetched(two, storage)
    force(one, "main", made[0])
    other = line(one, (9,))
    pushed(one, storage, force_with_lease=True)
    change = change_of(fetched(two, storage), ORIGIN_MAIN)
    assert (change.why, change.old, change.new) == ("forced", made[2], other[0])
    require_equal(one, two, [*made, *other])


def test_a_tag_that_is_here_stays_where_it_is(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    made, own = line(one, range(2)), line(two, (5,))
    for repo, where in ((one, made[0]), (two, own[0])):
        repo.set_ref(tag_name("best"), None, where, "tag")
    pushed(one, storage, tags=["best"])
    change = change_of(fetched(two, storage), tag_name("best"))
    assert change.why == "rejected"
    assert "tags do not move" in change.reason
    assert two.refs.read(tag_name("best")) == own[0]


def test_what_was_deleted_there_goes_only_when_asked(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    made = line(one, range(2))
    one.set_ref(branch_name("exp"), None, made[0], "branch")
    pushed(one, storage)
    fetched(two, storage)
    pushed(one, storage, delete=["exp"])
    assert fetched(two, storage).changes == [RefChange(ORIGIN_MAIN, made[1], made[1], "current")]
    assert two.refs.read(remote_name("origin", "exp")) == made[0]
    told = fetched(two, storage, prune=True, dry_run=True)
    assert change_of(told, remote_name("origin", "exp")).why == "deleted"
    assert two.refs.read(remote_name("origin", "exp")) == made[0]
    fetched(two, storage, prune=True)
    assert two.refs.read(remote_name("origin", "exp")) is None


def test_a_branch_in_whose_way_one_is_that_was_deleted_comes_once_that_is_pruned(
    one: Repository, two: Repository, storage: WatchedStorage
) -> None:
    made = line(one, range(2))
    one.set_ref(branch_name("exp"), None, made[0], "branch")
    pushed(one, storage)
    fetched(two, storage)
    pushed(one, storage, delete=["exp"])
    one.delete_ref(branch_name("exp"))
    one.set_ref(branch_name("exp/lr3"), None, made[1], "branch")
    pushed(one, storage)
    change = change_of(fetched(two, storage), remote_name("origin", "exp/lr3"))
    assert change.why == "rejected"
    assert "cannot be while there is" in change.reason
    assert change_of(fetched(two, storage, prune=True), remote_name("origin", "exp/lr3")).why == "new"


def test_two_stores_that_disagree_on_a_tag_each_keep_theirs(
    one: Repository, two: Repository, storage: WatchedStorage
) -> None:
    storage.put("format", encode_format("by-store"))
    for repo, step in ((one, 1), (two, 2)):
        (made,) = line(repo, (step,), f"b{step}")
        repo.set_ref(tag_name("best"), None, made, "tag")
        pushed(repo, storage, tags=["best"])
    done = fetched(two, storage)
    assert [change.why for change in done.changes if change.name == tag_name("best")] == ["current"]
    assert done.diverged == []
    assert two.refs.read(tag_name("best")) == two.resolve("b2")


def test_what_packs_held_that_are_gone_there_is_forgotten(
    one: Repository, two: Repository, storage: WatchedStorage
) -> None:
    def known() -> set[str]:
        return {path.name for path in (two.layout.root / "remotes" / "origin" / "idx").iterdir()}

    def there() -> set[str]:
        return {found.key[6:70] for found in storage.list("packs/") if found.key.endswith(".idx")}

    line(one, range(2), "old")
    pushed(one, storage)
    fetched(two, storage)
    gone = known()
    assert gone == there() != set()
    line(one, (9,))
    pushed(one, storage)
    storage.delete([f"packs/{name}.{end}" for name in gone for end in ("idx", "pack")])
    fetched(two, storage, ["main"])
    assert known() == there()
    assert not known() & gone


def test_only_branches_that_are_named_come(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    made = line(one, range(2))
    one.set_ref(branch_name("exp"), None, made[0], "branch")
    line(one, (7,), "exp")
    pushed(one, storage)
    done = fetched(two, storage, ["main"])
    assert [change.name for change in done.changes] == [ORIGIN_MAIN]
    assert done.commit_count == 2
    with pytest.raises(NotFound, match="no branch 'nope'; it has: exp, main"):
        fetched(two, storage, ["nope"])


def test_a_dry_run_changes_nothing(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    line(one, range(2))
    pushed(one, storage)
    done = fetched(two, storage, dry_run=True)
    assert done.commit_count == 2
    assert change_of(done, ORIGIN_MAIN).why == "new"
    assert two.refs.list() == {}
    assert two.packs.pack_ids() == []
    received = fetched(two, storage)
    assert received.stored_bytes == done.most_bytes > 0
    assert fetched(two, storage, dry_run=True).most_bytes == 0


def test_an_empty_remote_has_nothing(two: Repository, storage: WatchedStorage) -> None:
    assert fetched(two, storage) == Fetched("origin")


def test_a_depth_of_nothing_is_refused(two: Repository, storage: WatchedStorage) -> None:
    with pytest.raises(Incompatible, match="at least 1"):
        fetched(two, storage, depth=0)


def test_progress_is_told_and_true(one: Repository, two: Repository, storage: WatchedStorage) -> None:
    line(one, range(3))
    pushed(one, storage)
    told: list[tuple[str, int, int]] = []
    done = fetched(two, storage, progress=lambda *each: told.append(each))
    assert {what for what, _, _ in told} == {"downloading"}
    assert told[-1][1] == told[-1][2] == done.received_bytes
    assert [each[1] for each in told] == sorted(each[1] for each in told)


def test_two_stores_work_on_one_branch_each_in_turn(tmp_path: Path, one: Repository, storage: WatchedStorage) -> None:
    line(one, range(2))
    pushed(one, storage)
    with cloned(tmp_path / "other", storage) as other:
        made = line(other, (2, 3))
        pushed(other, storage)
        fetched(one, storage)
        one.set_ref(branch_name("main"), one.refs.read(branch_name("main")), made[-1], "pull")
        line(one, (4,))
        pushed(one, storage)
        fetched(other, storage)
        other.set_ref(branch_name("main"), made[-1], one.resolve("main"), "pull")
        assert history_of(one) == history_of(other)
        require_equal(one, other, history_of(one))


def test_two_stores_that_branch_from_one_commit_get_each_others_lines(
    tmp_path: Path, one: Repository, storage: WatchedStorage
) -> None:
    line(one, range(3))
    pushed(one, storage)
    with cloned(tmp_path / "other", storage) as other:
        for repo, branch, steps in ((one, "left", (10, 11)), (other, "right", (20, 21))):
            repo.set_ref(branch_name(branch), None, repo.resolve("main"), "branch")
            line(repo, steps, branch)
            pushed(repo, storage, [branch])
        fetched(one, storage)
        fetched(other, storage)
        for repo in (one, other):
            for name in ("left", "right", "main"):
                tip = repo.refs.read(remote_name("origin", name))
                assert tip is not None
                assert tip == (one if name == "left" else other).resolve(name)
        rows = [{row.id: row.parents for row in repo.log(repo.refs.list().values())} for repo in (one, other)]
        assert rows[0] == rows[1]
        require_equal(one, other, rows[0])
