"""A disk that remembers what it was told, in order."""
# ruff: noqa: D102 -- what each call does is said where it is made, in store.disk

import os
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from itertools import count
from pathlib import Path

from store.disk.calls import Disk
from store.ids import Buffer

FileNumber = int
"""Stands for one file whatever its name; never used again."""


@dataclass(frozen=True, slots=True)
class Made:
    """A new, empty file."""

    path: Path
    file: FileNumber


@dataclass(frozen=True, slots=True)
class Wrote:
    """Bytes at an offset."""

    file: FileNumber
    offset: int
    data: bytes


@dataclass(frozen=True, slots=True)
class Resized:
    """A file got another length; new bytes are zero."""

    file: FileNumber
    size_bytes: int


@dataclass(frozen=True, slots=True)
class Synced:
    """A file's content is durable."""

    file: FileNumber


@dataclass(frozen=True, slots=True)
class Renamed:
    """A file got another name."""

    source: Path
    target: Path


@dataclass(frozen=True, slots=True)
class Removed:
    """A file lost its name."""

    path: Path


@dataclass(frozen=True, slots=True)
class MadeDirectory:
    """A new directory."""

    path: Path


@dataclass(frozen=True, slots=True)
class RemovedDirectory:
    """A directory is gone."""

    path: Path


@dataclass(frozen=True, slots=True)
class SyncedDirectory:
    """The names in a directory are durable."""

    path: Path


@dataclass(frozen=True, slots=True)
class Mark:
    """Something a test wants to know the place of: say, that a commit was acknowledged."""

    label: str


NameChange = Made | Renamed | Removed | MadeDirectory | RemovedDirectory
Event = NameChange | Wrote | Resized | Synced | SyncedDirectory | Mark


@dataclass(frozen=True, slots=True)
class Snapshot:
    """Directories and files below a root, all durable.

    Attributes:
        root: the directory.
        directories: paths, parents first.
        names: path to file.
        contents: file to content.
    """

    root: Path
    directories: tuple[Path, ...]
    names: dict[Path, FileNumber]
    contents: dict[FileNumber, bytes]


class RecordingDisk(Disk):
    """Passes calls on to another disk and remembers those that change something below ``root``. Thread-safe.

    Args:
        root: directory of which everything that lies in it now counts as durable.
        disk: does the calls.
        ignore: names directly below ``root`` that are neither remembered nor in the snapshot.
    """

    def __init__(self, root: Path, disk: Disk | None = None, ignore: Sequence[str] = ("index",)) -> None:
        self.log: list[Event] = []
        self._root = root
        self._disk = disk or Disk()
        self._ignored = tuple(root / name for name in ignore)
        self._lock = threading.RLock()
        self._numbers = count()
        self.start = self._snapshot()
        self._names = dict(self.start.names)
        self._open_files: dict[int, FileNumber] = {}

    def mark(self, label: str) -> None:
        """Put a mark into the log."""
        with self._lock:
            self.log.append(Mark(label))

    def open(self, path: Path, flags: int) -> int:
        with self._lock:
            fd = self._disk.open(path, flags)
            if flags & (os.O_WRONLY | os.O_RDWR) and self._is_recorded(path):
                if path not in self._names:
                    self._names[path] = next(self._numbers)
                    self.log.append(Made(path, self._names[path]))
                self._open_files[fd] = self._names[path]
            return fd

    def close(self, fd: int) -> None:
        with self._lock:
            self._open_files.pop(fd, None)
            self._disk.close(fd)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        return self._disk.pread(fd, size_bytes, offset)

    def write(self, fd: int, data: Buffer) -> int:
        with self._lock:
            written_bytes = self._disk.write(fd, data)
            if (file := self._open_files.get(fd)) is not None:
                offset = os.lseek(fd, 0, os.SEEK_CUR) - written_bytes  # right for O_APPEND, too
                self.log.append(Wrote(file, offset, bytes(memoryview(data)[:written_bytes])))
            return written_bytes

    def truncate(self, fd: int, size_bytes: int) -> None:
        with self._lock:
            self._disk.truncate(fd, size_bytes)
            self._record_file(fd, lambda file: Resized(file, size_bytes))

    def allocate(self, fd: int, size_bytes: int) -> None:
        with self._lock:
            self._disk.allocate(fd, size_bytes)
            self._record_file(fd, lambda file: Resized(file, size_bytes))

    def fsync(self, fd: int) -> None:
        with self._lock:
            self._disk.fsync(fd)
            self._record_file(fd, Synced)

    def rename(self, source: Path, target: Path) -> None:
        with self._lock:
            self._disk.rename(source, target)
            if self._is_recorded(source):
                self._names[target] = self._names.pop(source)
                self.log.append(Renamed(source, target))

    def unlink(self, path: Path) -> None:
        with self._lock:
            self._disk.unlink(path)
            if self._is_recorded(path):
                del self._names[path]
                self.log.append(Removed(path))

    def mkdir(self, path: Path) -> None:
        with self._lock:
            self._disk.mkdir(path)
            self._record_path(path, MadeDirectory)

    def rmdir(self, path: Path) -> None:
        with self._lock:
            self._disk.rmdir(path)
            self._record_path(path, RemovedDirectory)

    def sync_directory(self, path: Path) -> None:
        with self._lock:
            self._disk.sync_directory(path)
            self._record_path(path, SyncedDirectory)

    def _record_file(self, fd: int, event: Callable[[FileNumber], Event]) -> None:
        if (file := self._open_files.get(fd)) is not None:
            self.log.append(event(file))

    def _record_path(self, path: Path, event: Callable[[Path], Event]) -> None:
        if self._is_recorded(path):
            self.log.append(event(path))

    def _is_recorded(self, path: Path) -> bool:
        return path.is_relative_to(self._root) and not any(path.is_relative_to(ignored) for ignored in self._ignored)

    def _snapshot(self) -> Snapshot:
        paths = [path for path in sorted(self._root.rglob("*")) if self._is_recorded(path)]
        names = {path: next(self._numbers) for path in paths if path.is_file()}
        contents = {file: path.read_bytes() for path, file in names.items()}
        return Snapshot(self._root, tuple(path for path in paths if path.is_dir()), names, contents)
