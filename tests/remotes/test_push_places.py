"""Push to every kind of place there is, with the requests as they really are."""

from pathlib import Path

import pytest

from store.naming.refnames import branch_name
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.remotes.remote_state import require_whole
from tests.remotes.watched_storage import WatchedStorage
from tests.storages import PLACES, storage_at
from tests.stores import commit, item, noise, tensor

MAIN = branch_name("main")


@pytest.mark.parametrize("place", PLACES)
def test_a_history_goes_to_every_place(place: str, tmp_path: Path) -> None:
    (tmp_path / "remote").mkdir()
    with (
        storage_at(place, tmp_path / "remote") as (storage, _),
        Repository.init(tmp_path / "store") as repo,
    ):
        watched = WatchedStorage(storage)
        remote = open_remote(repo, "origin", watched)
        big = {f"w{number}": tensor(noise(number, 3 << 20), position=number) for number in range(4)}
        first = commit(repo, items=[item("model", big)], step=0)
        push(repo, remote).require_all()
        second = commit(repo, step=1)
        watched.forget()
        push(repo, remote).require_all()
        assert len(watched.requests) <= 12
        assert set(require_whole(storage).refs.values()) == {second}
        watched.forget()
        push(repo, open_remote(repo, "origin", watched)).require_all()
        assert len(watched.requests) <= 4  # one more where a listing tells another version than a read
        repo.set_ref(MAIN, second, first, "reset")
        assert push(repo, remote).changes[0].why == "rejected"
        push(repo, remote, force_with_lease=True).require_all()
        assert set(require_whole(storage).refs.values()) == {first}
        push(repo, remote, delete=["main"]).require_all()
        assert require_whole(storage).refs == {}
