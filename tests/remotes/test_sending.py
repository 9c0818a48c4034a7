"""Packs go out a few at once, and count in order."""

import threading
from collections.abc import Iterator
from pathlib import Path, PurePosixPath

import pytest

from store.errors import RemoteUnavailable
from store.remotes.pushing import outpacks, sending
from store.remotes.pushing.push import push
from store.remotes.remote import open_remote
from store.repository import Repository
from tests.remotes.memory_storage import MemoryStorage
from tests.remotes.watched_storage import WatchedStorage
from tests.stores import commit, item, noise, tensor

PATIENCE_S = 60
"""For what happens at once, unless it never does."""


@pytest.fixture
def repo(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Repository]:
    """A store whose push takes several packs."""
    monkeypatch.setattr(outpacks, "PUSH_PACK_BYTES", 40_000)
    with Repository.init(tmp_path / "store") as repo:
        commit(repo, items=[item("model", {f"w{n}": tensor(noise(n, 10_000), position=n) for n in range(9)})])
        yield repo


def pushed(repo: Repository, storage: WatchedStorage) -> None:
    with open_remote(repo, "origin", storage) as remote:
        push(repo, remote, ["main"]).require_all()


def test_a_pack_counts_only_after_those_before_it(repo: Repository) -> None:
    storage = WatchedStorage(MemoryStorage())
    told: list[tuple[str, str]] = []
    begun: list[str] = []
    second_is_there = threading.Event()

    def before(method: str, key: str) -> None:
        if method == "upload":
            begun.append(key)
            if len(begun) == 1:
                assert second_is_there.wait(PATIENCE_S)
        elif key.endswith(".idx"):
            told.append(("idx", PurePosixPath(key).stem))

    def after(method: str, key: str) -> None:
        if method == "upload":
            told.append(("pack", PurePosixPath(key).stem))
            second_is_there.set()

    storage.before, storage.after = before, after
    pushed(repo, storage)
    first, second = (PurePosixPath(key).stem for key in begun[:2])
    assert told[0] == ("pack", second)
    assert [name for what, name in told if what == "idx"][:2] == [first, second]
    for at, (what, name) in enumerate(told):
        assert what == "pack" or ("pack", name) in told[:at]
    assert len(begun) >= 3


def test_when_a_pack_cannot_be_sent_the_other_one_is_ended(repo: Repository) -> None:
    storage = WatchedStorage(MemoryStorage())
    begun: list[str] = []
    both = threading.Barrier(2)

    def before(method: str, _key: str) -> None:
        if method == "upload":
            begun.append(threading.current_thread().name)
            if len(begun) <= 2:
                both.wait(PATIENCE_S)
            raise RemoteUnavailable("the line is cut")

    storage.before = before
    with pytest.raises(RemoteUnavailable, match="the line is cut"):
        pushed(repo, storage)
    assert len(begun) == 2
    assert not any(thread.name in begun for thread in threading.enumerate())
    assert not any(key.endswith(".idx") for _, key in storage.requests)
    storage.live()
    pushed(repo, storage)


def test_an_upload_that_nobody_waits_for_ends_at_its_next_bytes() -> None:
    meter = sending._Meter(None, 2)
    meter.advance(1)
    meter.stop()
    with pytest.raises(sending._Stopped):
        meter.advance(1)
