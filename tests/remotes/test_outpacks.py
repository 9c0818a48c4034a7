"""Packs made of what lies in local packs: planned from tables, streamed, checked as they pass."""

from collections.abc import Iterator
from itertools import pairwise
from pathlib import Path

import pytest

from store.errors import Corrupt
from store.format.objects import Kind
from store.format.pack import OBJECT_HEADER_BYTES, Sealed
from store.gc import collect
from store.ids import ObjectId
from store.index import Place
from store.limits import PUSH_PACK_BYTES, PUSH_READ_BYTES
from store.reading.packs import PackStore, pack_path
from store.remotes.idx import decode_idx, encode_idx
from store.remotes.pushing import outpacks
from store.remotes.pushing.outgoing import There, outgoing
from store.remotes.pushing.outpacks import OutPack, PackSource, Stale, idx_of, locate, plan_packs
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repack import repack
from store.repository import Repository
from tests.arrays import drifted, flip, noise, save
from tests.packing import chunk, write
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import require_whole
from tests.remotes.watched_storage import WatchedStorage


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store") as repo:
        yield repo


def save_line(repo: Repository, count: int) -> None:
    """Commits whose chunks are stored against those before."""
    state = {f"w{number}": noise(number, 40_000) for number in range(4)}
    for step in range(count):
        save(repo, state, step=step)
        state = {name: drifted(array, step) for name, array in state.items()}


def everything(repo: Repository) -> dict[ObjectId, Place]:
    return outgoing(repo, [repo.resolve("main")], There()).objects


def planned(repo: Repository) -> list[OutPack]:
    return list(plan_packs(locate(repo, everything(repo))))


def streamed(repo: Repository, pack: OutPack) -> bytes:
    with PackSource(repo, pack).open() as reader:
        return reader.read()


def test_a_pack_is_as_it_was_planned(repo: Repository, tmp_path: Path) -> None:
    save_line(repo, 3)
    (pack,) = planned(repo)
    data = streamed(repo, pack)
    assert len(data) == pack.size_bytes == PackSource(repo, pack).size_bytes
    pack_path(tmp_path, pack.id).write_bytes(data)
    table = PackStore(repo.files, tmp_path).table(pack.id)
    assert table == pack.table
    idx = idx_of(repo, pack)
    assert decode_idx(idx, pack.id).table == table
    commits = [data[entry.offset : entry.end] for entry in table.entries if entry.kind is Kind.COMMIT]
    assert idx == encode_idx(table, commits)


def test_the_same_is_planned_in_the_same_way(repo: Repository) -> None:
    save_line(repo, 2)
    assert [pack.id for pack in planned(repo)] == [pack.id for pack in planned(repo)]


def test_it_can_be_read_in_pieces_of_any_size_and_again(repo: Repository) -> None:
    save_line(repo, 2)
    (pack,) = planned(repo)
    whole = streamed(repo, pack)
    source = PackSource(repo, pack)
    for size_bytes in (1000, 65_536, PUSH_READ_BYTES):
        with source.open() as reader:
            pieces = list(iter(lambda size=size_bytes: reader.read(size), b""))  # type: ignore[misc]
        assert b"".join(pieces) == whole
        assert all(len(piece) == size_bytes for piece in pieces[:-1])


def test_bases_come_before_what_is_stored_against_them_then_trees_then_commits(repo: Repository) -> None:
    save_line(repo, 6)
    repack(repo, "size")
    (pack,) = planned(repo)
    places = {entry.id: number for number, entry in enumerate(pack.table.entries)}
    deltas = [entry for entry in pack.table.entries if entry.base is not None]
    assert deltas
    assert all(places[entry.base] < places[entry.id] for entry in deltas if entry.base)
    kinds = [entry.kind for entry in pack.table.entries]
    assert all(first <= second for first, second in pairwise(kinds))


