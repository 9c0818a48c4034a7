"""Durable file operations: the one door to the disk for everything but LMDB.

The rule of this module: **what a call has changed is durable when it returns**, content and name alike; a call that
raises has changed nothing or says what may be left. Files get the permissions that the umask and a setgid directory
give them, so that a shared directory stays shared. Errors are the system's own (OSError), with the path.

Spec: docs/format.md §8 (what a crash between two steps leaves).
"""

import os
from collections.abc import Iterator, Mapping
from contextlib import contextmanager, suppress
from pathlib import Path

from ..ids import Buffer
from . import locks
from .blocks import BlockPool, BlockWriter
from .calls import Disk, ReadHandle, local_disk, naming, write_all
from .locks import FileLock

__all__ = ["BlockWriter", "FileLock", "Files", "Fingerprint", "ReadHandle"]

Fingerprint = tuple[int, int, int]
"""Inode, length in bytes, and when the content changed, in nanoseconds: another one tells that a file was changed."""

TEMPORARY_PREFIX = ".tmp-"
"""How names of half-written files begin. No ref, pack or lease has such a name, so a crash may leave them behind."""


class Files:
    """Durable operations on files and directories. Thread-safe.

    Args:
        disk: the system calls; tests give one that fails, or that remembers what it was told.
    """

    def __init__(self, disk: Disk | None = None) -> None:
        self._disk = disk or local_disk()
        self._blocks = BlockPool()

    # --- reading ----------------------------------------------------------------------------------------------------

    def read_bytes(self, path: Path) -> bytes:
        """All of a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be read.
        """
        with self.open_read(path) as handle:
            return handle.pread(0, handle.size)

    def open_read(self, path: Path) -> ReadHandle:
        """Open a file for reading by offset.

        Raises:
            FileNotFoundError: there is none.
            OSError: it cannot be opened.
        """
        return ReadHandle(self._disk, path)

    def list_directory(self, path: Path) -> list[str]:
        """Names in a directory, sorted; what a crash left half-written is among them.

        Raises:
            FileNotFoundError: there is none.
            NotADirectoryError: it is a file.
        """
        return sorted(entry.name for entry in path.iterdir())

    def exists(self, path: Path) -> bool:
        """Whether there is a file or directory."""
        return path.exists()

    def size(self, path: Path) -> int:
        """Length of a file in bytes.

        Raises:
            FileNotFoundError: there is none.
        """
        return path.stat().st_size

    def fingerprint(self, path: Path) -> Fingerprint | None:
        """What tells whether a file was changed since; ``None`` if there is none. Cost: a few microseconds."""
        try:
            status = path.stat()
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_size, status.st_mtime_ns

    # --- writing ----------------------------------------------------------------------------------------------------

    def write_atomic(self, path: Path, data: Buffer) -> None:
        """Make or replace a file: whoever reads it sees the old content or the new, also after a power cut.

        Raises:
            OSError: it has the old content, or, if only making the new name durable failed, perhaps the new.

        Cost: about 0.4 ms (two syncs).
        """
        temporary = path.with_name(TEMPORARY_PREFIX + os.urandom(8).hex())
        with self._new(temporary) as fd:
            write_all(self._disk, fd, data)
        try:
            self.rename_durable(temporary, path)
        except BaseException:
            with suppress(OSError):  # the first error is the one to report
                self._disk.unlink(temporary)
            raise

    def append_durable(self, path: Path, data: Buffer) -> None:
        """Add to the end of a file, which is made if there is none. For one writer at a time.

        A crash meanwhile may leave any part of ``data`` at the end.

        Raises:
            OSError: it could not be written. What had been there is still, and the rest is cut off if possible.
        """
        fd = self._disk.open(path, os.O_WRONLY | os.O_APPEND | os.O_CREAT)
        try:
            size_bytes = os.fstat(fd).st_size
            with naming(path):
                self._append(fd, data, size_bytes)
        finally:
            self._disk.close(fd)
        if size_bytes == 0:  # perhaps just made
            self.sync_directory(path.parent)

    def truncate(self, path: Path, size_bytes: int) -> None:
        """Cut a file off.

        Raises:
            FileNotFoundError: there is none.
            OSError: it could not be cut.
        """
        fd = self._disk.open(path, os.O_WRONLY)
        try:
            with naming(path):
                self._disk.truncate(fd, size_bytes)
                self._disk.fsync(fd)
        finally:
            self._disk.close(fd)

    def allocate(self, path: Path, size_bytes: int) -> None:
        """Make a file of zeros that really takes up its space; it must not exist.

        Raises:
            FileExistsError: it exists.
            OSError: there is not enough space, or it could not be made; it is gone.
        """
        with self._new(path) as fd:
            self._disk.allocate(fd, size_bytes)
        self.sync_directory(path.parent)

    def extend(self, path: Path, size_bytes: int) -> None:
        """Make a file that :meth:`allocate` made longer; what is added takes up its space too.

        Raises:
            FileNotFoundError: there is none.
            OSError: there is not enough space; it is as long as it was.
        """
        before_bytes = self.size(path)
        fd = self._disk.open(path, os.O_WRONLY)
        try:
            with naming(path):
                self._disk.allocate(fd, size_bytes)
                self._disk.fsync(fd)
        except BaseException:
            with suppress(OSError):
                self._disk.truncate(fd, before_bytes)
            raise
        finally:
            self._disk.close(fd)

    def open_blocks(self, path: Path) -> BlockWriter:
        """Begin a large file that must not exist.

        Raises:
            FileExistsError: it exists.
            OSError: it could not be made.
        """
        return BlockWriter(self._disk, path, self._blocks)

    # --- names ------------------------------------------------------------------------------------------------------

    def rename_durable(self, source: Path, target: Path) -> None:
        """Give a file, whose content is durable, another name; what had that name is replaced.

        Raises:
            OSError: it has its old name, or, if only making the new one durable failed, the new one for now.
        """
        self._disk.rename(source, target)
        self.sync_directory(target.parent)
        if source.parent != target.parent:
            self.sync_directory(source.parent)

    def rename_all_durable(self, names: Mapping[Path, Path]) -> None:
        """Give files, whose content is durable, other names, at the cost of one sync for each directory.

        Args:
            names: new names by old ones. What had a new one is replaced.

        Raises:
            OSError: some have their old names, and those that have new ones have them for now.
        """
        for source, target in names.items():
            self._disk.rename(source, target)
        for directory in dict.fromkeys(path.parent for pair in names.items() for path in reversed(pair)):
            self.sync_directory(directory)

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable, after a call that changed them and failed to.

        Raises:
            OSError: they are not.
        """
        with naming(path):
            self._disk.sync_directory(path)

    def remove(self, path: Path) -> None:
        """Remove a file.

        Raises:
            FileNotFoundError: there is none.
            OSError: it could not be removed.
        """
        self._disk.unlink(path)
        self.sync_directory(path.parent)

    def make_directory(self, path: Path) -> None:
        """Make a directory and what is missing above it; one that exists is fine.

        Raises:
            FileExistsError: there is a file.
            OSError: it could not be made.
        """
        if not path.is_dir():
            if not path.parent.is_dir():
                self.make_directory(path.parent)
            self._mkdir(path)
        with suppress(PermissionError):  # a parent that we cannot open is not one that we made anything in
            # Also when it was there: whoever made it may have died before this.
            self.sync_directory(path.parent)

    def remove_directory(self, path: Path) -> None:
        """Remove an empty directory.

        Raises:
            FileNotFoundError: there is none.
            OSError: it is not empty, or could not be removed.
        """
        self._disk.rmdir(path)
        self.sync_directory(path.parent)

    # --- locks ------------------------------------------------------------------------------------------------------

    def lock_exclusive(self, path: Path, *, blocking: bool = True, create: bool = True) -> FileLock:
        """Lock a file for us alone. See ``locks.acquire``.

        Raises:
            Busy: somebody holds it, and ``blocking`` is false.
            FileNotFoundError: there is no such file, and ``create`` is false.
            OSError: it cannot be opened or locked.
        """
        return locks.acquire(self._disk, path, exclusive=True, blocking=blocking, create=create)

    def lock_shared(self, path: Path, *, blocking: bool = True, create: bool = True) -> FileLock:
        """Lock a file together with others that lock it so. Raises as :meth:`lock_exclusive` does."""
        return locks.acquire(self._disk, path, exclusive=False, blocking=blocking, create=create)

    # --- how --------------------------------------------------------------------------------------------------------

    @contextmanager
    def _new(self, path: Path) -> Iterator[int]:
        """A file that must not exist, open for writing; its content is durable afterwards, or it is gone."""
        fd = self._disk.open(path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)
        try:
            with naming(path):
                yield fd
                self._disk.fsync(fd)
        except BaseException:
            with suppress(OSError):
                self._disk.unlink(path)
            raise
        finally:
            self._disk.close(fd)

    def _append(self, fd: int, data: Buffer, size_bytes: int) -> None:
        try:
            write_all(self._disk, fd, data)
            self._disk.fsync(fd)
        except BaseException:
            # The one file that is used again after a failed fsync: what was durable lies before the cut, and the
            # page at the cut is written anew with the next append.
            with suppress(OSError):
                self._disk.truncate(fd, size_bytes)
                self._disk.fsync(fd)
            raise

    def _mkdir(self, path: Path) -> None:
        try:
            self._disk.mkdir(path)
        except FileExistsError:  # another process was faster, or it is a file
            if not path.is_dir():
                raise
