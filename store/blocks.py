"""Writing one large new file in big page-aligned blocks, past the page cache where the file system takes that."""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from .disk import Disk
from .ids import Buffer
from .limits import PAGE_BYTES, WRITE_BLOCK_BYTES

_O_DIRECT = getattr(os, "O_DIRECT", 0)


class BlockWriter:
    """A new file that is written once, from front to back. For one thread at a time.

    Bytes are copied once, into an aligned block; a full block goes out in one write. A writer that failed has removed
    its file and takes nothing more: after a failed fsync nobody knows which pages of a file are on disk, and a second
    fsync would claim that all are.

    Args:
        disk: does the calls.
        path: the file, which must not exist.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._block = memoryview(mmap.mmap(-1, WRITE_BLOCK_BYTES))  # first: if there is no memory, no file stays
        self._fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        # Set afterwards, not at open: a file system that refuses O_DIRECT may refuse after it has made the file.
        self._is_direct = _set_direct(self._fd, on=True)
        self._filled_bytes = 0
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes written so far."""
        return self._size_bytes

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Append buffers, which may be changed once this returns.

        Raises:
            OSError: a block could not be written, and the file is gone.
            ValueError: the writer is finished, abandoned or failed earlier.
        """
        self._require_open()
        try:
            for buffer in buffers:
                self._gather(memoryview(buffer).cast("B"))
        except BaseException:
            self.abandon()
            raise

    def finish(self) -> None:
        """Write what is left and make the content durable. The file's name is not: see ``Files.rename_durable``.

        Raises:
            OSError: the content is not durable, and the file is gone.
            ValueError: the writer is finished, abandoned or failed earlier.
        """
        self._require_open()
        try:
            padded_bytes = -(-self._filled_bytes // PAGE_BYTES) * PAGE_BYTES
            self._block[self._filled_bytes : padded_bytes] = bytes(padded_bytes - self._filled_bytes)
            self._put(self._block[:padded_bytes])
            self._disk.truncate(self._fd, self._size_bytes)
            self._disk.fsync(self._fd)
            self._close()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close and remove the file, finished or not; again does nothing."""
        with suppress(OSError):  # already failing or giving up; what stays is a temporary that nothing refers to
            self._close()
        with suppress(OSError):
            self._disk.unlink(self._path)

    def _gather(self, view: memoryview) -> None:
        while view:
            start = self._filled_bytes
            count_bytes = min(len(view), WRITE_BLOCK_BYTES - start)
            self._block[start : start + count_bytes] = view[:count_bytes]
            self._filled_bytes += count_bytes
            self._size_bytes += count_bytes
            view = view[count_bytes:]
            if self._filled_bytes == WRITE_BLOCK_BYTES:
                self._put(self._block)
                self._filled_bytes = 0

    def _put(self, view: memoryview) -> None:
        while view:
            try:
                view = view[self._disk.write(self._fd, view) :]
            except OSError as error:
                # Some file systems take the flag and refuse the writes; after a short write the rest is unaligned.
                if not self._is_direct or error.errno != errno.EINVAL:
                    raise
                self._is_direct = _set_direct(self._fd, on=False)

    def _require_open(self) -> None:
        if self._fd < 0:
            raise ValueError(f"{self._path} is not being written any more")

    def _close(self) -> None:
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._block.release()
            self._disk.close(fd)


def _set_direct(fd: int, *, on: bool) -> bool:
    """Switch O_DIRECT, and say whether it is on now."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~_O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (_O_DIRECT if on else 0))
    except OSError:
        return False  # the file system has no such thing
    return on and bool(_O_DIRECT)