def test_packs_end_at_a_size_and_at_a_number_of_objects(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    save_line(repo, 4)
    (whole,) = planned(repo)
    monkeypatch.setattr(outpacks, "PUSH_PACK_OBJECTS", 5)
    packs = planned(repo)
    assert [len(pack.table.entries) for pack in packs[:-1]] == [5] * (len(packs) - 1)
    assert {entry.id for pack in packs for entry in pack.table.entries} == {entry.id for entry in whole.table.entries}
    monkeypatch.setattr(outpacks, "PUSH_PACK_OBJECTS", 1000)
    monkeypatch.setattr(outpacks, "PUSH_PACK_BYTES", 100_000)
    packs = planned(repo)
    assert len(packs) > 1
    assert all(pack.size_bytes <= 100_000 or len(pack.table.entries) == 1 for pack in packs)
    assert PUSH_PACK_BYTES > 100_000


# --- damage, and what moves meanwhile -------------------------------------------------------------------------------


def first_chunk(repo: Repository, pack: OutPack) -> tuple[ObjectId, Place]:
    found = next(entry for entry in pack.table.entries if entry.kind is Kind.CHUNK)
    return found.id, repo.index.places(found.id)[0]


def spoil(repo: Repository, place: Place) -> None:
    flip(pack_path(repo.layout.packs, place.pack), place.offset + OBJECT_HEADER_BYTES + 5)


def test_a_damaged_copy_ends_the_push_and_is_named(repo: Repository) -> None:
    save_line(repo, 1)
    object_id, place = first_chunk(repo, planned(repo)[0])
    spoil(repo, place)
    storage = WatchedStorage(MemoryStorage())
    with open_remote(repo, "origin", storage) as remote, pytest.raises(Corrupt, match=object_id.hex()) as error:
        push(repo, remote)
    assert error.value.details["pack"] == place.pack.hex()
    assert require_whole(storage).refs == {}
    assert not list(storage.list("packs/"))


def copy_elsewhere(repo: Repository, object_id: ObjectId, place: Place) -> None:
    """Put another copy, of the same bytes, into a pack of its own."""
    header, payload = repo.packs.read(place.pack, place.offset, place.stored_bytes, object_id)
    data = memoryview(payload.obj)
    sealed = Sealed(header, (bytes(data),), place.stored_bytes, bytes(data[48:64]))
    table = write(repo.layout.packs, [sealed, chunk(b"beside it" * 9)])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))


def test_a_damaged_copy_is_sent_from_elsewhere(repo: Repository) -> None:
    save_line(repo, 1)
    (pack,) = planned(repo)
    object_id, place = first_chunk(repo, pack)
    whole = streamed(repo, pack)
    copy_elsewhere(repo, object_id, place)
    spoil(repo, place)
    assert streamed(repo, pack) == whole


def test_a_pack_that_goes_while_it_is_sent_is_planned_anew(repo: Repository) -> None:
    save_line(repo, 6)
    storage = WatchedStorage(MemoryStorage())

    def rewrite(method: str, _key: str) -> None:
        if method == "upload":
            storage.live()
            repack(repo, "size")
            collect(repo)

    before = set(repo.packs.pack_ids())
    storage.before = rewrite
    with open_remote(repo, "origin", storage) as remote:
        push(repo, remote).require_all()
    assert before.isdisjoint(repo.packs.pack_ids())
    require_whole(storage)


def test_what_is_sent_is_kept_here_meanwhile(repo: Repository) -> None:
    save_line(repo, 2)
    storage = WatchedStorage(MemoryStorage())
    tip = repo.resolve("main")

    def drop(method: str, _key: str) -> None:
        if method == "upload":
            storage.live()
            for name, held in repo.refs.list().items():
                repo.refs.update(name, held, None, "delete")
            for log in (repo.layout.root / "logs").rglob("*"):
                if log.is_file():
                    log.unlink()
            collect(repo)

    storage.before = drop
    with open_remote(repo, "origin", storage) as remote:
        push(repo, remote).require_all()
    assert require_whole(storage).refs == {"refs/branches/main": tip}


def test_a_damaged_table_is_no_reason_not_to_send_what_is_intact(repo: Repository) -> None:
    save_line(repo, 1)
    (pack,) = planned(repo)
    place = first_chunk(repo, pack)[1]
    flip(pack_path(repo.layout.packs, place.pack), repo.packs.size_bytes(place.pack) - 100)
    repo.packs.close()
    (again,) = planned(repo)
    assert again.id == pack.id
    assert len(streamed(repo, again)) == pack.size_bytes


def test_a_reader_that_fails_says_stale(repo: Repository) -> None:
    save_line(repo, 1)
    (pack,) = planned(repo)
    spoil(repo, first_chunk(repo, pack)[1])
    with PackSource(repo, pack).open() as reader, pytest.raises(Stale):
        reader.read()
