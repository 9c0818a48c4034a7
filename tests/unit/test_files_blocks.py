"""``BlockWriter``: the same bytes whatever the sizes, the file system and the luck."""

import errno
import mmap
import os
import threading
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.disk import blocks
from store.disk.blocks import BlockWriter
from store.disk.calls import Disk
from store.disk.files import Files
from store.ids import Buffer
from store.limits import PAGE_BYTES, WRITE_BLOCK_BYTES, WRITE_BLOCK_COUNT
from tools.crash.faults import FaultyDisk, Killed

LENGTHS = [0, 1, PAGE_BYTES - 1, PAGE_BYTES, PAGE_BYTES + 1, WRITE_BLOCK_BYTES, WRITE_BLOCK_BYTES + 1]
MANY_BYTES = (2 * WRITE_BLOCK_COUNT + 1) * WRITE_BLOCK_BYTES + 17


@pytest.fixture(autouse=True)
def no_thread_is_left() -> Iterator[None]:
    before = threading.active_count()
    yield
    assert threading.active_count() <= before  # threads of other tests may end meanwhile


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


class Gated(Disk):
    """Writes nothing before it is let."""

    def __init__(self) -> None:
        self.is_asked = threading.Event()
        self.may_write = threading.Event()

    def write(self, fd: int, data: Buffer) -> int:
        self.is_asked.set()
        assert self.may_write.wait(timeout=60)
        return super().write(fd, data)


def write_and_finish(writer: BlockWriter, length: int) -> None:
    """An error of the disk is raised by this or by what comes next."""
    writer.write([bytes(length)])
    writer.finish()


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
    with pytest.raises(OSError, match=os.strerror(error_number)) as raised:
        write_and_finish(writer, 2 * WRITE_BLOCK_BYTES)
    assert raised.value.filename == str(tmp_path / "pack")
    assert files.list_directory(tmp_path) == []
    with pytest.raises(ValueError, match="not being written"):
        writer.write([b"more"])


def test_what_kills_the_thread_that_writes_reaches_the_caller(tmp_path: Path) -> None:
    writer = Files(FaultyDisk(fail_at_byte=5, error_number=None)).open_blocks(tmp_path / "pack")
    with pytest.raises(Killed):
        write_and_finish(writer, MANY_BYTES)


def test_the_next_block_is_filled_while_one_is_written(tmp_path: Path) -> None:
    disk, data = Gated(), os.urandom(MANY_BYTES)
    writer = Files(disk).open_blocks(tmp_path / "pack")
    ahead_bytes = (WRITE_BLOCK_COUNT - 1) * WRITE_BLOCK_BYTES + 5
    writer.write([data[:ahead_bytes]])  # returns, although nothing is written
    assert disk.is_asked.wait(timeout=60)
    disk.may_write.set()
    writer.write([data[ahead_bytes:]])
    writer.finish()
    assert (tmp_path / "pack").read_bytes() == data


def test_blocks_are_few_and_used_again_by_the_next_file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    made: list[mmap.mmap] = []

    def counted(fd: int, length: int, flags: int) -> mmap.mmap:
        made.append(original(fd, length, flags=flags))
        return made[-1]

    original = mmap.mmap
    monkeypatch.setattr(blocks.mmap, "mmap", counted)
    files = Files()
    for name in ("one", "two"):
        data = os.urandom(MANY_BYTES)
        assert write_blocks(files, tmp_path / name, [data]) == data
    assert len(made) <= WRITE_BLOCK_COUNT


def test_abandoning_waits_for_the_write_that_runs(tmp_path: Path) -> None:
    """The file's descriptor may soon be another file's."""
    disk = Gated()
    writer = Files(disk).open_blocks(tmp_path / "pack")
    writer.write([bytes(2 * WRITE_BLOCK_BYTES)])
    assert disk.is_asked.wait(timeout=60)
    abandoning = threading.Thread(target=writer.abandon)
    abandoning.start()
    assert (tmp_path / "pack").exists()
    disk.may_write.set()
    abandoning.join()
    assert list(tmp_path.iterdir()) == []


def test_where_no_thread_can_be_started_the_caller_writes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't create new thread at interpreter shutdown")

    monkeypatch.setattr(threading.Thread, "start", refuse)
    data = os.urandom(MANY_BYTES)
    assert write_blocks(Files(), tmp_path / "pack", [data]) == data


def test_in_a_forked_child_nothing_happens_to_the_file(tmp_path: Path) -> None:
    writer = Files().open_blocks(tmp_path / "pack")
    data = os.urandom(MANY_BYTES)
    writer.write([data])
    child = os.fork()
    if child == 0:
        writer.abandon()
        try:
            writer.write([data])
        except ValueError:
            os._exit(0)
        os._exit(1)
    _, status = os.waitpid(child, 0)
    writer.finish()
    assert (status, (tmp_path / "pack").read_bytes()) == (0, data)


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
    def refuse(*_: int, flags: int) -> None:
        raise OSError(errno.ENOMEM, "no memory")

    monkeypatch.setattr(blocks.mmap, "mmap", refuse)
    with pytest.raises(OSError, match="no memory"):
        Files().open_blocks(tmp_path / "pack")
    assert list(tmp_path.iterdir()) == []
