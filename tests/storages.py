"""Storages for tests: of every server there is, and of a directory."""

import io
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import BinaryIO

import numpy as np

from store.remotes.storages.credentials import Keys
from store.remotes.storages.directory import DirectoryStorage
from store.remotes.storages.retrying import Retries
from store.remotes.storages.s3 import S3Storage
from store.remotes.storages.s3client import S3Options
from store.remotes.storages.storage import Storage
from store.remotes.storages.urls import BucketPlace
from tests.s3servers import bucket, server
from tools.s3 import SERVERS, Account, Traits

PLACES = ("directory", *SERVERS)
QUICK = Retries(pause_seconds=0.001, max_pause_seconds=0.01)
PREFIX = "some/where/"

PART_BYTES = 5 << 20
"""What S3 allows at least: see the fixture ``small_parts``."""


@dataclass(frozen=True)
class Bytes:
    """A source that is in memory; gives odd amounts, as a file may."""

    data: bytes
    step_bytes: int = 1_000_003

    @property
    def size_bytes(self) -> int:
        return len(self.data)

    def open(self) -> BinaryIO:
        return _Reader(self.data, self.step_bytes)


class _Reader(io.BytesIO):
    def __init__(self, data: bytes, step_bytes: int) -> None:
        super().__init__(data)
        self._step_bytes = step_bytes

    def read(self, size_bytes: int | None = -1) -> bytes:
        if size_bytes is None or size_bytes < 0:
            size_bytes = self._step_bytes
        return super().read(min(size_bytes, self._step_bytes))

    def seekable(self) -> bool:
        return False


class Heard:
    """Adds up progress."""

    def __init__(self) -> None:
        self.total_bytes = 0

    def __call__(self, size_bytes: int) -> None:
        assert size_bytes > 0
        self.total_bytes += size_bytes


def noise(size_bytes: int, seed: int = 0) -> bytes:
    return np.random.default_rng(seed).bytes(size_bytes)


def read(storage: Storage, key: str, start: int, size_bytes: int) -> bytes:
    """A range, and that progress came to its length."""
    out = bytearray(size_bytes)
    heard = Heard()
    storage.read_into(key, start, memoryview(out), heard)
    assert heard.total_bytes == size_bytes
    return bytes(out)


def keys_of(storage: Storage, prefix: str = "") -> list[str]:
    return sorted(found.key for found in storage.list(prefix))


def options(account: Account, name: str, *, keys: Keys | None = None, prefix: str = PREFIX) -> S3Options:
    given = keys or Keys(account.access_key, account.secret_key)
    place = BucketPlace(name, prefix)
    return S3Options(place, account.endpoint_url, account.region, account.path_style, given, QUICK)


@contextmanager
def s3_storage(account: Account, name: str, **how: Keys | str) -> Iterator[S3Storage]:
    storage = S3Storage(options(account, name, **how))  # type: ignore[arg-type]
    try:
        yield storage
    finally:
        storage.close()


@contextmanager
def storage_at(place: str, directory: Path) -> Iterator[tuple[Storage, Traits]]:
    """A fresh storage at one of PLACES, and what is known of it."""
    if place == "directory":
        yield DirectoryStorage(directory), Traits()
        return
    account = server(place)
    with s3_storage(account, bucket(account)) as storage:
        yield storage, account.traits
