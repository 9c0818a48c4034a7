"""A disk whose calls fail when told to."""
# ruff: noqa: D102 -- what each call does is said where it is made, in store.disk

import errno
import os
import threading
from pathlib import Path

from store.disk.calls import Disk
from store.ids import Buffer


class Killed(BaseException):
    """The process died here. Not an ``Exception``: no handler but the most careful one outlives it."""


class FaultyDisk(Disk):
    """Passes calls on to another disk until one is to fail.

    Counted are the calls that change something: making a file, writing, setting a length, syncing, renaming, removing.

    Args:
        disk: does the calls.
        fail_at_operation: number, from 0, of the first call that fails.
        fail_at_byte: how many bytes can be written in all; the write that crosses it is short, the next one fails.
        error_number: ``errno`` of the failure, or ``None`` to die with :class:`Killed` in this and every later call.
        is_lasting: whether every later call fails too.
        max_write_bytes: longest write that is not short.
    """

    def __init__(
        self,
        disk: Disk | None = None,
        *,
        fail_at_operation: int | None = None,
        fail_at_byte: int | None = None,
        error_number: int | None = errno.EIO,
        is_lasting: bool = False,
        max_write_bytes: int | None = None,
    ) -> None:
        self.operation_count = 0
        self.written_bytes = 0
        self._disk = disk or Disk()
        self._fail_at_operation = fail_at_operation
        self._fail_at_byte = fail_at_byte
        self._error_number = error_number
        self._is_lasting = is_lasting or error_number is None
        self._max_write_bytes = max_write_bytes
        self._lock = threading.RLock()

    def fail_at(self, operation_number: int) -> None:
        """Have this call fail, as counted by ``operation_count``, in place of the one that was told before."""
        self._fail_at_operation = operation_number

    def open(self, path: Path, flags: int) -> int:
        if flags & os.O_CREAT:
            self._operate()
        return self._disk.open(path, flags)

    def close(self, fd: int) -> None:
        self._disk.close(fd)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        return self._disk.pread(fd, size_bytes, offset)

    def write(self, fd: int, data: Buffer) -> int:
        with self._lock:
            self._operate()
            written_bytes = self._disk.write(fd, memoryview(data)[: self._room_bytes()])
            self.written_bytes += written_bytes
            return written_bytes

    def truncate(self, fd: int, size_bytes: int) -> None:
        self._operate()
        self._disk.truncate(fd, size_bytes)

    def allocate(self, fd: int, size_bytes: int) -> None:
        self._operate()
        self._disk.allocate(fd, size_bytes)

    def fsync(self, fd: int) -> None:
        self._operate()
        self._disk.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        self._operate()
        self._disk.rename(source, target)

    def unlink(self, path: Path) -> None:
        self._operate()
        self._disk.unlink(path)

    def mkdir(self, path: Path) -> None:
        self._operate()
        self._disk.mkdir(path)

    def rmdir(self, path: Path) -> None:
        self._operate()
        self._disk.rmdir(path)

    def sync_directory(self, path: Path) -> None:
        self._operate()
        self._disk.sync_directory(path)

    def _operate(self) -> None:
        with self._lock:
            number, self.operation_count = self.operation_count, self.operation_count + 1
        first = self._fail_at_operation
        if first is not None and (number == first or (self._is_lasting and number > first)):
            self._fail()

    def _room_bytes(self) -> int | None:
        """How much one write may take, or ``None`` for all of it."""
        if self._fail_at_byte is None:
            return self._max_write_bytes
        room_bytes = self._fail_at_byte - self.written_bytes
        if room_bytes <= 0:
            if not self._is_lasting:
                self._fail_at_byte = None
            self._fail()
        return min(room_bytes, self._max_write_bytes or room_bytes)

    def _fail(self) -> None:
        if self._error_number is None:
            raise Killed
        raise OSError(self._error_number, os.strerror(self._error_number))
