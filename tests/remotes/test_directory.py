"""What a directory does as a storage beside what all of them do (tests/conformance)."""

import os
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, Incompatible, RemoteDenied, RemoteError, RemoteMissing
from store.limits import VERSION_BY_CONTENT_BYTES
from store.remotes.storages.directory import DirectoryStorage
from store.remotes.storages.storage import Unfinished
from tests.storages import Bytes, Heard, keys_of, noise


@pytest.mark.parametrize(
    "key",
    ["", "/etc/passwd", "../x", "packs/../../x", "packs//x", "packs/", ".lock", "packs/.tmp-00", "a\0b", "x" * 256],
)
def test_f10_no_key_leads_out_of_the_directory(tmp_path: Path, key: str) -> None:
    root = tmp_path / "remote"
    root.mkdir()
    storage = DirectoryStorage(root)
    for act in (
        lambda: storage.put(key, b"x"),
        lambda: storage.put_if(key, b"x", None),
        lambda: storage.upload(key, Bytes(b"x"), Heard()),
        lambda: storage.get(key, 1),
        lambda: storage.stat(key),
        lambda: storage.delete([key]),
        lambda: storage.read_into(key, 0, memoryview(bytearray(1)), Heard()),
    ):
        with pytest.raises(Incompatible):
            act()
    assert [path.name for path in tmp_path.iterdir()] == ["remote"]
    assert not list(root.iterdir())


def test_a_directory_that_is_missing_is_named(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path / "none")
    for act in (
        lambda: storage.put("format", b"x"),
        lambda: storage.get("format", 1),
        lambda: list(storage.list("")),
        storage.now_ns,
        lambda: list(storage.unfinished()),
    ):
        with pytest.raises(RemoteMissing, match="none: there is no such directory"):
            act()
    assert not list(tmp_path.iterdir())


def test_a_directory_is_shared_by_two_storages(tmp_path: Path) -> None:
    one, other = DirectoryStorage(tmp_path), DirectoryStorage(tmp_path)
    version = one.put_if("refs/branches/main", b"1", None)
    assert other.put_if("refs/branches/main", b"2", version)
    assert keys_of(one) == ["refs/branches/main"]


@pytest.mark.parametrize("size_bytes", [1, VERSION_BY_CONTENT_BYTES + 1])
def test_versions_are_one_wherever_they_are_told(tmp_path: Path, size_bytes: int) -> None:
    storage = DirectoryStorage(tmp_path)
    version = storage.put("format", bytes(size_bytes))
    got, stat = storage.get("format", size_bytes), storage.stat("format")
    assert got is not None and stat is not None
    assert {version} == {got[1], stat.version, *(found.version for found in storage.list(""))}
    newer = storage.put_if("format", b"\1" * size_bytes, version)
    assert newer != version


def test_what_a_killed_upload_left_is_listed_and_removed(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path)
    storage.put("packs/a.pack", b"x")
    left = tmp_path / "packs" / ".tmp-0123456789abcdef"
    left.write_bytes(b"half")
    assert keys_of(storage) == ["packs/a.pack"]
    (upload,) = storage.unfinished()
    assert upload.started_ns == left.stat().st_mtime_ns
    storage.abort(upload)
    assert not left.exists()
    storage.abort(upload)
    assert not list(storage.unfinished())


@pytest.mark.parametrize("key", ["packs/a.pack", "../.tmp-00", "packs/.lock", "/tmp/.tmp-00"])
def test_only_half_written_files_are_ended(tmp_path: Path, key: str) -> None:
    storage = DirectoryStorage(tmp_path)
    storage.put("packs/a.pack", b"x")
    with pytest.raises(Incompatible):
        storage.abort(Unfinished(key, "x", 0))
    assert keys_of(storage) == ["packs/a.pack"]


def test_a_source_of_another_length_is_refused(tmp_path: Path) -> None:
    class Short(Bytes):
        @property
        def size_bytes(self) -> int:
            return 10

    storage = DirectoryStorage(tmp_path)
    with pytest.raises(Corrupt, match="10 bytes should be sent, 3 came"):
        storage.upload("packs/a.pack", Short(b"abc"), Heard())
    assert not keys_of(storage) and not list(storage.unfinished())


def test_what_is_no_file_is_no_key(tmp_path: Path) -> None:
    os.mkfifo(tmp_path / "format")  # opening it would wait for ever
    storage = DirectoryStorage(tmp_path)
    assert storage.stat("format") is None
    assert storage.get("format", 1) is None
    assert not list(storage.list(""))


class Failing(Disk):
    def fsync(self, fd: int) -> None:
        raise OSError(28, "No space left on device")


def test_a_full_disk_is_told_and_leaves_nothing(tmp_path: Path) -> None:
    storage = DirectoryStorage(tmp_path, Files(Failing()))
    with pytest.raises(RemoteError, match=r"packs/a\.pack: No space left"):
        storage.upload("packs/a.pack", Bytes(noise(100)), Heard())
    with pytest.raises(RemoteError, match="format: No space left"):
        storage.put("format", b"1")
    left = [path for path in tmp_path.rglob("*") if path.is_file()]
    assert not left


def test_a_directory_that_may_not_be_written_denies(tmp_path: Path) -> None:
    class Denying(Disk):
        def open(self, path: Path, flags: int) -> int:
            raise PermissionError(13, "Permission denied", str(path))

    with pytest.raises(RemoteDenied, match="format: Permission denied"):
        DirectoryStorage(tmp_path, Files(Denying())).put("format", b"1")
