"""A directory as a storage: each key is a file below it, written whole and durably, by the same rules as a store.

Names that begin with a dot are no keys: half-written files, the lock of conditional writes, and what tells the time.
"""

import os
import re
import stat as modes
from collections.abc import Iterator, Sequence
from contextlib import contextmanager, suppress
from pathlib import Path

from blake3 import blake3

from ...disk.files import TEMPORARY_PREFIX, Files
from ...errors import Conflict, Corrupt, Incompatible, MoonclipError, NotFound, RemoteDenied, RemoteError, RemoteMissing
from ...limits import MAX_KEY_BYTES, VERSION_BY_CONTENT_BYTES, WRITE_BLOCK_BYTES
from .storage import Advance, Source, Stat, Unfinished
from .urls import DirectoryPlace

_LOCK = ".lock"
_CLOCK = ".clock"
_MAX_NAME_BYTES = 255
_SHOWN_CHARACTERS = 80
_TEMPORARY = re.compile(re.escape(TEMPORARY_PREFIX) + r"[0-9a-f]+")


class DirectoryStorage:
    """Keys in a directory, which must exist. See :class:`~.storage.Storage` for what the methods do.

    Args:
        path: the directory.
        files: does what is done to files.
    """

    def __init__(self, path: Path, files: Files | None = None) -> None:
        self._root = path
        self._files = files or Files()

    @property
    def url(self) -> str:
        """What people call it."""
        return DirectoryPlace(self._root).url

    def list(self, prefix: str) -> Iterator[Stat]:
        """All keys that begin with ``prefix``."""
        self._require_root()
        with self._mapped(prefix):
            top = self._root.joinpath(*_names(prefix.rpartition("/")[0]))
            for path in _files_below(top):
                key = path.relative_to(self._root).as_posix()
                if key.startswith(prefix) and (found := self._stat(key, path)) is not None:
                    yield found

    def stat(self, key: str) -> Stat | None:
        """What there is under a key."""
        path = self._path(key)
        with self._mapped(key):
            return self._stat(key, path)

    def get(self, key: str, max_bytes: int) -> tuple[bytes, str] | None:
        """A small object and its version.

        Raises:
            Corrupt: it is longer than ``max_bytes``.
        """
        path = self._path(key)
        with self._mapped(key):
            return self._get(key, path, max_bytes)

    def read_into(self, key: str, start: int, out: memoryview, advance: Advance) -> None:
        """Fill ``out`` with what lies under a key from byte ``start`` on.

        Raises:
            NotFound: there is no such key.
            Corrupt: it ends too early.
        """
        path = self._path(key)
        with self._mapped(key):
            if _status(path) is None:
                raise NotFound(f"{self.url} has no {key} (any more)", key=key)
            handle = self._files.open_read(path)
        with handle:
            while out:
                with self._mapped(key):
                    count = handle.pread_into(start, out[:WRITE_BLOCK_BYTES])
                if not count:
                    raise Corrupt(f"{key} of {self.url} ends at byte {start}, and has to go on", key=key)
                advance(count)
                start += count
                out = out[count:]

    def put(self, key: str, data: bytes) -> str:
        """Write a small object; returns its version."""
        path = self._path(key)
        with self._mapped(key):
            return self._put(path, data)

    def put_if(self, key: str, data: bytes, expected: str | None) -> str:
        """Write a small object if what is there has this version.

        Raises:
            Conflict: it has another, or is there, or is gone.
        """
        path = self._path(key)
        with self._mapped(key), self._files.lock_exclusive(self._root / _LOCK):
            found = self._stat(key, path)
            if expected != (None if found is None else found.version):
                what = "is gone" if found is None else "is there already" if expected is None else "was changed"
                raise Conflict(f"{key} of {self.url} {what}", key=key)
            return self._put(path, data)

    def upload(self, key: str, source: Source, advance: Advance) -> None:
        """Write an object of any length: under another name, which it then loses.

        Raises:
            Corrupt: the source has another length than it says.
        """
        path = self._path(key)
        temporary = path.with_name(TEMPORARY_PREFIX + os.urandom(8).hex())
        with self._mapped(key):
            self._files.make_directory(path.parent)
            writer = self._files.open_blocks(temporary)
        try:
            with source.open() as reader:
                while block := reader.read(WRITE_BLOCK_BYTES):
                    with self._mapped(key):
                        writer.write([block])
                    advance(len(block))
            _check_length(key, source.size_bytes, writer.size_bytes)
            with self._mapped(key):
                writer.finish()
                self._files.rename_durable(temporary, path)
        except BaseException:
            writer.abandon()
            raise

    def delete(self, keys: Sequence[str]) -> None:
        """Delete keys; those that are not there are passed over."""
        for key in keys:
            path = self._path(key)
            with self._mapped(key), suppress(FileNotFoundError, NotADirectoryError):
                self._files.remove(path)

    def now_ns(self) -> int:
        """What time it is by the clock that dates files there, which may be another machine's."""
        self._require_root()
        path = self._root / _CLOCK
        with self._mapped(_CLOCK):
            self._files.write_atomic(path, b"")
            return path.stat().st_mtime_ns

    def unfinished(self) -> Iterator[Unfinished]:
        """Half-written files; what has been written to lately is perhaps still being written."""
        self._require_root()
        with self._mapped("."):
            for path in _files_below(self._root, temporary=True):
                if (status := _status(path)) is not None:
                    key = path.relative_to(self._root).as_posix()
                    yield Unfinished(key, path.name, status.st_mtime_ns)

    def abort(self, upload: Unfinished) -> None:
        """Remove a half-written file.

        Raises:
            Incompatible: it is none.
        """
        directory, _, name = upload.key.rpartition("/")
        if not _TEMPORARY.fullmatch(name):
            raise Incompatible(f"{upload.key!r} is no half-written file of a remote")
        path = self._root.joinpath(*_names(directory), name)
        with self._mapped(upload.key), suppress(FileNotFoundError, NotADirectoryError):
            self._files.remove(path)

    def close(self) -> None:
        """Nothing is held open between two calls."""

    def _path(self, key: str) -> Path:
        """Where a key lies: below the directory, whatever it says."""
        names = _names(key)
        if not names:
            raise Incompatible("a key must not be empty")
        self._require_root()
        return self._root.joinpath(*names)

    def _require_root(self) -> None:
        with self._mapped("."):
            is_there = self._root.is_dir()
        if not is_there:
            raise RemoteMissing(f"{self.url}: there is no such directory; make it, or mend the URL")

    def _stat(self, key: str, path: Path) -> Stat | None:
        status = _status(path)
        if status is None:
            return None
        if status.st_size <= VERSION_BY_CONTENT_BYTES:
            try:
                found = self._get(key, path, VERSION_BY_CONTENT_BYTES)
            except Corrupt:  # it has become longer meanwhile
                return self._stat(key, path)
            return None if found is None else Stat(key, len(found[0]), found[1], status.st_mtime_ns)
        return Stat(key, status.st_size, _version(status), status.st_mtime_ns)

    def _get(self, key: str, path: Path, max_bytes: int) -> tuple[bytes, str] | None:
        status = _status(path)
        while status is not None:
            try:
                with self._files.open_read(path) as handle:
                    data = handle.pread(0, max_bytes + 1)
            except FileNotFoundError:
                return None
            if len(data) > max_bytes:
                raise Corrupt(f"{key} of {self.url} is longer than the {max_bytes} bytes it may have", key=key)
            if len(data) <= VERSION_BY_CONTENT_BYTES:
                return data, _content_version(data)
            before, status = status, _status(path)
            if status is not None and _version(before) == _version(status):  # else it was replaced in between
                return data, _version(status)
        return None

    def _put(self, path: Path, data: bytes) -> str:
        self._files.make_directory(path.parent)
        self._files.write_atomic(path, data)
        if len(data) <= VERSION_BY_CONTENT_BYTES:
            return _content_version(data)
        return _version(path.stat())

    @contextmanager
    def _mapped(self, key: str) -> Iterator[None]:
        """Say in our own words what the system could not do."""
        try:
            yield
        except MoonclipError:
            raise  # some of these are OSErrors too
        except PermissionError as error:
            raise RemoteDenied(f"{self.url}: {key}: {error.strerror}", key=key) from error
        except OSError as error:
            raise RemoteError(f"{self.url}: {key}: {error.strerror}", key=key) from error


