"""A repair that gets what is lost from a remote."""

from pathlib import Path

import pytest

from store.format.objects import Kind
from store.fsck import repair
from store.ids import ChunkId, ObjectId
from store.reading.packs import pack_path
from store.remotes.fetching.mending import RemoteSource
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.sharing import line, pushed, require_sound, tensors


@pytest.fixture
def storage() -> MemoryStorage:
    return MemoryStorage()


def test_lost_packs_come_back_from_a_remote(tmp_path: Path, storage: MemoryStorage) -> None:
    root = tmp_path / "one"
    with Repository.init(root, thread_count=2) as one:
        made = line(one, range(4))
        content = [tensors(one, each) for each in made]
        pushed(one, storage)
        packs = one.packs.pack_ids()
    for pack in packs[::2]:
        pack_path(root / "packs", pack).unlink()
    path = pack_path(root / "packs", packs[1])
    path.write_bytes(path.read_bytes()[:-200_000] if path.stat().st_size > 300_000 else path.read_bytes()[:500])
    with Repository.open(root) as one, open_remote(one, "origin", storage) as remote:
        done = repair(root, full=True, source=RemoteSource(remote))
        assert not done.before.clean
        assert done.after is not None and done.after.clean
    with Repository.open(root) as one:
        assert [tensors(one, each) for each in made] == content
        require_sound(one)


def test_what_is_damaged_there_too_is_not_given(tmp_path: Path, storage: MemoryStorage) -> None:
    with Repository.init(tmp_path / "one", thread_count=2) as one:
        made = line(one, range(4))
        pushed(one, storage)
        chunk: ChunkId = one.tree(one.commit(made[3]), "model")["drifting"].chunks[0]
        raw = one.reader.chunk(chunk)
        with open_remote(one, "origin", storage) as remote:
            source = RemoteSource(remote)
            assert source.get(chunk, Kind.CHUNK) == raw
            assert source.get(chunk, Kind.TREE) is None
            assert source.get(ObjectId(bytes(32)), Kind.CHUNK) is None
            assert source.get(one.commit(made[0]).items["model"], Kind.TREE) is not None
            (key,) = [found.key for found in storage.list("packs/") if found.key.endswith(".pack")]
            whole = storage.get(key, 1 << 30)
            assert whole is not None
            storage.put(key, b"\0" * len(whole[0]))
            assert RemoteSource(remote).get(chunk, Kind.CHUNK) is None
