"""Content that is fetched when it is read: how much, how often, and what a lazy store can do all the same."""

import os
import struct
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from store.comparing import diff
from store.comparing.merging import Merge, merge
from store.errors import Corrupt, Incompatible, Pruned, ReadOnly, RemoteUnavailable
from store.format.entries import TensorEntry
from store.gc import collect
from store.history import stats
from store.ids import ChunkId, CommitId, short
from store.limits import FETCH_GAP_BYTES
from store.naming.refnames import branch_name
from store.reading.packs import pack_path
from store.reading.reader import ObjectReader
from store.remotes.configured import set_lazy
from store.repository import Repository
from store.saving.saver import SaveRequest
from store.sizes import Sizes
from store.upkeep.absences import Absence, Why
from store.upkeep.pins import Pin
from store.upkeep.prune import Pruner
from tests.remotes.lazily import (
    LARGE_BYTES,
    SMALL_BYTES,
    CountedStorage,
    lazy_clone,
    line,
    reach,
    state,
    tensor_of,
)
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import fetched, history_of, pushed, require_equal, require_sound
from tests.remotes.watched_storage import Died
from tests.stores import commit, item, noise, tensor


@pytest.fixture
def storage() -> CountedStorage:
    return CountedStorage(MemoryStorage())


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


@pytest.fixture
def made(one: Repository, storage: CountedStorage) -> list[CommitId]:
    made = line(one, range(3))
    pushed(one, storage)
    return made


@pytest.fixture
def two(tmp_path: Path, made: list[CommitId], storage: CountedStorage) -> Iterator[Repository]:
    with lazy_clone(tmp_path / "two", storage) as repo:
        yield repo


def read_all(repo: Repository, commit_id: CommitId) -> dict[str, bytes]:
    """Every tensor of a commit, all read at once."""
    found = repo.commit(commit_id)
    entries = {
        f"{name}::{key}": entry
        for name in found.items
        for key, entry in repo.tree(found, name)
        if isinstance(entry, TensorEntry)
    }
    out = {name: bytearray(entry.size_bytes) for name, entry in entries.items()}
    repo.read_tensors([(entry, memoryview(out[name])) for name, entry in entries.items()])
    return {name: bytes(data) for name, data in out.items()}


def damage_copy(repo: Repository, chunk: ChunkId) -> None:
    """Flip a bit of a chunk as it is stored."""
    place = repo.index.places(chunk)[0]
    path = pack_path(repo.layout.packs, place.pack)
    data = bytearray(path.read_bytes())
    data[place.offset + place.stored_bytes - 1] ^= 1
    path.write_bytes(data)


def cut_off(storage: CountedStorage) -> None:
    def refuse(_method: str, _key: str) -> None:
        raise RemoteUnavailable("the network is down")

    storage.before = refuse


# --- how much -------------------------------------------------------------------------------------------------------


def test_a_tensor_comes_alone(two: Repository, made: list[CommitId], storage: CountedStorage) -> None:
    assert tensor_of(two, made[0], "model", "small") == noise(("small", 0), SMALL_BYTES)
    assert storage.read_bytes < SMALL_BYTES + 3 * FETCH_GAP_BYTES
    assert len(storage.requests) <= 4  # which packs there are, the tree, the chunk; idx files came with the history
    storage.forget()
    assert tensor_of(two, made[0], "model", "large") == noise(("large", 0), LARGE_BYTES)
    assert storage.read_bytes < LARGE_BYTES + 2000
    assert {method for method, _ in storage.requests} == {"read_into"}


def test_what_was_read_is_not_fetched_again(
    two: Repository, made: list[CommitId], storage: CountedStorage, tmp_path: Path
) -> None:
    first = read_all(two, made[1])
    storage.forget()
    assert read_all(two, made[1]) == first
    with Repository.open(tmp_path / "two", thread_count=1) as again:
        assert read_all(again, made[1]) == first
    assert storage.requests == []


def test_of_a_tensor_of_many_chunks_those_come_that_hold_the_rows(tmp_path: Path, one: Repository) -> None:
    storage = CountedStorage(MemoryStorage())
    row_bytes, row_count = 4096, 3000
    rows = noise("rows", row_bytes * row_count)
    only = commit(one, "main", [item("model", {"rows": tensor(rows, shape=(row_count, row_bytes))})])
    pushed(one, storage)
    with lazy_clone(tmp_path / "two", storage) as two:
        entry = two.tree(two.commit(only), "model")["rows"]
        assert isinstance(entry, TensorEntry)
        assert len(entry.chunks) > 4
        storage.forget()
        out = bytearray(2 * row_bytes)
        two.read_rows(entry, 1000, 1002, memoryview(out))
        assert out == rows[1000 * row_bytes : 1002 * row_bytes]
        assert storage.read_bytes < 2 * max(entry.cuts) + 1000
        storage.forget()
        two.read_spans(entry, [(0, memoryview(out)[:10])])
        assert (out[:10], 0 < storage.read_bytes < max(entry.cuts) + 1000) == (rows[:10], True)


