"""``BlockWriter``: the same bytes whatever the sizes, the file system and the luck."""

import errno
import os
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store import blocks
from store.disk import Disk
from store.files import Files
from store.ids import Buffer
from store.limits import PAGE_BYTES, WRITE_BLOCK_BYTES
from tools.crash.faults import FaultyDisk

LENGTHS = [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, WRITE_BLOCK_BYTES, WRITE_BLOCK_BYTES + 1]


class RefusesDirect(Disk):
    """Takes O_DIRECT when it is set, and then refuses to write: so do some network file systems."""

    def __init__(self) -> None:
        self.refused_count = 0

    def write(self, fd: int, data: Buffer) -> int:
        import fcntl

        if fcntl.fcntl(fd, fcntl.F_GETFL) & os.O_DIRECT:
            self.refused_count += 1
            raise OSError(errno.EINVAL, "not here")
        return super().write(fd, data)


def write_blocks(files: Files, path: Path, buffers: list[Buffer]) -> bytes:
    writer = files.open_blocks(path)
    writer.write(buffers)
    assert writer.size_bytes == sum(len(buffer) for buffer in buffers)
    writer.finish()
    return path.read_bytes()


@pytest.mark.parametrize("length", LENGTHS)
@pytest.mark.parametrize("is_direct", [True, False])
def test_direct_and_buffered_give_the_same_bytes(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, length: int, is_direct: bool
) -> None:
    if not is_direct:
        monkeypatch.setattr(blocks, "_O_DIRECT", 0)
    data = os.urandom(length)
    assert write_blocks(Files(), tmp_path / "pack", [data]) == data


def test_a_file_system_that_refuses_direct_writes_gets_buffered_ones(tmp_path: Path) -> None:
    disk = RefusesDirect()
    data = os.urandom(WRITE_BLOCK_BYTES + 17)
    assert write_blocks(Files(disk), tmp_path / "pack", [data]) == data
    assert disk.refused_count <= 1


def test_short_writes_are_continued(tmp_path: Path) -> None:
    files = Files(FaultyDisk(max_write_bytes=100_001))
    data = os.urandom(1_000_003)
    assert write_blocks(files, tmp_path / "pack", [data]) == data
    files.write_atomic(tmp_path / "ref", data)
    assert files.read_bytes(tmp_path / "ref") == data


@given(st.lists(st.binary(max_size=9000), max_size=8))
def test_buffers_come_out_one_after_another(tmp_path_factory: pytest.TempPathFactory, buffers: list[bytes]) -> None:
    path = tmp_path_factory.mktemp("blocks") / "pack"
    assert write_blocks(Files(), path, list(buffers)) == b"".join(buffers)


def test_buffers_may_change_once_they_are_written(tmp_path: Path) -> None:
    writer = Files().open_blocks(tmp_path / "pack")
    buffer = bytearray(b"first")
    writer.write([buffer])
    buffer[:] = b"other"
    writer.finish()
    assert (tmp_path / "pack").read_bytes() == b"first"


@pytest.mark.parametrize("error_number", [errno.ENOSPC, errno.EIO])
def test_a_failed_write_removes_the_file_and_ends_the_writer(tmp_path: Path, error_number: int) -> None:
    files = Files(FaultyDisk(fail_at_byte=WRITE_BLOCK_BYTES + 5, error_number=error_number))
    writer = files.open_blocks(tmp_path / "pack")
    writer.write([bytes(WRITE_BLOCK_BYTES)])
    with pytest.raises(OSError, match=os.strerror(error_number)):
        writer.write([bytes(2 * WRITE_BLOCK_BYTES)])
    assert files.list_directory(tmp_path) == []
    with pytest.raises(ValueError, match="not being written"):
        writer.write([b"more"])


def test_a_failed_fsync_removes_the_file_and_is_not_tried_again(tmp_path: Path) -> None:
    disk = FaultyDisk(fail_at_operation=3)  # make, write, set length, sync
    writer = Files(disk).open_blocks(tmp_path / "pack")
    writer.write([b"x"])
    with pytest.raises(OSError, match="Input/output"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="not being written"):
        writer.finish()


def test_abandoning_removes_the_file_also_when_finished(tmp_path: Path) -> None:
    writer = Files().open_blocks(tmp_path / "pack")
    writer.write([b"x"])
    writer.finish()
    writer.abandon()
    writer.abandon()
    assert list(tmp_path.iterdir()) == []


def test_a_block_writer_takes_no_file_that_exists(tmp_path: Path) -> None:
    (tmp_path / "pack").write_bytes(b"precious")
    with pytest.raises(FileExistsError):
        Files().open_blocks(tmp_path / "pack")
    assert (tmp_path / "pack").read_bytes() == b"precious"


def test_without_memory_for_a_block_no_file_is_made(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(*_: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(blocks.mmap, "mmap", refuse)
    with pytest.raises(OSError, match="no memory"):
        Files().open_blocks(tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []
