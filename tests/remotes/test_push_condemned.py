"""A push beside a gc of the remote, and beside what the remote lost: it never ends with a ref that needs what goes."""

from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.errors import Conflict
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name
from store.remotes.condemned import encode_condemned
from store.remotes.names import CONDEMNED, PackName, parse_pack
from store.remotes.pushing.push import Pushed, push
from store.remotes.remote import open_remote
from store.remotes.storages.storage import Stat, Storage
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import read_remote, require_whole
from tests.remotes.watched_storage import Died, WatchedStorage
from tests.stores import commit, state


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store") as repo:
        yield repo


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


def pushed(repo: Repository, storage: WatchedStorage, **options: object) -> Pushed:
    with open_remote(repo, "origin", storage) as remote:
        return push(repo, remote, **options)  # type: ignore[arg-type]


def packs(storage: Storage) -> set[PackName]:
    return {parsed[0] for found in storage.list("packs/") if (parsed := parse_pack(found.key))}


def condemn(storage: Storage, names: set[PackName], since_ns: int = 1) -> None:
    storage.put(CONDEMNED, encode_condemned({name.text: since_ns for name in names}))


def once(storage: WatchedStorage, is_it: Callable[[str, str], bool], act: Callable[[], None]) -> None:
    """Do something just before the first request of a kind."""

    def before(method: str, key: str) -> None:
        if is_it(method, key):
            storage.live()
            act()

    storage.before = before


def is_ref_move(method: str, key: str) -> bool:
    return method == "put_if" and key.startswith("refs/")


