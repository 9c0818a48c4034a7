"""Garbage collection of a remote: what goes, when, by whose clock, and what stays."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Corrupt
from store.naming.refnames import branch_name
from store.remotes.checking.gc import RemoteCollected, remote_gc
from store.remotes.condemned import decode_condemned
from store.remotes.names import CONDEMNED, SCRATCH, parse_pack
from store.remotes.storages.directory import DirectoryStorage
from store.remotes.storages.storage import Stat, Storage, Unfinished
from store.repository import Repository
from tests.remotes.remote_worlds import (
    DAY_NS,
    HOUR_NS,
    ClockedStorage,
    drop_there,
    opened,
    packs_of,
    pushed,
    require_whole,
    saved,
)
from tests.remotes.watched_storage import Died, WatchedStorage


@pytest.fixture
def storage() -> ClockedStorage:
    return ClockedStorage()


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "a") as repo:
        yield repo


@pytest.fixture
def other(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "b") as repo:
        yield repo


def collect(repo: Repository, storage: Storage, **how: object) -> RemoteCollected:
    with opened(repo, storage) as remote:
        return remote_gc(repo, remote, **how)  # type: ignore[arg-type]


def with_garbage(repo: Repository, storage: ClockedStorage) -> set[str]:
    """A remote with the branch main, and what nothing leads to any more; packs of that."""
    saved(repo, "main", 0, 1)
    pushed(repo, storage, "main")
    kept = packs_of(storage)
    saved(repo, "gone", 7)
    pushed(repo, storage, "gone")
    garbage = packs_of(storage) - kept
    drop_there(repo, storage, "gone")
    assert garbage
    return garbage


def test_an_empty_place_is_left_alone(repo: Repository, storage: ClockedStorage) -> None:
    storage.put("packs/" + "0" * 64 + ".pack", b"somebody's")
    storage.clock_ns += 9 * DAY_NS
    assert collect(repo, storage) == RemoteCollected(is_dry_run=False)
    assert storage.keys() == {"packs/" + "0" * 64 + ".pack"}


def test_nothing_goes_of_what_refs_need(repo: Repository, storage: ClockedStorage) -> None:
    saved(repo, "main", 0, 1)
    pushed(repo, storage, "main")
    storage.clock_ns += 9 * DAY_NS
    before = storage.content()
    done = collect(repo, storage)
    assert (done.commit_count, done.removed_count, done.condemned_count) == (2, 0, 0)
    assert storage.content() == before


def test_garbage_is_condemned_and_a_later_run_deletes_it(
    repo: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    first = collect(repo, storage)
    assert (first.condemned_count, first.removed_count) == (len(garbage), 0)
    assert first.wait_seconds == 24 * 3600
    assert garbage <= packs_of(storage)
    storage.clock_ns += DAY_NS - 1
    assert collect(repo, storage).removed_count == 0
    storage.clock_ns += 1
    second = collect(repo, storage)
    assert (second.condemned_count, second.removed_count) == (0, len(garbage))
    assert second.freed_bytes == first.condemned_bytes > 0
    assert not garbage & packs_of(storage)
    require_whole(storage, tmp_path / "copy")


def test_names_of_deleted_packs_stay_listed_for_a_grace(repo: Repository, storage: ClockedStorage) -> None:
    garbage = with_garbage(repo, storage)
    names = {parsed[0].text for key in garbage if (parsed := parse_pack(key))}
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    storage.clock_ns += DAY_NS
    collect(repo, storage)
    storage.clock_ns += DAY_NS - 1
    collect(repo, storage)
    assert decode_condemned(storage.bytes_of(CONDEMNED), "").packs.keys() == names
    storage.clock_ns += DAY_NS
    collect(repo, storage)
    assert not decode_condemned(storage.bytes_of(CONDEMNED), "").packs


def test_the_list_is_another_each_time_it_is_written(repo: Repository, storage: ClockedStorage) -> None:
    with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    first = storage.bytes_of(CONDEMNED)
    storage.delete([CONDEMNED])
    collect(repo, storage)
    assert decode_condemned(first, "1") == decode_condemned(storage.bytes_of(CONDEMNED), "1")
    assert first != storage.bytes_of(CONDEMNED)


def test_what_is_new_is_left_alone(repo: Repository, storage: ClockedStorage) -> None:
    with_garbage(repo, storage)
    storage.clock_ns += DAY_NS - 1
    assert collect(repo, storage).condemned_count == 0


def test_a_dry_run_changes_nothing(repo: Repository, storage: ClockedStorage) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    before = storage.content()
    assert collect(repo, storage, dry_run=True).condemned_count == len(garbage)
    assert storage.content() == before
    collect(repo, storage)
    storage.clock_ns += DAY_NS
    before = storage.content()
    assert collect(repo, storage, dry_run=True).removed_count == len(garbage)
    assert storage.content() == before


def test_what_is_needed_again_is_pardoned(repo: Repository, storage: ClockedStorage, tmp_path: Path) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    key = next(key for key in storage.keys("refs/") if key.endswith("/gone"))
    gone = repo.refs.read(branch_name("gone"))
    assert gone is not None
    storage.put(key, gone.hex().encode() + b"\n")  # by whoever began before, and died before looking again
    storage.clock_ns += DAY_NS
    done = collect(repo, storage)
    assert (done.pardoned_count, done.removed_count, done.condemned_count) == (len(garbage), 0, 0)
    assert not decode_condemned(storage.bytes_of(CONDEMNED), "").packs
    require_whole(storage, tmp_path / "copy")


def test_what_was_sent_again_stays_and_the_condemned_copy_goes(
    repo: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    pushed(repo, storage, "gone")
    assert len(packs_of(storage)) == 1 + 2 * len(garbage)
    storage.clock_ns += DAY_NS
    assert collect(repo, storage).removed_count == len(garbage)
    assert not garbage & packs_of(storage)
    require_whole(storage, tmp_path / "copy")


def test_d7_gc_from_one_store_honours_refs_of_another(
    repo: Repository, other: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    saved(repo, "main", 0)
    pushed(repo, storage, "main")
    saved(other, "theirs", 5, 6)
    pushed(other, storage, "theirs")
    storage.clock_ns += 9 * DAY_NS
    for each in (repo, other):
        done = collect(each, storage)
        assert (done.commit_count, done.condemned_count, done.removed_count) == (3, 0, 0)
    require_whole(storage, tmp_path / "copy")


def test_d7_so_it_does_where_each_store_has_its_own_refs(
    repo: Repository, other: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    storage.put("format", b'{"needs": ["moonclip-remote-1"], "refs": "by-store"}')
    for each, step in ((repo, 0), (other, 5)):
        saved(each, "main", step)
        pushed(each, storage, "main")
    assert len(storage.keys("refs/by/")) == 2
    storage.clock_ns += 9 * DAY_NS
    assert collect(repo, storage).condemned_count == 0
    require_whole(storage, tmp_path / "copy")


@pytest.mark.parametrize("skew_ns", [-2 * HOUR_NS, 2 * HOUR_NS, -400 * DAY_NS, 400 * DAY_NS])
def test_d6_only_the_clock_of_the_remote_counts(
    repo: Repository, storage: ClockedStorage, monkeypatch: pytest.MonkeyPatch, skew_ns: int
) -> None:
    garbage = with_garbage(repo, storage)
    now_ns = storage.clock_ns
    monkeypatch.setattr("time.time_ns", lambda: now_ns + skew_ns)
    storage.clock_ns += DAY_NS - 1
    assert collect(repo, storage).condemned_count == 0
    storage.clock_ns += 1
    assert collect(repo, storage).condemned_count == len(garbage)
    storage.clock_ns += DAY_NS - 1
    assert collect(repo, storage).removed_count == 0
    storage.clock_ns += 1
    assert collect(repo, storage).removed_count == len(garbage)


def test_a_clock_that_went_back_removes_nothing(repo: Repository, storage: ClockedStorage) -> None:
    with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    storage.clock_ns -= 3 * DAY_NS
    done = collect(repo, storage)
    assert done.removed_count == 0


@pytest.mark.parametrize("ending", [".idx", ".pack"])
def test_a_remote_that_lacks_something_is_left_alone(repo: Repository, storage: ClockedStorage, ending: str) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    storage.delete([next(iter(packs_of(storage) - garbage))[:-5] + ending])
    before = storage.content()
    with pytest.raises(Corrupt, match="nothing is removed"):
        collect(repo, storage)
    assert storage.content() == before


def test_a_damaged_list_or_ref_stops_it(repo: Repository, storage: ClockedStorage) -> None:
    with_garbage(repo, storage)
    storage.clock_ns += 9 * DAY_NS
    for key in (CONDEMNED, "refs/branches/broken"):
        storage.put(key, b"{")
        before = storage.content()
        with pytest.raises(Corrupt):
            collect(repo, storage)
        assert storage.content() == before
        storage.delete([key])


def test_trees_that_are_not_here_are_read_from_the_remote(
    repo: Repository, other: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    assert collect(other, storage).condemned_count == len(garbage)
    storage.clock_ns += DAY_NS
    assert collect(other, storage).removed_count == len(garbage)
    require_whole(storage, tmp_path / "copy")


def test_a_tree_that_is_damaged_there_and_not_here_stops_it(
    repo: Repository, other: Repository, storage: ClockedStorage
) -> None:
    with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    for key in packs_of(storage):
        data = storage.bytes_of(key)
        storage.put(key, data[:64] + bytes(byte ^ 1 for byte in data[64:]))
    storage.clock_ns += 2 * DAY_NS
    with pytest.raises(Corrupt, match="nothing is removed"):
        collect(other, storage)


def test_parts_of_packs_go_the_same_way(repo: Repository, storage: ClockedStorage) -> None:
    saved(repo, "main", 0)
    pushed(repo, storage, "main")
    strays = [f"packs/{'1' * 64}.pack", f"packs/{'2' * 64}.idx", f"packs/{'3' * 64}-00000001.pack"]
    for key in strays:
        storage.put(key, b"part")
    storage.clock_ns += DAY_NS - 1
    assert collect(repo, storage).condemned_count == 0
    storage.clock_ns += 1
    assert collect(repo, storage).condemned_count == 3
    assert set(strays) <= storage.keys()
    storage.clock_ns += DAY_NS
    assert collect(repo, storage).removed_count == 3
    assert not set(strays) & storage.keys()


def test_f8_old_probes_and_uploads_are_ended(repo: Repository, storage: ClockedStorage) -> None:
    saved(repo, "main", 0)
    pushed(repo, storage, "main")
    storage.put(f"{SCRATCH}{'a' * 32}", b"probe")
    storage.pending = [Unfinished("packs/x", "old", storage.clock_ns)]
    storage.clock_ns += DAY_NS
    storage.put(f"{SCRATCH}{'b' * 32}", b"probe")
    storage.pending.append(Unfinished("packs/y", "new", storage.clock_ns))
    assert collect(repo, storage).aborted_count == 1
    assert [upload.upload_id for upload in storage.pending] == ["new"]
    assert storage.keys(SCRATCH) == {f"{SCRATCH}{'b' * 32}"}


def test_foreign_keys_are_left_alone(repo: Repository, storage: ClockedStorage) -> None:
    with_garbage(repo, storage)
    foreign = {"packs/readme", "packs/ABC.pack", "gc/other", "models/x", "refs/branches/a/b"}
    for key in foreign:
        storage.put(key, b"theirs")
    for _ in range(3):
        storage.clock_ns += 2 * DAY_NS
        collect(repo, storage)
    assert foreign <= storage.keys()


@pytest.mark.parametrize("is_done", [False, True])
def test_d5_whatever_request_it_dies_at_a_rerun_completes(
    repo: Repository, storage: ClockedStorage, tmp_path: Path, is_done: bool
) -> None:
    garbage = with_garbage(repo, storage)
    start_ns, deaths = storage.clock_ns, 0
    for phase in (1, 2):
        storage.clock_ns = start_ns + (1 + phase) * DAY_NS
        watched = WatchedStorage(storage)
        for number in range(100):
            watched.die_at(number, is_done=is_done)
            try:
                collect(repo, watched)
            except Died:
                deaths += 1
                require_whole(storage, tmp_path / f"copy{phase}-{number}")
            else:
                break
    assert deaths > 10
    assert not garbage & packs_of(storage)
    assert not {key.replace(".pack", ".idx") for key in garbage} & storage.keys()


def test_d12_reads_that_are_stale_for_less_than_the_grace_lose_nothing(
    repo: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    before = Frozen(storage)
    pushed(repo, storage, "gone")  # which the next run does not see yet
    storage.clock_ns += DAY_NS - HOUR_NS
    assert collect(repo, before).removed_count == 0
    storage.clock_ns += 2 * HOUR_NS
    assert collect(repo, storage).removed_count == len(garbage)
    require_whole(storage, tmp_path / "copy")


def test_d12_a_stale_look_deletes_nothing_that_a_push_relied_on(
    repo: Repository, storage: ClockedStorage, tmp_path: Path
) -> None:
    garbage = with_garbage(repo, storage)
    storage.clock_ns += 2 * DAY_NS
    collect(repo, storage)
    storage.clock_ns += DAY_NS - HOUR_NS
    before = Frozen(storage)
    pushed(repo, storage, "gone")
    storage.clock_ns += HOUR_NS
    assert collect(repo, before).removed_count == len(garbage)
    require_whole(storage, tmp_path / "copy")


def test_a_directory_is_collected_by_the_clock_of_its_files(repo: Repository, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    directory = DirectoryStorage(tmp_path / "remote")
    saved(repo, "main", 0)
    saved(repo, "gone", 7)
    pushed(repo, directory, "main")
    pushed(repo, directory, "gone")
    drop_there(repo, directory, "gone")
    assert collect(repo, directory).condemned_count == 0
    assert collect(repo, directory, grace_seconds=0).condemned_count == 1
    assert collect(repo, directory, grace_seconds=0).removed_count == 1
    require_whole(directory, tmp_path / "copy")


class Frozen(WatchedStorage):
    """Answers with what was there when it was made, and writes to what is there."""

    def __init__(self, storage: ClockedStorage) -> None:
        super().__init__(storage)
        self.storage_then = ClockedStorage()
        self.storage_then._objects = dict(storage._objects)

    def list(self, prefix: str) -> Iterator[Stat]:
        return self.storage_then.list(prefix)

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        return self.storage_then.get(key, max_bytes)
