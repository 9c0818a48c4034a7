"""A remote that is damaged, or lies."""

import logging
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from store.errors import Corrupt
from store.format import pack
from store.format.objects import Kind
from store.format.pack import HEADER_BYTES, Sealed, TableEntry, encode_table, footer_of, table_entry
from store.ids import ChunkId, CommitId, ObjectId, TreeId, chunk_id, pack_id
from store.naming.refnames import branch_name, remote_name, short_name
from store.remotes.fetching.fetch import fetch
from store.remotes.fetching.obtaining import obtain
from store.remotes.idx import encode_idx
from store.remotes.names import pack_name, parse_pack
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.packing import chunk
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import cloned, fetched, line, pushed, require_equal, require_sound
from tests.stores import noise


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


@pytest.fixture
def one(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "one", thread_count=2) as repo:
        yield repo


@pytest.fixture
def two(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "two", thread_count=2) as repo:
        yield repo


def entries_there(repo: Repository, storage: MemoryStorage) -> dict[ObjectId, tuple[str, TableEntry]]:
    """Every object of a remote: the key of its pack, and where it is in it."""
    with open_remote(repo, "origin", storage) as remote:
        idxs, _ = remote.idxs(remote.packs())
    return {entry.id: (name.pack_key, entry) for name, idx in idxs.items() for entry in idx.table.entries}


def alter(storage: MemoryStorage, key: str, change: Callable[[bytearray], None]) -> None:
    found = storage.get(key, 1 << 30)
    assert found is not None
    data = bytearray(found[0])
    change(data)
    storage.put(key, bytes(data))


def flip(storage: MemoryStorage, where: tuple[str, TableEntry]) -> None:
    """Damage an object where only its checksum tells."""
    key, entry = where

    def change(data: bytearray) -> None:
        data[entry.end - 1] ^= 0xFF

    alter(storage, key, change)


def send(storage: MemoryStorage, objects: list[Sealed], ids: list[ObjectId]) -> None:
    """Put a pack on a remote that names its objects as it likes."""
    offset, entries, body, commits = HEADER_BYTES, [], [pack.encode_header()], []
    for sealed, object_id in zip(objects, ids, strict=True):
        payload = b"".join(bytes(each) for each in sealed.buffers)
        start = 64 + (32 if sealed.header.base else 0)
        renamed = pack.seal(sealed.header._replace(id=object_id), [payload[start:]])
        entries.append(table_entry(renamed, offset))
        offset += renamed.stored_bytes
        stored = b"".join(bytes(each) for each in renamed.buffers)
        body.append(stored)
        if renamed.header.kind is Kind.COMMIT:
            commits.append(stored)
    table = encode_table(entries)
    name = pack_name(pack_id(table))
    storage.put(name.pack_key, b"".join([*body, table, pack.encode_footer(footer_of(table, offset))]))
    storage.put(name.idx_key, encode_idx(pack.decode_table(table, footer_of(table, offset), "table"), commits))


def a_chunk(repo: Repository, commit_id: CommitId, item: str, name: str) -> ChunkId:
    return repo.tree(repo.commit(commit_id), item)[name].chunks[0]


def test_a_damaged_object_keeps_its_branch_back_and_no_other(
    one: Repository, two: Repository, storage: MemoryStorage
) -> None:
    made = line(one, range(2))
    one.set_ref(branch_name("exp"), None, made[0], "branch")
    bad = line(one, (7, 8), "exp")
    pushed(one, storage)
    victim = a_chunk(one, bad[0], "model", "new")
    key, _ = entries_there(one, storage)[victim]
    flip(storage, entries_there(one, storage)[victim])
    done = fetched(two, storage)
    assert {change.name for change in done.changes} == {remote_name("origin", "main")}
    assert list(done.damaged) == [branch_name("exp")]
    why = done.damaged[branch_name("exp")]
    parsed = parse_pack(key)
    assert parsed is not None
    for part in (bad[0].hex()[:8], "'model'", victim.hex(), parsed[0].text, "memory:"):
        assert part in why
    with pytest.raises(Corrupt, match="branches/exp was not fetched"):
        done.require_sound()
    assert two.index.places(victim) == []
    assert two.index.commit(bad[1]) is None
    require_equal(one, two, made)


def test_another_copy_is_taken_where_there_is_one(one: Repository, two: Repository, storage: MemoryStorage) -> None:
    made = line(one, range(2))
    pushed(one, storage)
    victim = a_chunk(one, made[0], "model", "new")
    flip(storage, entries_there(one, storage)[victim])
    send(storage, [chunk(one.reader.chunk(victim))], [victim])
    assert fetched(two, storage).damaged == {}
    require_equal(one, two, made)


