"""Writing one large new file in big page-aligned blocks, past the page cache where the file system takes that.

A full block is written by a thread of its own while the next one is filled: whoever encodes does not wait for the
disk. A file that fits one block needs no thread.
"""

import errno
import fcntl
import mmap
import os
from collections.abc import Iterable
from contextlib import suppress
from pathlib import Path

from ..ids import Buffer
from ..limits import PAGE_BYTES, WRITE_BLOCK_BYTES, WRITE_BLOCK_COUNT
from ..memory import copy_bytes, fresh_pages
from .blockqueue import BlockQueue
from .calls import Disk, naming

_O_DIRECT = getattr(os, "O_DIRECT", 0)


class BlockPool:
    """Blocks between two files: a fresh one costs a page fault for every 4 KiB of it. Thread-safe, across forks too."""

    def __init__(self) -> None:
        self._blocks: list[mmap.mmap] = []

    def take(self) -> mmap.mmap:
        """A block, aligned to pages. Raises OSError if there is no memory for another."""
        try:
            return self._blocks.pop()
        except IndexError:
            return fresh_pages(WRITE_BLOCK_BYTES)

    def give_back(self, blocks: Iterable[mmap.mmap]) -> None:
        """Keep blocks, that nobody writes from any more, for the next file; no more than one file needs."""
        self._blocks += blocks
        del self._blocks[WRITE_BLOCK_COUNT:]


class BlockWriter:
    """A new file that is written once, from front to back. For one thread at a time.

    Bytes are copied once, into an aligned block; a full block goes out in one write. That a write failed is said by
    the next call. A writer that failed has removed its file and takes nothing more: after a failed fsync nobody knows
    which pages of a file are on disk, and a second fsync would claim that all are.

    A forked child has none of it: what it calls there raises ValueError, or does nothing.

    Args:
        disk: does the calls.
        path: the file, which must not exist.
        pool: where blocks come from.

    Raises:
        FileExistsError: it exists.
        OSError: it could not be made.
    """

    def __init__(self, disk: Disk, path: Path, pool: BlockPool) -> None:
        self._disk = disk
        self._path = path
        self._pool = pool
        self._pid = os.getpid()
        self._blocks = [pool.take()]  # first: if there is no memory, no file stays
        self._block = self._blocks[0]
        self._view = memoryview(self._block)
        self._fd = disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        # Set afterwards, not at open: a file system that refuses O_DIRECT may refuse after it has made the file.
        self._is_direct = _set_direct(self._fd, on=True)
        self._queue: BlockQueue[mmap.mmap] = BlockQueue(self._put_whole, f"moonclip-write-{path.name}")
        self._filled_bytes = 0
        self._size_bytes = 0

    @property
    def size_bytes(self) -> int:
        """Bytes taken so far."""
        return self._size_bytes

    def write(self, buffers: Iterable[Buffer]) -> None:
        """Append buffers, which may be changed once this returns.

        Raises:
            OSError: a block could not be written, of these bytes or of earlier ones; the file is gone.
            ValueError: the writer is finished, abandoned or failed earlier.

        Cost: one copy, without the GIL; waits for the disk only once ``WRITE_BLOCK_COUNT`` blocks are full.
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
            self._queue.finish()
            padded_bytes = -(-self._filled_bytes // PAGE_BYTES) * PAGE_BYTES
            self._block[self._filled_bytes : padded_bytes] = bytes(padded_bytes - self._filled_bytes)
            self._put(self._block, padded_bytes)
            with naming(self._path):
                self._disk.truncate(self._fd, self._size_bytes)
                self._disk.fsync(self._fd)
            self._close()
        except BaseException:
            self.abandon()
            raise

    def abandon(self) -> None:
        """Close and remove the file, finished or not; again does nothing."""
        if self._pid != os.getpid():
            return  # it is the parent's
        with suppress(OSError):  # already failing or giving up; what stays is a temporary that nothing refers to
            self._close()
        with suppress(OSError):
            self._disk.unlink(self._path)

    def _gather(self, view: memoryview) -> None:
        while len(view) >= (room_bytes := WRITE_BLOCK_BYTES - self._filled_bytes):
            self._fill(view[:room_bytes])
            view = view[room_bytes:]
            self._queue.put(self._block)
            self._block = self._next_block()
            self._view = memoryview(self._block)
            self._filled_bytes = 0
        self._fill(view)

    def _fill(self, view: memoryview) -> None:
        end = self._filled_bytes + len(view)
        copy_bytes(view, self._view[self._filled_bytes : end])
        self._filled_bytes = end
        self._size_bytes += len(view)

    def _next_block(self) -> mmap.mmap:
        """A block that is written, a new one as long as there may be more, or the next that will be written."""
        if len(self._blocks) == WRITE_BLOCK_COUNT:
            return self._queue.get()
        if (written := self._queue.poll()) is not None:
            return written
        self._blocks.append(self._pool.take())
        return self._blocks[-1]

    def _put_whole(self, block: mmap.mmap) -> None:
        """Write a block: in the queue's thread."""
        self._put(block, WRITE_BLOCK_BYTES)

    def _put(self, block: mmap.mmap, size_bytes: int) -> None:
        view = memoryview(block)[:size_bytes]
        with naming(self._path):
            while view:
                try:
                    view = view[self._disk.write(self._fd, view) :]
                except OSError as error:
                    # Some file systems take the flag and refuse the writes; after a short write the rest is unaligned.
                    if not self._is_direct or error.errno != errno.EINVAL:
                        raise
                    self._is_direct = _set_direct(self._fd, on=False)

    def _require_open(self) -> None:
        if self._fd < 0 or self._pid != os.getpid():
            raise ValueError(f"{self._path} is not being written any more")

    def _close(self) -> None:
        if self._fd >= 0:
            self._queue.stop()  # before the file is closed, whose number may become another's
            fd, self._fd = self._fd, -1
            self._pool.give_back(self._blocks)
            self._disk.close(fd)


def _set_direct(fd: int, *, on: bool) -> bool:
    """Switch O_DIRECT, and say whether it is on now."""
    flags = fcntl.fcntl(fd, fcntl.F_GETFL) & ~_O_DIRECT
    try:
        fcntl.fcntl(fd, fcntl.F_SETFL, flags | (_O_DIRECT if on else 0))
    except OSError:
        return False  # the file system has no such thing
    return on and bool(_O_DIRECT)
