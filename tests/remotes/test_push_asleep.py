"""A push that stood still for days, as on a laptop that was closed, while a gc of the remote ran more than once."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.naming.refnames import branch_name
from store.remotes.condemned import encode_condemned
from store.remotes.names import CONDEMNED, PACKS, PackName, parse_pack
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.remote_state import require_whole
from tests.remotes.watched_storage import WatchedStorage
from tests.stores import commit


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store") as repo:
        yield repo


def names(storage: WatchedStorage) -> set[PackName]:
    return {parsed[0] for found in storage.list(PACKS) if (parsed := parse_pack(found.key))}


@pytest.mark.parametrize("is_part_left", [False, True])
def test_what_it_had_sent_and_gc_removed_and_forgot_is_sent_again(repo: Repository, is_part_left: bool) -> None:
    storage = WatchedStorage(MemoryStorage())
    with open_remote(repo, "origin", storage) as remote:
        commit(repo, step=0)
        push(repo, remote)
        old = names(storage)
        made = commit(repo, step=100)

        def collect(method: str, key: str) -> None:
            if method == "put_if" and key.startswith("refs/"):
                storage.live()
                gone = names(storage) - old
                assert gone
                storage.delete([name.pack_key for name in gone])
                if not is_part_left:  # else the idx was written when the pack was gone already
                    storage.delete([name.idx_key for name in gone])
                storage.put(CONDEMNED, encode_condemned({}, {}, "a later run"))  # their names are listed no more

        storage.before = collect
        push(repo, remote).require_all()
        storage.live()
    assert require_whole(storage).refs == {f"refs/{branch_name('main')}": made}
