"""Fetching a part, and later the rest; what was pruned or collected here."""

from collections.abc import Iterator
from datetime import timedelta
from pathlib import Path

import pytest

from store.errors import NotFound, Pruned
from store.gc import collect
from store.ids import CommitId
from store.naming.refnames import branch_name, remote_name, tag_name
from store.remotes.configured import set_lazy
from store.repository import Repository
from store.upkeep.absences import Why
from store.upkeep.prune import Drop, Pruner
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import cloned, fetched, history_of, line, pushed, require_equal, require_sound, tensors
from tests.remotes.watched_storage import WatchedStorage


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


@pytest.fixture
def made(one: Repository, storage: WatchedStorage) -> list[CommitId]:
    made = line(one, range(4))
    pushed(one, storage)
    storage.forget()
    return made


def whys(repo: Repository, commit_id: CommitId) -> dict[str, Why]:
    return {record.item: record.why for record in repo.absences.records(commit_id)}


def prune(repo: Repository, commits: list[CommitId], items: tuple[str, ...] | None = None) -> None:
    rows = [row for each in commits if (row := repo.index.commit(each)) is not None]
    assert len(Pruner(repo).apply([Drop(row, items) for row in rows])) == len(commits)
    collect(repo)


def test_a_shallow_clone_has_all_history_and_the_newest_content(
    tmp_path: Path, made: list[CommitId], storage: WatchedStorage
) -> None:
    with cloned(tmp_path / "two", storage, depth=2) as two:
        assert history_of(two) == made[::-1]
        assert [whys(two, each) for each in made] == [{"*": Why.SHALLOW}] * 2 + [{}] * 2
        assert two.absences.records(made[0])[0].origin == "origin"
        assert set(tensors(two, made[3])) == {"model::new", "model::drifting", "optimizer::moment"}
        with pytest.raises(Pruned, match="fetch it from origin"):
            two.tree(two.commit(made[0]), "model")
        require_sound(two)


def test_an_item_comes_alone(tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage) -> None:
    with cloned(tmp_path / "two", storage, items=["optimizer"]) as two:
        for each in made:
            assert whys(two, each) == {"model": Why.PARTIAL}
            assert tensors(two, each) == {"optimizer::moment": tensors(one, each)["optimizer::moment"]}
        require_sound(two)
        two.set_ref(branch_name("old"), None, made[0], "branch")  # what is partial can be named


def test_lazily_no_content_comes_at_all(tmp_path: Path, made: list[CommitId], storage: WatchedStorage) -> None:
    with cloned(tmp_path / "two", storage, lazy=True) as two:
        assert "read_into" not in {method for method, _ in storage.requests}
        assert history_of(two) == made[::-1]
        assert whys(two, made[0]) == {"model": Why.PARTIAL, "optimizer": Why.PARTIAL}
        require_sound(two)


@pytest.mark.parametrize("part", [{"depth": 1}, {"items": ["model"]}, {"lazy": True}], ids=str)
def test_the_rest_comes_later_and_records_go(
    tmp_path: Path,
    made: list[CommitId],
    one: Repository,
    storage: WatchedStorage,
    part: dict[str, object],
) -> None:
    with cloned(tmp_path / "two", storage, **part) as two:
        collect(two)
        first = two.packs.total_bytes()
        done = fetched(two, storage, lazy=False)
        assert two.absences.all() == {}
        assert done.received_bytes < pushed(one, storage, dry_run=True).sent_bytes + one.packs.total_bytes()
        assert two.packs.total_bytes() > first
        require_equal(one, two, made)