def test_a_whole_commit_comes_at_once(one: Repository, tmp_path: Path) -> None:
    storage = CountedStorage(MemoryStorage())
    weights = {f"layer.{n}": tensor(noise(n, 20_000), position=n) for n in range(40)}
    only = commit(one, "main", [item("model", weights)])
    pushed(one, storage)
    with lazy_clone(tmp_path / "two", storage) as two:
        assert read_all(two, only) == {f"model::{name}": bytes(each.data) for name, each in weights.items()}
        assert len(storage.requests) <= 5
        assert len(list(two.layout.packs.iterdir())) == 3  # commits came before; trees; chunks


def test_deltas_bring_their_bases(one: Repository, tmp_path: Path) -> None:
    storage = CountedStorage(MemoryStorage())
    raw = bytearray(noise("drifting", 300_000))
    made = []
    for step in range(3):
        raw[step * 1000] ^= 1
        made.append(commit(one, "main", [item("model", {"drifting": tensor(bytes(raw))})], step=step))
    pushed(one, storage)
    with lazy_clone(tmp_path / "two", storage) as two:
        assert tensor_of(two, made[2], "model", "drifting") == raw
        place = two.index.places(two.tree(two.commit(made[2]), "model")["drifting"].chunks[0])[0]
        assert place.depth > 0
        storage.forget()
        tensor_of(two, made[1], "model", "drifting")
        assert storage.read_bytes < 3000  # its tree
        require_sound(two)


def test_values_come_too(two: Repository, one: Repository, made: list[CommitId]) -> None:
    entry = two.tree(two.commit(made[0]), "optimizer")["long"]
    assert entry.chunks
    assert two.read_value(entry) == one.read_value(one.tree(one.commit(made[0]), "optimizer")["long"])  # type: ignore[arg-type]


