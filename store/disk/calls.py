"""The system calls that change the disk, one method each: where tests put full disks, failures and power cuts.

Nothing but ``store.disk.files`` and what it is made of uses this module.
"""

import errno
import logging
import os
from functools import cache
from pathlib import Path
from typing import Final, Self

from ..ids import Buffer

_log = logging.getLogger(__name__)

NO_SYNC: Final = "MOONCLIP_FSYNC"
"""Variable whose value ``0`` turns syncs off."""


class Disk:
    """The local file system, as it is. Thread-safe; every method raises OSError."""

    def open(self, path: Path, flags: int) -> int:
        """Open a file; one that is made gets the permissions that the umask and a setgid directory say."""
        return os.open(path, flags | os.O_CLOEXEC, 0o666)

    def close(self, fd: int) -> None:
        """Close a file."""
        os.close(fd)

    def write(self, fd: int, data: Buffer) -> int:
        """Write some bytes at the file's position, and say how many. Releases the GIL."""
        return os.write(fd, data)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        """Read some bytes at ``offset``; none at the end of the file. Releases the GIL."""
        return os.pread(fd, size_bytes, offset)

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        """Read some bytes at ``offset`` into memory at hand, and say how many; none at the end. Releases the GIL."""
        return os.preadv(fd, [out], offset)

    def truncate(self, fd: int, size_bytes: int) -> None:
        """Set a file's length."""
        os.ftruncate(fd, size_bytes)

    def allocate(self, fd: int, size_bytes: int) -> None:
        """Reserve space, so that later writes into it cannot fail for lack of any."""
        os.posix_fallocate(fd, 0, size_bytes)

    def fsync(self, fd: int) -> None:
        """Make a file's content durable."""
        os.fsync(fd)

    def rename(self, source: Path, target: Path) -> None:
        """Give a file another name, replacing what had that name."""
        source.rename(target)

    def unlink(self, path: Path) -> None:
        """Take a file's name away."""
        path.unlink()

    def mkdir(self, path: Path) -> None:
        """Make a directory, with the permissions that the umask and a setgid parent say."""
        path.mkdir()

    def rmdir(self, path: Path) -> None:
        """Remove an empty directory."""
        path.rmdir()

    def sync_directory(self, path: Path) -> None:
        """Make the names in a directory durable."""
        fd = os.open(path, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
        try:
            os.fsync(fd)
        except OSError as error:
            if error.errno != errno.EINVAL:  # some network file systems cannot, and order such changes themselves
                raise
        finally:
            os.close(fd)


class UnsyncedDisk(Disk):
    """The same, but nothing is made durable. *Unsafe*: a power cut or a kernel that dies may cost any commit."""

    def fsync(self, fd: int) -> None:
        """Do nothing."""

    def sync_directory(self, path: Path) -> None:
        """Do nothing."""


def local_disk() -> Disk:
    """The local file system; with ``MOONCLIP_FSYNC=0`` in the environment, for tests on slow disks, one without syncs.

    The first call decides for the process.
    """
    return Disk() if _syncs() else UnsyncedDisk()


@cache
def _syncs() -> bool:
    if os.environ.get(NO_SYNC) != "0":
        return True
    _log.warning("UNSAFE: %s=0, so nothing is synced: a power cut may cost any commit, however old", NO_SYNC)
    return False


class naming:  # noqa: N801 - used as those of contextlib; made of a generator, it would take longer than a small read
    """Say which file an error concerns: calls that are given a descriptor know none."""

    __slots__ = ("_path",)

    def __init__(self, path: Path) -> None:
        self._path = path

    def __enter__(self) -> None:
        pass

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, OSError) and error.filename is None:
            error.filename = str(self._path)


def write_all(disk: Disk, fd: int, data: Buffer) -> None:
    """Write all of ``data``, continuing after short writes (one call takes 2 GiB at most).

    Raises:
        OSError: a write failed; an unknown part of ``data`` is in the file.
    """
    view = memoryview(data)
    while view:
        view = view[disk.write(fd, view) :]


class ReadHandle:
    """A file open for reading by offset. Threads may share it.

    It closes itself when the last reference goes: a cache may drop it while another thread still reads. Closing it
    outright then would hand that thread's descriptor to whatever file is opened next.

    Args:
        disk: does the calls.
        path: the file.
    """

    def __init__(self, disk: Disk, path: Path) -> None:
        self._disk = disk
        self._path = path
        self._fd = -1
        self._fd = disk.open(path, os.O_RDONLY)

    @property
    def size(self) -> int:
        """Length of the file now, in bytes."""
        return os.fstat(self._fd).st_size

    @property
    def is_removed(self) -> bool:
        """Whether the file has no name any more."""
        return os.fstat(self._fd).st_nlink == 0

    def pread(self, offset: int, size_bytes: int) -> bytes:
        """Read ``size_bytes`` at ``offset``; fewer only where the file ends.

        Raises:
            OSError: reading failed.
        """
        parts: list[bytes] = []
        end = offset + size_bytes
        with naming(self._path):
            while offset < end and (part := self._disk.pread(self._fd, end - offset, offset)):
                parts.append(part)
                offset += len(part)
        return parts[0] if len(parts) == 1 else b"".join(parts)

    def pread_into(self, offset: int, out: memoryview) -> int:
        """Fill ``out`` with what lies at ``offset``, and say how much that is: less only where the file ends.

        Raises:
            OSError: reading failed.
        """
        done = 0
        with naming(self._path):
            while done < len(out) and (count := self._disk.pread_into(self._fd, out[done:], offset + done)):
                done += count
        return done

    def close(self) -> None:
        """Close the file; again does nothing. No other thread may be reading."""
        fd, self._fd = self._fd, -1
        if fd >= 0:
            self._disk.close(fd)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def __del__(self) -> None:
        self.close()