def test_a_lazy_store_stays_so_until_told_otherwise(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    with cloned(tmp_path / "two", storage, lazy=True) as two:
        new = line(one, (8,))
        pushed(one, storage)
        assert fetched(two, storage).received_bytes == 0
        assert set(whys(two, new[0])) == {"model", "optimizer"}
        fetched(two, storage, items=["optimizer"])
        assert whys(two, new[0]) == whys(two, made[0]) == {"model": Why.PARTIAL}
        set_lazy(two.layout, two.files, "origin", lazy=False)
        fetched(two, storage)
        require_equal(one, two, [*made, *new])


def test_deeper_takes_only_what_is_deeper(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    with cloned(tmp_path / "two", storage, depth=1) as two:
        fetched(two, storage, depth=3)
        assert [whys(two, each) for each in made] == [{"*": Why.SHALLOW}, {}, {}, {}]
        fetched(two, storage, depth=1)  # what is here is not given up
        assert [whys(two, each) for each in made] == [{"*": Why.SHALLOW}, {}, {}, {}]
        require_sound(two)


def test_a_commit_that_is_named_comes_and_not_what_it_is_made_on(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    with cloned(tmp_path / "two", storage, depth=1) as two:
        fetched(two, storage, commits=[made[1]])
        fetched(two, storage, commits=[made[2]], items=["model"])
        assert [whys(two, each) for each in made] == [{"*": Why.SHALLOW}, {}, {"optimizer": Why.SHALLOW}, {}]
        assert tensors(two, made[1]) == tensors(one, made[1])
        require_sound(two)
    with cloned(tmp_path / "three", storage, lazy=True) as three:
        fetched(three, storage, commits=[made[1]])
        assert [len(whys(three, each)) for each in made] == [2, 0, 2, 2]
        require_sound(three)


def test_a_tag_beyond_the_depth_can_be_there_without_content(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    one.set_ref(tag_name("old"), None, made[0], "tag")
    pushed(one, storage, tags=["old"])
    with cloned(tmp_path / "two", storage, depth=1) as two:
        assert two.refs.read(tag_name("old")) == made[0]
        assert whys(two, made[0]) == {"model": Why.SHALLOW, "optimizer": Why.SHALLOW}
        require_sound(two)


def test_an_item_that_no_commit_has_is_refused_before_anything_comes(
    tmp_path: Path, made: list[CommitId], storage: WatchedStorage
) -> None:
    with pytest.raises(NotFound, match=r"no commit .* has an item 'modle'; they have model, optimizer"):
        cloned(tmp_path / "two", storage, items=["modle"])
    assert "read_into" not in {method for method, _ in storage.requests}


def test_what_was_pruned_here_comes_back_only_by_name(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    with cloned(tmp_path / "two", storage) as two:
        prune(two, made[:2])
        prune(two, made[2:3], ("optimizer",))
        assert fetched(two, storage).object_count == 0
        line(one, (8,))
        pushed(one, storage)
        fetched(two, storage)
        assert [whys(two, each) for each in made[:3]] == [{"*": Why.PRUNED}] * 2 + [{"optimizer": Why.PRUNED}]
        fetched(two, storage, commits=[made[1], made[2]])
        assert [whys(two, each) for each in made[:3]] == [{"*": Why.PRUNED}, {}, {}]
        assert tensors(two, made[1]) == tensors(one, made[1])
        assert tensors(two, made[2]) == tensors(one, made[2])
        require_sound(two)
        collect(two)
        assert tensors(two, made[1]) == tensors(one, made[1])


def test_what_was_collected_here_comes_when_it_is_reached_again(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    with cloned(tmp_path / "two", storage) as two:
        own = line(two, (9,))
        pushed(two, storage, ["main"])
        two.set_ref(branch_name("main"), own[0], made[3], "reset")
        for name in (remote_name("origin", "main"),):
            two.delete_ref(name)
        monkeypatch.setattr("store.upkeep.roots.REFLOG_EXPIRY_NS", -int(timedelta(days=1).total_seconds() * 1e9))
        collect(two)
        assert whys(two, own[0]) == {"*": Why.COLLECTED}
        fetched(two, storage)
        assert whys(two, own[0]) == {}
        fetched(one, storage)
        require_equal(one, two, [*made, *own])


def test_what_the_remote_lacks_by_right_is_absent_here_too(
    tmp_path: Path, one: Repository, storage: WatchedStorage
) -> None:
    made = line(one, range(4))
    prune(one, made[:1])
    prune(one, made[1:2], ("model",))
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        assert [whys(two, each) for each in made] == [
            {"model": Why.PRUNED, "optimizer": Why.PRUNED},
            {"model": Why.PRUNED},
            {},
            {},
        ]
        require_sound(two)
        assert set(tensors(two, made[1])) == {"optimizer::moment"}
        assert fetched(two, storage).object_count == 0


def test_what_one_store_pruned_and_another_pushed_whole_comes_whole(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    prune(one, made[:2])
    line(one, (8,))
    pushed(one, storage)
    with cloned(tmp_path / "two", storage) as two:
        assert two.absences.all() == {}
        require_sound(two)


def test_a_partial_store_goes_on_with_all_that_stores_do(
    tmp_path: Path, made: list[CommitId], one: Repository, storage: WatchedStorage
) -> None:
    """Save on what is partly here, gc, push, and the other fetches it."""
    with cloned(tmp_path / "two", storage, items=["model"]) as two:
        new = line(two, (5,))
        collect(two)
        pushed(two, storage, ["main"])
        assert list(two.log([new[0]]))[-1].id == made[0]
        require_sound(two)
        fetched(one, storage)
        require_sound(one)
        assert tensors(one, new[0]) == tensors(two, new[0])
        assert tensors(one, made[0]).items() > tensors(two, made[0]).items()