def _check_length(key: str, expected_bytes: int, came_bytes: int) -> None:
    if came_bytes != expected_bytes:
        raise Corrupt(f"{key}: {expected_bytes} bytes should be sent, {came_bytes} came", key=key)


def _names(key: str) -> list[str]:
    """The parts of a key, or of a directory of keys.

    Raises:
        Incompatible: a part would lead elsewhere, or is none.
    """
    names = key.split("/") if key else []
    for name in names:
        if not name or name.startswith(".") or "\0" in name or len(name.encode()) > _MAX_NAME_BYTES:
            raise Incompatible(f"{key[:_SHOWN_CHARACTERS]!r} cannot be a key of a remote")
    if len(key.encode()) > MAX_KEY_BYTES:
        raise Incompatible(f"{key[:_SHOWN_CHARACTERS]!r}… is too long for a key")
    return names


def _files_below(top: Path, *, temporary: bool = False) -> Iterator[Path]:
    for directory, below, names in os.walk(top):
        below[:] = sorted(name for name in below if not name.startswith("."))
        for name in sorted(names):
            if bool(_TEMPORARY.fullmatch(name)) if temporary else not name.startswith("."):
                yield Path(directory, name)


def _status(path: Path) -> os.stat_result | None:
    """What the system tells of a file; ``None`` if there is none, or something else: opening a pipe would wait."""
    try:
        status = path.stat()
    except (FileNotFoundError, NotADirectoryError):
        return None
    return status if modes.S_ISREG(status.st_mode) else None


def _version(status: os.stat_result) -> str:
    return f"{status.st_ino:x}-{status.st_size:x}-{status.st_mtime_ns:x}"


def _content_version(data: bytes) -> str:
    return blake3(data).hexdigest(length=16)
