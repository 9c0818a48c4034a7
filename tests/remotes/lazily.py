"""Lazy clones whose remote counts what is read of it, for tests."""

import threading
from collections.abc import Iterable
from pathlib import Path
from typing import Any

from store.ids import CommitId
from store.remotes.remote import open_remote
from store.remotes.storages.storage import Advance, Storage
from store.repository import Repository
from store.saving.inputs import ItemInput
from tests.remotes.sharing import cloned
from tests.remotes.watched_storage import WatchedStorage
from tests.stores import commit, item, noise, tensor

LARGE_BYTES = 400_000
SMALL_BYTES = 5_000


class CountedStorage(WatchedStorage):
    """Writes down what is read of packs.

    Attributes:
        reads: key, first byte and length of each read, as often as it was read.
    """

    def __init__(self, storage: Storage) -> None:
        super().__init__(storage)
        self.reads: list[tuple[str, int, int]] = []
        self._counting = threading.Lock()

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        super().read_into(key, start, out, advance)
        with self._counting:
            self.reads.append((key, start, len(out)))

    def forget(self) -> None:
        super().forget()
        self.reads.clear()

    @property
    def read_bytes(self) -> int:
        """Bytes of packs that were read."""
        return sum(size_bytes for _, _, size_bytes in self.reads)


def state(step: int) -> list[ItemInput]:
    """A model with a large tensor and a small one, an optimizer with a value in chunks, and settings."""
    weights = {
        "large": tensor(noise(("large", step), LARGE_BYTES), shape=(LARGE_BYTES // 100, 100)),
        "small": tensor(noise(("small", step), SMALL_BYTES), position=1),
    }
    long = "".join(f"{each:x}" for each in noise(("long", step), 40_000))
    return [
        item("model", weights),
        item("optimizer", {"moment": tensor(noise(("moment", step), LARGE_BYTES))}, {"long": long}),
        item("settings", {}, {"step": step}),
    ]


def line(repo: Repository, steps: Iterable[int]) -> list[CommitId]:
    """Commit such states, one on another."""
    return [commit(repo, "main", state(step), step=step) for step in steps]


def lazy_clone(root: Path, storage: Storage, **options: Any) -> Repository:
    """A clone that fetches what is read; nothing that the clone itself did is counted."""
    repo = cloned(root, storage, lazy=True, **options)
    reach(repo, storage)
    if isinstance(storage, WatchedStorage):
        storage.forget()
    return repo


def reach(repo: Repository, storage: Storage) -> None:
    """Let a store find the remote that its configuration cannot name."""
    repo.remote_openers["origin"] = lambda: open_remote(repo, "origin", storage)


def tensor_of(repo: Repository, commit_id: CommitId, item_name: str, name: str) -> bytes:
    """A tensor's bytes."""
    return bytes(repo.read_tensor(repo.tree(repo.commit(commit_id), item_name)[name]))  # type: ignore[arg-type]
