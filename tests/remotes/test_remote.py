"""A remote, opened: refs, format, idx files and lists of it, and how seldom it is asked."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.codec import Transform
from store.errors import Conflict, Corrupt, Incompatible, NotFound, RemoteUnsupported
from store.format.dtypes import Element
from store.format.objects import Commit, Kind
from store.format.pack import ObjectHeader, PackTable, Sealed, encode_table, seal, table_entry
from store.ids import CommitId, ObjectId, chunk_id, pack_id
from store.naming.refnames import RefName
from store.remotes.condemned import decode_condemned, encode_condemned
from store.remotes.idx import encode_idx
from store.remotes.names import CONDEMNED, RefKey, pack_name
from store.remotes.remote import Remote, RemoteRef, open_remote
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.watched_storage import WatchedStorage

MAIN = RefName("branches/main")
FIRST, SECOND = (CommitId(ObjectId(bytes([number]) * 32)) for number in (1, 2))


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store") as repo:
        yield repo


@pytest.fixture
def storage() -> WatchedStorage:
    return WatchedStorage(MemoryStorage())


def opened(repo: Repository, storage: WatchedStorage) -> Remote:
    return open_remote(repo, "origin", storage)


@pytest.fixture
def remote(repo: Repository, storage: WatchedStorage) -> Remote:
    return opened(repo, storage)


def test_an_unknown_remote_is_named(repo: Repository) -> None:
    with pytest.raises(NotFound, match="no remote 'origin'"):
        open_remote(repo, "origin")


def test_an_empty_place_has_no_format_and_nothing_else(remote: Remote) -> None:
    assert remote.format() is None
    assert remote.refs() == {}
    assert remote.packs() == {}
    assert remote.absent() == []
    assert remote.condemned().packs == {}


def test_the_first_to_push_says_how_refs_are_kept(remote: Remote, storage: WatchedStorage) -> None:
    assert remote.prepare().refs == "shared"
    assert json.loads(storage.get("format", 1000)[0])["needs"] == ["moonclip-remote-1"]  # type: ignore[index]
    assert remote.own_key(MAIN) == RefKey(None, MAIN)


def test_a_server_is_probed_once_by_each_store(repo: Repository, storage: WatchedStorage) -> None:
    opened(repo, storage).prepare()
    assert any(key.startswith("scratch/") for _, key in storage.requests)
    storage.forget()
    opened(repo, storage).prepare()
    assert storage.requests == [("get", "format")]


class IgnoringStorage(MemoryStorage):
    """Takes every write, whatever its condition."""

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        return self.put(key, data)


def test_where_conditions_are_ignored_each_store_keeps_its_own_refs(repo: Repository) -> None:
    storage = WatchedStorage(IgnoringStorage())
    remote = opened(repo, storage)
    assert remote.prepare().refs == "by-store"
    key = remote.own_key(MAIN)
    assert key == RefKey(remote.store_id, MAIN)
    ref = remote.swap_ref(key, None, FIRST)
    with pytest.raises(Conflict):
        remote.swap_ref(key, None, SECOND)
    remote.swap_ref(key, ref, SECOND)
    assert remote.refs()[key].commit == SECOND


def test_shared_refs_are_not_moved_where_conditions_are_ignored(repo: Repository) -> None:
    storage = WatchedStorage(IgnoringStorage())
    storage.put("format", b'{"needs": ["moonclip-remote-1"], "refs": "shared"}')
    with pytest.raises(RemoteUnsupported, match="two writers win"):
        opened(repo, storage).prepare()


@pytest.mark.parametrize(
    ("content", "error"),
    [
        (b'{"needs": ["moonclip-remote-1", "moonclip-remote-9"], "refs": "shared"}', Incompatible),
        (b'{"needs": ["moonclip-remote-1"], "refs": "else"}', Corrupt),
        (b'{"needs": 1, "refs": "shared"}', Corrupt),
        (b'{"read": ["moonclip-1"], "write": [], "gc": []}', Incompatible),  # of a store
        (b"<html>", Corrupt),
        (b"[" * 60_000, Corrupt),
    ],
)
def test_a_format_that_is_not_known_is_refused(
    remote: Remote, storage: WatchedStorage, content: bytes, error: type[Exception]
) -> None:
    storage.put("format", content)
    with pytest.raises(error):
        remote.format()


def test_refs_are_read_again_only_if_they_changed(repo: Repository, storage: WatchedStorage) -> None:
    for number in range(5):
        storage.put(f"refs/branches/b{number}", FIRST.hex().encode() + b"\n")
    assert len(opened(repo, storage).refs()) == 5
    storage.put("refs/branches/b3", SECOND.hex().encode() + b"\n")
    storage.forget()
    refs = opened(repo, storage).refs()
    assert storage.requests == [("list", "refs/"), ("get", "refs/branches/b3")]
    assert [refs[RefKey(None, RefName(f"branches/b{n}"))].commit for n in range(5)] == [FIRST] * 3 + [SECOND, FIRST]


def test_what_is_remembered_of_another_url_does_not_count(repo: Repository, storage: WatchedStorage) -> None:
    storage.put("refs/branches/main", FIRST.hex().encode() + b"\n")
    opened(repo, storage).refs()
    elsewhere = MemoryStorage()
    elsewhere.url = "memory:elsewhere"
    elsewhere.put("refs/branches/main", SECOND.hex().encode() + b"\n")
    assert opened(repo, WatchedStorage(elsewhere)).refs()[RefKey(None, MAIN)].commit == SECOND


def test_a_cache_that_is_damaged_is_as_good_as_none(repo: Repository, storage: WatchedStorage) -> None:
    storage.put("refs/branches/main", FIRST.hex().encode() + b"\n")
    known = repo.layout.root / "remotes" / "origin" / "known"
    opened(repo, storage).refs()
    for content in (b"", b"[]", b'{"url": "memory:", "refs": {"refs/branches/main": [1]}}', b"[" * 10**6):
        known.write_bytes(content)
        assert opened(repo, storage).refs()[RefKey(None, MAIN)].commit == FIRST


@pytest.mark.parametrize("content", [b"", b"x", FIRST.hex().encode(), b"AB" * 32 + b"\n", b"\xff" * 9])
def test_a_ref_that_holds_no_id_is_an_error_that_names_it(
    remote: Remote, storage: WatchedStorage, content: bytes
) -> None:
    storage.put("refs/branches/main", content)
    with pytest.raises(Corrupt, match="refs/branches/main"):
        remote.refs()


def test_keys_that_are_none_of_ours_are_passed_over(remote: Remote, storage: WatchedStorage) -> None:
    for key in ("refs/README", "refs/branches/..", "packs/x.pack", "packs/x.idx", "absent/me", "refs/by/x/branches/a"):
        storage.put(key, b"?")
    assert (remote.refs(), remote.packs(), remote.absent()) == ({}, {}, [])


def test_a_ref_moves_only_from_what_it_was_read_as(remote: Remote) -> None:
    remote.prepare()
    key = remote.own_key(MAIN)
    made = remote.swap_ref(key, None, FIRST)
    with pytest.raises(Conflict, match=FIRST.hex()[:8]):
        remote.swap_ref(key, None, SECOND)
    moved = remote.swap_ref(key, made, SECOND)
    with pytest.raises(Conflict, match=SECOND.hex()[:8]):
        remote.swap_ref(key, made, FIRST)
    deleted = remote.swap_ref(key, moved, None)
    assert remote.refs()[key] == RemoteRef(None, deleted.version)
    with pytest.raises(Conflict, match="not there"):
        remote.swap_ref(key, moved, FIRST)
    remote.swap_ref(key, deleted, FIRST)
    assert remote.refs()[key].commit == FIRST


def test_a_write_whose_answer_was_lost_counts(remote: Remote, storage: WatchedStorage) -> None:
    remote.prepare()
    key = remote.own_key(MAIN)
    version = storage.put(key.key, SECOND.hex().encode() + b"\n")
    assert remote.swap_ref(key, None, SECOND) == RemoteRef(SECOND, version)


def test_what_was_just_written_need_not_be_read(repo: Repository, storage: WatchedStorage) -> None:
    remote = opened(repo, storage)
    remote.prepare()
    remote.swap_ref(remote.own_key(MAIN), None, FIRST)
    storage.forget()
    assert opened(repo, storage).refs()[RefKey(None, MAIN)].commit == FIRST
    assert storage.requests == [("list", "refs/")]


# --- packs ----------------------------------------------------------------------------------------------------------


def sealed_commit(step: int) -> Sealed:
    commit = Commit(items={}, step=step)
    encoded = commit.encode()
    header = ObjectHeader(Kind.COMMIT, Transform.RAW, False, Element.INT8, len(encoded), commit.id)
    return seal(header, [encoded])


def put_pack(storage: WatchedStorage, seed: int, nonce: bytes = b"") -> PackTable:
    """A pack of one chunk and one commit, of which the remote has the idx; the pack itself is zeros."""
    raw = bytes([seed]) * 100
    chunk = seal(ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.INT8, 100, chunk_id(raw)), [raw])
    commit = sealed_commit(seed)
    first = table_entry(chunk, 64)
    entries = (first, table_entry(commit, first.end))
    table = PackTable(pack_id(encode_table(entries)), entries)
    name = pack_name(table.id, nonce)
    storage.put(name.pack_key, bytes(entries[-1].end + 264))
    storage.put(name.idx_key, encode_idx(table, [b"".join(bytes(part) for part in commit.buffers)]))
    return table


def test_a_pack_without_idx_is_not_there(remote: Remote, storage: WatchedStorage) -> None:
    first, second = put_pack(storage, 1), put_pack(storage, 2)
    storage.delete([pack_name(first.id).idx_key])
    name = pack_name(second.id)
    storage.put(pack_name(first.id, b"1234").idx_key, b"an idx without its pack")
    assert {name: listed.pack.size_bytes for name, listed in remote.packs().items() if listed.pack} == {
        name: second.entries[-1].end + 264
    }


def test_an_idx_is_asked_for_once(repo: Repository, storage: WatchedStorage) -> None:
    tables = [put_pack(storage, seed) for seed in range(1, 5)]
    names = [pack_name(table.id) for table in tables]
    idxs, faults = opened(repo, storage).idxs(names)
    assert not faults
    assert [idxs[name].table for name in names] == tables
    assert list(idxs[names[0]].commits) == [Commit(items={}, step=1).id]
    storage.forget()
    assert opened(repo, storage).idxs(names) == (idxs, {})
    assert storage.requests == []


def test_a_damaged_idx_is_an_error_and_a_damaged_copy_of_it_none(remote: Remote, storage: WatchedStorage) -> None:
    table = put_pack(storage, 1)
    name = pack_name(table.id)
    remote.idx(name)
    remote.cache.keep_idx(table.id, b"garbled")
    assert remote.idx(name).table == table
    storage.put(name.idx_key, b"garbled")
    assert remote.idx(name).table == table
    remote.cache.drop_idx(set())
    with pytest.raises(Corrupt):
        remote.idx(name)
    storage.delete([name.idx_key])
    with pytest.raises(NotFound):
        remote.idx(name)


# --- lists ----------------------------------------------------------------------------------------------------------


def test_absence_records_of_all_stores_are_read_and_ones_own_only_grow(repo: Repository) -> None:
    storage = WatchedStorage(MemoryStorage())
    line, other = f"{FIRST.hex()} * pruned 5", f"{SECOND.hex()} optimizer partial 6"
    storage.put("absent/" + "ab" * 16, f"{line}\ndamaged\n".encode())
    remote = opened(repo, storage)
    remote.add_absent([other])
    remote.add_absent([f"{SECOND.hex()} model pruned 7"])
    assert {(record.commit, record.item, record.time_ns) for record in opened(repo, storage).absent()} == {
        (FIRST, "*", 5),
        (SECOND, "optimizer", 6),
        (SECOND, "model", 7),
    }
    storage.forget()
    remote.add_absent([other])
    assert storage.requests == []


def test_the_list_of_condemned_packs_is_read_back(remote: Remote, storage: WatchedStorage) -> None:
    names = [pack_name(pack_id(b"1")), pack_name(pack_id(b"2"), b"1234")]
    version = storage.put(CONDEMNED, encode_condemned({name.text: 7 for name in names}))
    condemned = remote.condemned()
    assert condemned.names() == set(names)
    assert condemned.version == version
    assert set(condemned.packs.values()) == {7}


@pytest.mark.parametrize(
    "content", [b"", b"{}", b'{"packs": []}', b'{"packs": {"x": 1}}', b'{"packs": {"' + b"a" * 64 + b'": "x"}}']
)
def test_a_damaged_list_of_condemned_packs_is_an_error(content: bytes) -> None:
    with pytest.raises(Corrupt, match="gc/condemned"):
        decode_condemned(content, "1")