def test_two_threads_that_read_the_same_fetch_it_once(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    found: list[dict[str, bytes]] = []
    begin = threading.Barrier(4)

    def work() -> None:
        begin.wait()
        found.append(read_all(two, made[1]))

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(found) == 4
    assert all(each == found[0] for each in found)
    assert len(storage.reads) == len(set(storage.reads))
    assert storage.read_bytes < 2 * LARGE_BYTES + SMALL_BYTES + 80_000


def test_a_forked_child_fetches_by_itself(two: Repository, made: list[CommitId]) -> None:
    tensor_of(two, made[0], "model", "small")
    child = os.fork()
    if child == 0:
        code = 1
        try:
            if tensor_of(two, made[1], "model", "large") == noise(("large", 1), LARGE_BYTES):
                code = 0
        finally:
            os._exit(code)
    assert os.waitstatus_to_exitcode(os.waitpid(child, 0)[1]) == 0
    assert tensor_of(two, made[1], "model", "large") == noise(("large", 1), LARGE_BYTES)


# --- what is not promised -------------------------------------------------------------------------------------------


def test_where_laziness_is_off_the_error_says_what_to_type(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    set_lazy(two.layout, two.files, "origin", lazy=False)
    with pytest.raises(Pruned, match=rf"`moonclip fetch origin --commit {short(made[0])}`"):
        two.tree(two.commit(made[0]), "model")
    assert two.items(two.commit(made[0])) == {}
    assert storage.requests == []
    fetched(two, storage, commits=[made[0]])  # as it says
    assert tensor_of(two, made[0], "model", "small") == noise(("small", 0), SMALL_BYTES)


@pytest.mark.parametrize("why", [Why.PRUNED, Why.COLLECTED])
def test_what_was_dropped_here_does_not_come_back_by_itself(
    two: Repository, made: list[CommitId], storage: CountedStorage, why: Why
) -> None:
    two.absences.replace({made[0]: [Absence.of(made[0], "model", why, 0, "origin")]})
    with pytest.raises(Pruned):
        two.tree(two.commit(made[0]), "model")
    assert storage.requests == []


def test_what_no_record_permits_to_be_missing_is_damage_and_not_fetched(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    read_all(two, made[2])  # the tip: its model is whole from now on
    damage_copy(two, two.tree(two.commit(made[2]), "model")["small"].chunks[0])
    with Repository.open(two.layout.root, thread_count=1) as again:
        reach(again, storage)
        tensor_of(again, made[0], "model", "small")
        storage.forget()
        with pytest.raises(Corrupt):
            tensor_of(again, made[2], "model", "small")
        assert storage.requests == []


def test_what_the_remote_lacks_by_right_is_told(tmp_path: Path, one: Repository, storage: CountedStorage) -> None:
    made = line(one, range(3))
    pruner = Pruner(one)
    pruner.apply(pruner.items(["model"], 2, []))
    collect(one)
    pushed(one, storage)
    with lazy_clone(tmp_path / "two", storage) as two:
        assert tensor_of(two, made[0], "optimizer", "moment") == noise(("moment", 0), LARGE_BYTES)
        with pytest.raises(Pruned, match="was not pushed to origin either: there it is pruned"):
            two.tree(two.commit(made[0]), "model")
        require_sound(two)


# --- faults ---------------------------------------------------------------------------------------------------------


def test_without_a_network_what_is_here_is_read(two: Repository, made: list[CommitId], storage: CountedStorage) -> None:
    here = read_all(two, made[2])
    small = two.tree(two.commit(made[0]), "model")["small"]
    cut_off(storage)
    assert read_all(two, made[2]) == here
    assert history_of(two) == made[::-1]
    with pytest.raises(RemoteUnavailable):
        two.tree(two.commit(made[1]), "model")
    with pytest.raises(RemoteUnavailable):
        two.read_tensor(small)  # type: ignore[arg-type]
    storage.live()
    assert two.read_tensor(small) == noise(("small", 0), SMALL_BYTES)  # type: ignore[arg-type]
    require_sound(two)


@pytest.mark.parametrize("is_done", [True, False])
def test_a_read_that_is_cut_off_anywhere_is_repeated(
    two: Repository, made: list[CommitId], storage: CountedStorage, is_done: bool
) -> None:
    number = 0
    while True:
        storage.die_at(number, is_done=is_done)
        try:
            tensor_of(two, made[number % 3], "optimizer", "moment")
            break
        except Died:
            number += 1
        finally:
            storage.live()
    assert number >= 4
    for step, each in enumerate(made):
        assert tensor_of(two, each, "optimizer", "moment") == noise(("moment", step), LARGE_BYTES)
    assert list(two.layout.writers.iterdir()) == []
    require_sound(two)


def test_a_remote_that_needs_a_newer_version_is_refused(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    storage.put("format", b'{"needs": ["moonclip-remote-9"], "refs": "shared"}')
    with pytest.raises(Incompatible, match="moonclip-remote-9"):
        two.tree(two.commit(made[0]), "model")


def test_f10_what_a_damaged_remote_gives_is_told_and_not_kept(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    small = two.tree(two.commit(made[0]), "model")["small"]

    def flip(method: str, key: str) -> None:
        if method == "read_into" and is_damaging:
            data, count, time_ns = storage.storage._objects[key]  # type: ignore[attr-defined]
            storage.storage._objects[key] = bytes(len(data)), count, time_ns  # type: ignore[attr-defined]

    is_damaging = True
    kept = dict(storage.storage._objects)  # type: ignore[attr-defined]
    storage.before = flip
    with pytest.raises(Corrupt, match="origin does not give 1 objects"):
        two.read_tensor(small)  # type: ignore[arg-type]
    assert two.is_awaited(small.chunks[0])
    is_damaging = False
    storage.storage._objects.update(kept)  # type: ignore[attr-defined]
    with Repository.open(two.layout.root, thread_count=1) as again:
        reach(again, storage)
        assert tensor_of(again, made[0], "model", "small") == noise(("small", 0), SMALL_BYTES)


def test_a_copy_here_that_was_damaged_is_fetched_again(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    entry = two.tree(two.commit(made[0]), "model")["small"]
    expected = two.read_tensor(entry)  # type: ignore[arg-type]
    damage_copy(two, entry.chunks[0])
    storage.forget()
    assert two.read_tensor(entry) == expected  # type: ignore[arg-type]
    assert len(storage.reads) == 1


def test_a_read_that_gc_overtakes_fetches_again(two: Repository, made: list[CommitId]) -> None:
    entry = two.tree(two.commit(made[0]), "model")["small"]
    out = bytearray(SMALL_BYTES)
    attempts: list[int] = []

    def read(reader: ObjectReader) -> None:
        attempts.append(len(attempts))
        if len(attempts) == 1:
            with Repository.open(two.layout.root, thread_count=1) as other:
                assert collect(other).object_count
        reader.chunk_into(entry.chunks[0], memoryview(out))  # type: ignore[arg-type]

    two._promises.reading(entry.chunks, read)  # type: ignore[union-attr, arg-type]
    assert (attempts, out) == ([0, 1], noise(("small", 0), SMALL_BYTES))


# --- read-only handles ----------------------------------------------------------------------------------------------


def test_a_store_that_was_opened_to_read_takes_what_is_fetched(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    with Repository.open(two.layout.root, read_only=True, thread_count=1) as reading:
        reach(reading, storage)
        assert tensor_of(reading, made[0], "model", "small") == noise(("small", 0), SMALL_BYTES)
        assert reading.read_only
        storage.forget()
        assert tensor_of(reading, made[0], "model", "small") == noise(("small", 0), SMALL_BYTES)
    assert tensor_of(two, made[0], "model", "small") == noise(("small", 0), SMALL_BYTES)
    assert storage.requests == []


def test_d14_a_store_that_cannot_be_written_says_so(
    two: Repository, made: list[CommitId], storage: CountedStorage, monkeypatch: pytest.MonkeyPatch
) -> None:
    here = tensor_of(two, made[0], "model", "small")
    storage.forget()
    monkeypatch.setattr("os.access", lambda *_: False)
    with Repository.open(two.layout.root, thread_count=1) as reading:
        reach(reading, storage)
        assert reading.read_only
        assert tensor_of(reading, made[0], "model", "small") == here
        with pytest.raises(ReadOnly, match="cannot take what would be fetched"):
            tensor_of(reading, made[0], "model", "large")
        with pytest.raises(ReadOnly):
            reading.tree(reading.commit(made[1]), "model")
    assert storage.requests == []


# --- records and gc -------------------------------------------------------------------------------------------------


def test_what_was_read_of_an_old_commit_is_a_cache(
    two: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    first = read_all(two, made[0])
    assert {record.item for record in two.absences.records(made[0])} == {"model", "optimizer", "settings"}
    require_sound(two)
    assert collect(two).object_count
    require_sound(two)
    storage.forget()
    assert read_all(two, made[0]) == first
    assert storage.read_bytes > 2 * LARGE_BYTES


def test_what_was_read_of_a_tip_stays(two: Repository, made: list[CommitId], storage: CountedStorage) -> None:
    tip = two.commit(made[2])
    moment = two.tree(tip, "optimizer")["moment"]
    two.read_tensor(moment)  # type: ignore[arg-type]
    assert {record.item for record in two.absences.records(made[2])} == {"model", "optimizer", "settings"}
    two.tree(tip, "settings")  # has no chunk
    tensors = read_all(two, made[2])
    two.read_value(two.tree(tip, "optimizer")["long"])  # type: ignore[arg-type]
    assert two.absences.records(made[2]) == ()
    collect(two)
    cut_off(storage)
    assert read_all(two, made[2]) == tensors
    require_sound(two)


def test_a_whole_commit_that_was_too_far_back_is_here_once_all_is_read(
    tmp_path: Path, made: list[CommitId], storage: CountedStorage
) -> None:
    with lazy_clone(tmp_path / "two", storage, depth=1) as two:
        assert [record.item for record in two.absences.records(made[0])] == ["*"]
        two.pins.put(Pin(made[0], 0, ""))
        read_all(two, made[0])
        assert [record.item for record in two.absences.records(made[0])] == ["*"]
        two.read_value(two.tree(two.commit(made[0]), "optimizer")["long"])  # type: ignore[arg-type]
        assert two.absences.records(made[0]) == ()
        require_sound(two)


def test_while_gc_is_at_work_records_stand(two: Repository, made: list[CommitId]) -> None:
    tip = two.commit(made[2])
    with two.files.lock_exclusive(two.layout.root / "gc.lock"):
        two.tree(tip, "settings")
        assert len(two.absences.records(made[2])) == 3
    two.tree(tip, "settings")
    assert len(two.absences.records(made[2])) == 2


# --- what else a store does -----------------------------------------------------------------------------------------


def test_counting_and_checking_fetch_nothing(two: Repository, made: list[CommitId], storage: CountedStorage) -> None:
    tensor_of(two, made[1], "model", "small")
    storage.forget()
    assert stats.collect(two).commit_count == 3
    require_sound(two)
    assert collect(two, dry_run=True).object_count
    assert history_of(two) == made[::-1]
    assert storage.requests == []


def test_sizes_count_what_is_here(two: Repository, made: list[CommitId], storage: CountedStorage) -> None:
    entry = two.tree(two.commit(made[0]), "model")["small"]
    storage.forget()
    awaited = Sizes(two.reader, two.is_awaited).of(entry)
    assert (awaited.stored_bytes, awaited.text) == (0, "absent")
    assert storage.requests == []
    two.read_tensor(entry)  # type: ignore[arg-type]
    assert Sizes(two.reader, two.is_awaited).of(entry).stored_bytes > SMALL_BYTES


def test_a_diff_fetches_what_it_compares(
    two: Repository, one: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    only = diff(two, made[0], made[1], is_wanted=lambda name, entry: (name, entry) == ("model", "small"))
    assert storage.read_bytes < 2 * SMALL_BYTES + 8 * FETCH_GAP_BYTES
    assert len(only.items[0].tensors) == 1
    storage.forget()
    whole, expected = (diff(repo, made[0], made[1]) for repo in (two, one))
    assert [each.tensors for each in whole.items] == [each.tensors for each in expected.items]
    assert [each.values for each in whole.items] == [each.values for each in expected.items]
    assert len(storage.reads) < 12
    storage.forget()
    assert diff(two, made[0], made[1], measured=False).items
    assert storage.requests == []


def test_a_merge_fetches_what_it_averages(tmp_path: Path, one: Repository, storage: CountedStorage) -> None:
    halves = [struct.pack("<1000f", *(step + each for each in range(1000))) for step in (0, 2)]
    made = [
        commit(one, name, [item("model", {"w": tensor(raw, "float32", (1000,))})])
        for name, raw in zip("ab", halves, strict=True)
    ]
    pushed(one, storage)
    with lazy_clone(tmp_path / "two", storage) as two:
        merged = merge(two, Merge(made, branch="soup"))
        assert tensor_of(two, merged, "model", "w") == struct.pack("<1000f", *(1 + each for each in range(1000)))
        require_sound(two)


def test_a_branch_from_an_old_commit_is_saved_on_and_pushed(
    two: Repository, one: Repository, made: list[CommitId], storage: CountedStorage
) -> None:
    two.set_ref(branch_name("again"), None, made[0], "branch")
    read_all(two, made[0])
    new = commit(two, "again", state(7), step=7)
    storage.forget()
    sent = pushed(two, storage, ["again"])
    assert sent.commit_count == 1
    assert list(storage.list("absent/")) == []
    require_sound(two)
    fetched(one, storage)
    require_sound(one)
    assert read_all(one, new) == read_all(two, new)
    require_equal(one, one, made)


def test_what_came_lazily_is_the_base_of_a_save(tmp_path: Path, one: Repository, storage: CountedStorage) -> None:
    raw = bytearray(noise("drifting", 200_000))
    tip = commit(one, "main", [item("model", {"w": tensor(bytes(raw))})])
    pushed(one, storage)
    with lazy_clone(tmp_path / "two", storage) as two:
        assert tensor_of(two, tip, "model", "w") == raw
        raw[1000] ^= 1
        new = commit(two, "main", [item("model", {"w": tensor(bytes(raw))})])
        base, delta = (two.tree(two.commit(each), "model")["w"].chunks[0] for each in (tip, new))
        assert two.index.places(delta)[0].base == base
        collect(two)
        require_sound(two)
        storage.forget()
        assert pushed(two, storage).sent_bytes < 10_000  # the base is there
        fetched(one, storage)
        assert tensor_of(one, new, "model", "w") == tensor_of(two, new, "model", "w") == raw


def test_d3_what_came_lazily_and_is_swept_during_a_save_is_stored_again(two: Repository, made: list[CommitId]) -> None:
    first = read_all(two, made[0])
    two.index = swept = _Swept(two.index, two.layout.root)  # type: ignore[assignment]
    saved = two.save(SaveRequest(state(0), branch="own", parent=None, step=0))
    assert swept.object_count > 0
    assert read_all(two, saved.commit) == first
    require_sound(two)
    collect(two)
    assert read_all(two, saved.commit) == first


def test_a_store_without_lazy_remotes_loads_nothing_of_this(one: Repository, made: list[CommitId]) -> None:
    read_all(one, made[0])
    one.bring(entry for entry in iter(_fails, None))  # not even looked at
    assert one._promises is None


def _fails() -> Any:
    raise AssertionError


class _Swept:
    """An index after whose first look-up gc runs."""

    def __init__(self, index: Any, root: Path) -> None:
        self._index = index
        self._root: Path | None = root
        self.object_count = 0

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def places_below(self, object_ids: Any) -> Any:
        found = self._index.places_below(object_ids)
        if self._root is not None:
            root, self._root = self._root, None
            with Repository.open(root, thread_count=1) as other:
                self.object_count = collect(other).object_count
        return found