def test_packs_that_are_about_to_go_are_sent_under_another_name(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    pushed(repo, storage, delete=["main"])
    old = packs(storage)
    condemn(storage, old)
    result = pushed(repo, storage)
    assert result.pack_count == len(old)
    assert not [name for name in packs(storage) - old if "-" not in name.text]
    require_whole(storage)
    storage.delete([key for name in old for key in (name.pack_key, name.idx_key)])
    require_whole(storage)


def test_they_are_found_there_by_a_push_that_is_taken_up(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    pushed(repo, storage, delete=["main"])
    condemn(storage, packs(storage))

    def die() -> None:
        raise Died

    once(storage, is_ref_move, die)
    with pytest.raises(Died):
        pushed(repo, storage)
    there = packs(storage)
    result = pushed(repo, storage)
    assert (result.pack_count, result.skipped_packs) == (0, 1)
    assert packs(storage) == there
    require_whole(storage)


def test_what_lies_in_packs_that_are_about_to_go_is_not_relied_on(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    condemn(storage, packs(storage))  # by a gc that looked before that push moved its ref
    commit(repo, step=100)
    pushed(repo, storage)
    require_whole(storage)


def test_what_is_condemned_while_a_push_goes_on_is_sent_again(repo: Repository, storage: WatchedStorage) -> None:
    for step in (0, 100):
        commit(repo, step=step)
        pushed(repo, storage)
    old = packs(storage)
    commit(repo, step=200)
    once(storage, is_ref_move, lambda: condemn(storage.storage, old))
    pushed(repo, storage)
    state_then = require_whole(storage)
    assert len(state_then.refs) == 1
    storage.delete([key for name in old for key in (name.pack_key, name.idx_key)])
    require_whole(storage)


def test_what_is_deleted_while_a_push_goes_on_is_sent_again(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    old = packs(storage)
    condemn(storage, old)
    storage.put(CONDEMNED, encode_condemned({}))
    commit(repo, step=100)

    def sweep() -> None:
        storage.storage.delete([key for name in old for key in (name.idx_key, name.pack_key)])
        storage.storage.put(CONDEMNED, encode_condemned({}))

    once(storage, is_ref_move, sweep)
    pushed(repo, storage)
    require_whole(storage)


def test_what_went_while_packs_were_sent_is_there_again_before_the_ref_moves(
    repo: Repository, storage: WatchedStorage
) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    old = packs(storage)
    commit(repo, step=100)
    moves = 0

    def sweep() -> None:
        storage.storage.delete([key for name in old for key in (name.idx_key, name.pack_key)])
        condemn(storage.storage, old)
        storage.after = see_that_it_is_whole

    def see_that_it_is_whole(method: str, key: str) -> None:
        nonlocal moves
        if is_ref_move(method, key):
            moves += 1
            require_whole(storage.storage)

    once(storage, lambda method, _: method == "upload", sweep)
    pushed(repo, storage)
    assert moves == 1
    require_whole(storage)


def test_an_idx_that_is_damaged_keeps_nobody_from_pushing(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    old = packs(storage)
    root = repo.layout.root / "remotes" / "origin" / "idx"

    def spoil() -> None:
        for name in old:
            storage.storage.put(name.idx_key, b"garbled")
            (root / name.id.hex()).unlink()
        storage.storage.put(CONDEMNED, encode_condemned({}))

    commit(repo, step=100)
    once(storage, is_ref_move, spoil)
    pushed(repo, storage)
    storage.delete([key for name in old for key in (name.idx_key, name.pack_key)])
    require_whole(storage)  # what nobody can find there any more was sent again
    gone = packs(storage)
    condemn(storage, gone)
    for name in gone:
        storage.put(name.idx_key, b"garbled")
        (root / name.id.hex()).unlink()
    commit(repo, step=200)
    assert [change.why for change in pushed(repo, storage).changes] == ["fast-forward"]


def test_a_push_that_died_before_it_looked_again_is_made_good_by_the_next(
    repo: Repository, storage: WatchedStorage
) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    old = packs(storage)
    tip = commit(repo, step=100)
    once(storage, is_ref_move, lambda: condemn(storage.storage, old))

    def die_after_the_move(method: str, key: str) -> None:
        if is_ref_move(method, key):
            raise Died

    storage.after = die_after_the_move
    watching = storage.before

    def before(method: str, key: str) -> None:
        watching(method, key)
        storage.after = die_after_the_move

    storage.before = before
    with pytest.raises(Died):
        pushed(repo, storage)
    storage.live()
    assert read_remote(storage).refs == {"refs/branches/main": tip}
    assert [change.why for change in pushed(repo, storage).changes] == ["current"]
    require_whole(storage)
    storage.forget()
    pushed(repo, storage)
    assert len(storage.requests) == 2


def test_a_gc_that_condemns_without_end_ends_the_push(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    commit(repo, step=1)
    count = 0

    def condemn_all(method: str, key: str) -> None:
        nonlocal count
        if (method, key) == ("get", CONDEMNED) or is_ref_move(method, key):
            count += 1
            condemn(storage.storage, packs(storage.storage), count)

    storage.before = condemn_all
    with pytest.raises(Conflict, match="end the gc"):
        pushed(repo, storage)


def test_f9_what_the_remote_lost_is_sent_again(repo: Repository, storage: WatchedStorage) -> None:
    first = commit(repo, step=0)
    pushed(repo, storage)
    commit(repo, step=100)
    pushed(repo, storage)
    lost = set(read_remote(storage).objects)
    storage.delete([key for name in packs(storage) for key in (name.idx_key, name.pack_key)])
    result = pushed(repo, storage, lost=lost | {ObjectId(bytes(32))})
    assert [change.why for change in result.changes] == ["current"]
    assert result.object_count == len(lost)
    require_whole(storage)
    assert first in lost


def test_f9_what_the_remote_lost_and_is_not_here_is_not_looked_for_each_time(
    repo: Repository, storage: WatchedStorage
) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    storage.forget()
    pushed(repo, storage, lost={ObjectId(bytes(32))})
    assert len(storage.requests) == 2


def test_f9_what_the_remote_lost_is_not_relied_on(repo: Repository, storage: WatchedStorage) -> None:
    commit(repo, step=0)
    pushed(repo, storage)
    tree = repo.commit(repo.resolve("main")).items["model"]
    chunks = {chunk for _, entry in repo.reader.tree_node(tree).entries for chunk in entry.chunks}
    commit(repo, items=state(0), step=1)
    before = read_remote(storage)
    pushed(repo, storage, lost=chunks)
    after = require_whole(storage)
    assert {each for each, count in after.copy_count.items() if count > before.copy_count.get(each, 0)} > chunks


def test_d12_an_old_list_of_packs_and_an_old_look_at_refs_do_no_harm(repo: Repository) -> None:
    current = MemoryStorage()
    storage = WatchedStorage(current)
    commit(repo, step=0)
    pushed(repo, storage)
    old = dict(current._objects)
    commits: list[CommitId] = []
    for step in (1, 2):
        commits.append(commit(repo, step=step))
        stale = StaleStorage(current, old)
        with open_remote(repo, "origin", stale) as remote:
            result = push(repo, remote)
        assert [change.why for change in result.changes] in (["fast-forward"], ["rejected"])
        require_whole(current)
    assert [change.why for change in pushed(repo, storage).changes] in (["fast-forward"], ["current"])
    assert require_whole(current).refs == {"refs/branches/main": repo.refs.read(branch_name("main"))}


class StaleStorage(WatchedStorage):
    """Reads what was there a while ago, and writes to what is there now."""

    def __init__(self, current: MemoryStorage, old: dict[str, tuple[bytes, int, int]]) -> None:
        super().__init__(current)
        self._old = MemoryStorage()
        self._old._objects = dict(old)

    def list(self, prefix: str) -> Iterator[Stat]:
        return self._old.list(prefix)

    def stat(self, key: str) -> Stat | None:
        return self._old.stat(key)

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        return self._old.get(key, max_bytes)