def test_f10_content_of_another_hash_is_not_taken(one: Repository, two: Repository, storage: MemoryStorage) -> None:
    """Everything fits: lengths, checksums, table. Only what it decodes to is not what it is named by."""
    made = line(one, range(2))
    pushed(one, storage)
    victim = a_chunk(one, made[0], "model", "new")
    raw = one.reader.chunk(victim)
    for key in [found.key for found in storage.list("packs/")]:
        storage.delete([key])
    entries = [(pack_of, entry) for pack_of in one.packs.pack_ids() for entry in one.packs.table(pack_of).entries]
    stored = {entry.id: one.packs.read_entry(pack_of, entry) for pack_of, entry in entries}
    objects = {each: pack.seal(header, [bytes(payload)]) for each, (header, payload) in stored.items()}
    objects[victim] = chunk(noise("other", len(raw)))
    send(storage, list(objects.values()), list(objects))
    done = fetched(two, storage)
    assert "content does not match its id" in done.damaged[branch_name("main")]
    assert two.index.places(victim) == []
    assert two.refs.list() == {}
    require_sound(two)


def test_f10_a_pack_that_is_cut_off_or_gone_is_damage_not_a_crash(
    one: Repository, two: Repository, storage: MemoryStorage
) -> None:
    line(one, range(2))
    pushed(one, storage)
    (key,) = [found.key for found in storage.list("packs/") if found.key.endswith(".pack")]
    whole = storage.get(key, 1 << 30)
    assert whole is not None
    storage.put(key, whole[0][:1000])
    assert list(fetched(two, storage).damaged) == [branch_name("main")]
    storage.delete([key])
    assert list(fetched(two, storage).damaged) == [branch_name("main")]
    storage.put(key, whole[0])
    assert fetched(two, storage).damaged == {}
    require_sound(two)


def test_an_idx_that_is_damaged_counts_as_not_there(
    one: Repository, two: Repository, storage: MemoryStorage, caplog: pytest.LogCaptureFixture
) -> None:
    line(one, range(2))
    pushed(one, storage)
    (key,) = [found.key for found in storage.list("packs/") if found.key.endswith(".idx")]
    alter(storage, key, lambda data: data.__setitem__(200, data[200] ^ 0xFF))
    with caplog.at_level(logging.WARNING):
        done = fetched(two, storage)
    assert "is nowhere on memory:" in done.damaged[branch_name("main")]
    assert "cannot be read" in caplog.text
    require_sound(two)


def test_a_ref_whose_commit_nobody_has_keeps_only_itself_back(
    one: Repository, two: Repository, storage: MemoryStorage
) -> None:
    made = line(one, range(2))
    pushed(one, storage)
    storage.put("refs/branches/lost", f"{'7' * 64}\n".encode())
    done = fetched(two, storage)
    assert list(done.damaged) == ["branches/lost"]
    require_equal(one, two, made)


def test_a_clone_of_a_damaged_branch_says_so_and_goes_on_once_it_is_mended(
    tmp_path: Path, one: Repository, storage: MemoryStorage
) -> None:
    made = line(one, range(3))
    pushed(one, storage)
    where = entries_there(one, storage)[a_chunk(one, made[1], "model", "new")]
    flip(storage, where)
    with pytest.raises(Corrupt, match="was not fetched"):
        cloned(tmp_path / "three", storage)
    flip(storage, where)
    with cloned(tmp_path / "three", storage) as three:
        assert short_name(branch_name(three.refs.head())) == "main"
        require_equal(one, three, made)


def test_single_objects_can_be_got_with_the_bases_they_need(
    one: Repository, two: Repository, storage: MemoryStorage
) -> None:
    made = line(one, range(4))
    pushed(one, storage)
    wanted = a_chunk(one, made[3], "model", "drifting")
    assert one.reader.place(wanted, Kind.CHUNK).base is not None
    with open_remote(two, "origin", storage) as remote:
        got = obtain(two, remote, [wanted, TreeId(one.commit(made[3]).items["model"]), ObjectId(bytes(32))])
        assert list(got.lacking) == [bytes(32)]
        assert "is in no pack of memory:" in got.lacking[ObjectId(bytes(32))]
        assert obtain(two, remote, [wanted]).read_bytes == 0
    assert chunk_id(two.reader.chunk(wanted)) == wanted
    assert two.reader.tree_node(one.commit(made[3]).items["model"]).entries
    require_sound(two)


def test_what_is_damaged_here_comes_again(one: Repository, two: Repository, storage: MemoryStorage) -> None:
    """A copy that failed its check is no copy."""
    made = line(one, range(2))
    pushed(one, storage)
    fetched(two, storage)
    victim = a_chunk(one, made[1], "model", "new")
    for place in two.index.places(victim):
        two.index.mark_bad(victim, place.pack)
    with open_remote(two, "origin", storage) as remote:
        assert obtain(two, remote, [victim]).object_count == 1
    assert two.reader.chunk(victim) == one.reader.chunk(victim)


def test_a_stale_listing_is_asked_again(one: Repository, two: Repository, storage: MemoryStorage) -> None:
    """D12: the ref is read as it is, the list of packs as it was before."""
    line(one, range(2))
    pushed(one, storage)
    fetched(two, storage)
    new = line(one, (5,))
    pushed(one, storage)
    with open_remote(two, "origin", storage) as remote:
        known = [name for name in remote.packs() if remote.cache.has_idx(name.id)]
        stale = iter([dict.fromkeys(known, 0)])
        honest = remote.packs
        remote.packs = lambda: next(stale, None) or honest()  # type: ignore[method-assign]
        assert fetch(two, remote).damaged == {}
    require_equal(one, two, new)
