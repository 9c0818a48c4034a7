"""``store.disk.files``: names, content, permissions."""

import os
import stat
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.disk.files import Files
from tests.descriptors import left_open


@pytest.fixture
def files() -> Files:
    return Files()


@pytest.fixture
def shared_umask() -> Iterator[None]:
    before = os.umask(0o002)
    yield
    os.umask(before)


def test_write_atomic_replaces_and_leaves_nothing_else(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "main"
    files.write_atomic(path, b"old")
    files.write_atomic(path, memoryview(b"new"))
    assert files.read_bytes(path) == b"new"
    assert files.list_directory(tmp_path) == ["main"]


def test_write_atomic_keeps_what_an_open_reader_sees(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "main"
    files.write_atomic(path, b"old")
    with files.open_read(path) as handle:
        files.write_atomic(path, b"newer")
        assert handle.pread(0, 10) == b"old"


def test_append_makes_the_file_and_adds_to_its_end(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "log"
    files.append_durable(path, b"one\n")
    files.append_durable(path, b"two\n")
    assert files.read_bytes(path) == b"one\ntwo\n"


def test_truncate_cuts_the_end_off(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "log"
    files.append_durable(path, b"whole\ntorn")
    files.truncate(path, 6)
    assert files.read_bytes(path) == b"whole\n"


def test_allocate_refuses_what_exists_and_leaves_it(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "ballast", b"mine")
    with pytest.raises(FileExistsError):
        files.allocate(tmp_path / "ballast", 100)
    assert files.read_bytes(tmp_path / "ballast") == b"mine"


def test_truncate_makes_no_file(files: Files, tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        files.truncate(tmp_path / "log", 0)
    assert files.list_directory(tmp_path) == []


def test_allocate_takes_up_its_space(files: Files, tmp_path: Path) -> None:
    path = tmp_path / "ballast"
    files.allocate(path, 1 << 20)
    assert files.size(path) == 1 << 20
    assert path.stat().st_blocks * 512 >= 1 << 20


def test_rename_between_directories(files: Files, tmp_path: Path) -> None:
    files.make_directory(tmp_path / "a" / "b")
    files.write_atomic(tmp_path / "a" / "b" / "x", b"x")
    files.rename_durable(tmp_path / "a" / "b" / "x", tmp_path / "a" / "y")
    assert files.read_bytes(tmp_path / "a" / "y") == b"x"
    assert files.list_directory(tmp_path / "a" / "b") == []


def test_make_directory_is_content_with_a_directory_but_not_with_a_file(files: Files, tmp_path: Path) -> None:
    files.make_directory(tmp_path / "refs" / "tags")
    files.make_directory(tmp_path / "refs" / "tags")
    files.write_atomic(tmp_path / "file", b"")
    with pytest.raises(FileExistsError):
        files.make_directory(tmp_path / "file")


def test_remove_says_when_there_is_nothing(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "x", b"")
    files.remove(tmp_path / "x")
    assert not files.exists(tmp_path / "x")
    with pytest.raises(FileNotFoundError):
        files.remove(tmp_path / "x")


def test_remove_directory_refuses_a_full_one(files: Files, tmp_path: Path) -> None:
    files.make_directory(tmp_path / "d")
    files.write_atomic(tmp_path / "d" / "x", b"")
    with pytest.raises(OSError, match="not empty"):
        files.remove_directory(tmp_path / "d")
    files.remove(tmp_path / "d" / "x")
    files.remove_directory(tmp_path / "d")
    assert files.list_directory(tmp_path) == []


def test_pread_returns_less_only_at_the_end(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "x", b"0123456789")
    with files.open_read(tmp_path / "x") as handle:
        assert (handle.size, handle.pread(2, 3), handle.pread(8, 5), handle.pread(10, 1)) == (10, b"234", b"89", b"")


def test_a_handle_closes_with_its_last_reference(files: Files, tmp_path: Path) -> None:
    files.write_atomic(tmp_path / "x", b"")
    with left_open():
        handle = files.open_read(tmp_path / "x")
        del handle


def test_what_is_not_there_has_no_fingerprint(files: Files, tmp_path: Path) -> None:
    """Also if a file is where a directory was: a ref ``a/b`` may have gone since its name was read, and ``a`` come."""
    (tmp_path / "a").write_bytes(b"")
    assert files.fingerprint(tmp_path / "a") is not None
    assert files.fingerprint(tmp_path / "b") is None
    assert files.fingerprint(tmp_path / "a" / "b") is None


@pytest.mark.usefixtures("shared_umask")
def test_d15_files_in_a_shared_directory_stay_shared(files: Files, tmp_path: Path) -> None:
    shared = tmp_path / "lab"
    shared.mkdir()
    shared.chmod(0o2775)
    files.make_directory(shared / "refs" / "tags")
    files.write_atomic(shared / "HEAD", b"")
    files.write_atomic(shared / "HEAD", b"again")
    files.append_durable(shared / "log", b"line")
    blocks = files.open_blocks(shared / "tmp-1")
    blocks.write([b"pack"])
    blocks.finish()
    files.rename_durable(shared / "tmp-1", shared / "pack")
    files.lock_exclusive(shared / "lock").close()
    for name in ("HEAD", "log", "pack", "lock"):
        mode = (shared / name).stat().st_mode
        assert stat.S_IMODE(mode) == 0o664, name
        assert (shared / name).stat().st_gid == shared.stat().st_gid
    assert stat.S_IMODE((shared / "refs" / "tags").stat().st_mode) == 0o2775
