"""Files under a prefix of a remote and in a directory, made the same on both sides, byte for byte.

They have no history and belong to no commit: logs and reports of a run that somebody wants to look at meanwhile.
"""

import io
import os
import stat as modes
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, NamedTuple

from ..disk.files import TEMPORARY_PREFIX, Files
from ..disk.replacing import replacing
from ..errors import Conflict, Incompatible, NotFound
from ..limits import WRITE_BLOCK_BYTES
from ..remotes.storages.storage import Storage

FILES: Final = "files/"
"""How keys of such files begin: whatever else reads a remote passes over them."""

_SHOWN: Final = 3


class Synced(NamedTuple):
    """What a sync did.

    Attributes:
        sent: paths of files that went to the remote, in order.
        received: paths of those that came from there.
    """

    sent: tuple[str, ...]
    received: tuple[str, ...]


@dataclass(frozen=True, slots=True)
class Prefix:
    """Files under a prefix of a remote, by path.

    Attributes:
        storage: the remote's.
        name: the prefix, parts joined by ``/``; stores that share a remote share these files too.
    """

    storage: Storage
    name: str

    def list(self) -> dict[str, int]:
        """Length in bytes of each file, by path.

        Raises:
            Incompatible: a key that is no path, as nobody writes who goes by this module.
            RemoteError: the remote failed.
        """
        start = self._key("")
        return {_path_of(found.key.removeprefix(start)): found.size_bytes for found in self.storage.list(start)}

    def put(self, path: str, source: Path) -> None:
        """Send a file, in place of what is there; one that grows meanwhile as far as it goes now.

        Raises:
            Incompatible: a path that cannot be a key.
            Corrupt: the file became shorter meanwhile.
            RemoteError: the remote failed.
            OSError: the file cannot be read.
        """
        self.storage.upload(self._key(path), _File(source, source.stat().st_size), _nobody_counts)

    def get(self, path: str, target: Path) -> None:
        """Receive a file, in place of what is there; directories are made.

        Raises:
            NotFound: there is no such file.
            Corrupt: it has become shorter meanwhile.
            RemoteError: the remote failed.
            OSError: it cannot be written.
        """
        found = self.storage.stat(self._key(path))
        if found is None:
            raise NotFound(f"{self.storage.url} has no file {path!r} under {self.name!r}", path=path)
        self.receive(path, found.size_bytes, target)

    def receive(self, path: str, size_bytes: int, target: Path) -> None:
        """The same, of a file whose length is known. Raises as :meth:`get` does."""
        files = Files()
        files.make_directory(target.parent)
        with replacing(files, target) as blocks:
            for window in self.windows(path, size_bytes):
                blocks.write([window])

    def windows(self, path: str, size_bytes: int) -> Iterator[memoryview]:
        """Content of a file, some MiB at a time, each in the same memory. Raises as :meth:`get` does."""
        window = memoryview(bytearray(min(size_bytes, WRITE_BLOCK_BYTES)))
        for start in range(0, size_bytes, WRITE_BLOCK_BYTES):
            part = window[: size_bytes - start]
            self.storage.read_into(self._key(path), start, part, _nobody_counts)
            yield part

    def _key(self, path: str) -> str:
        return f"{FILES}{_key_of(self.name)}/{_key_of(path) if path else ''}"


def sync_prefix(prefix: Prefix, directory: str | Path, *, prefer: Literal["here", "there"] | None = None) -> Synced:
    """Copy files both ways, until a directory and a prefix of a remote have the same. Nothing is deleted.

    Links and what is no regular file are passed over. What lies there that would take the place of one, or would have
    to be reached through one, is refused: nothing is written outside of the directory.

    Args:
        prefix: the files of the remote.
        directory: made if there is none.
        prefer: which side's content stays where both have a file and it differs; ``None`` to refuse that.

    Raises:
        Conflict: files differ, and nobody said whose stay; or something else is here where a file would go. Nothing was
            copied.
        Incompatible: a path that cannot be a key, or a key that is no path. Nothing was copied.
        Corrupt: a file became shorter while it was copied.
        RemoteError: the remote failed. What was copied by then is whole.
        OSError: the disk failed; likewise.

    Cost: what is to be copied. Files of equal length on both sides are compared, so they are read on both.
    """
    root = Path(directory)
    here, there = dict(_files_below(root)), prefix.list()
    for path in here:
        _key_of(path)
    differing = [path for path in sorted(here.keys() & there) if _differs(prefix, path, there[path], here[path])]
    if differing and prefer is None:
        shown = ", ".join(differing[:_SHOWN]) + (", …" if len(differing) > _SHOWN else "")
        raise Conflict(
            f"files differ between {root} and {prefix.storage.url}: {shown}; say which stay with"
            " prefer='here' or prefer='there'",
            paths=differing,
        )
    sent = sorted((here.keys() - there) | (set(differing) if prefer == "here" else set()))
    received = sorted((there.keys() - here) | (set(differing) if prefer == "there" else set()))
    for path in received:
        _require_way(root, path)
    for path in sent:
        prefix.put(path, here[path])
    for path in received:
        prefix.receive(path, there[path], root.joinpath(*path.split("/")))
    return Synced(tuple(sent), tuple(received))


@dataclass(frozen=True, slots=True)
class _File:
    """A file as a source of an upload."""

    path: Path
    size_bytes: int

    def open(self) -> BinaryIO:
        return io.BufferedReader(_Beginning(self.path, self.size_bytes))


class _Beginning(io.RawIOBase):
    """The first bytes of a file: what somebody appends to it meanwhile is left out."""

    def __init__(self, path: Path, size_bytes: int) -> None:
        self._file = path.open("rb", buffering=0)
        self._left_bytes = size_bytes

    def readable(self) -> bool:
        return True

    def readinto(self, buffer: Any, /) -> int:
        count: int = self._file.readinto(memoryview(buffer)[: self._left_bytes])
        self._left_bytes -= count
        return count

    def close(self) -> None:
        self._file.close()
        super().close()


def _differs(prefix: Prefix, path: str, size_bytes: int, local: Path) -> bool:
    if local.stat().st_size != size_bytes:
        return True
    with local.open("rb") as file:
        return any(file.read(len(window)) != window for window in prefix.windows(path, size_bytes))


def _files_below(root: Path) -> Iterator[tuple[str, Path]]:
    for directory, _, names in os.walk(root, onerror=_raise_unless_gone):
        for name in names:
            path = Path(directory, name)
            if not name.startswith(TEMPORARY_PREFIX) and modes.S_ISREG(_mode_of(path)):
                yield path.relative_to(root).as_posix(), path


def _require_way(root: Path, path: str) -> None:
    """Refuse a path at which, or on the way to which, something else lies than a file in directories.

    Raises:
        Conflict: it does: a link above all, which may lead out of the directory.
        OSError: a name that the disk does not take.
    """
    place = root
    *above, name = path.split("/")
    kinds = [*((part, modes.S_ISDIR) for part in above), (name, modes.S_ISREG)]
    for part, is_kind in kinds:
        place /= part
        mode = _mode_of(place)
        if mode and not is_kind(mode):
            raise Conflict(
                f"{place} is in the way of a file of the remote, {path}: it is a link or of another kind; move it away",
                path=path,
            )


def _mode_of(path: Path) -> int:
    """What something is, not what it links to; 0 if there is nothing, or not any more."""
    try:
        return path.lstat().st_mode
    except FileNotFoundError:
        return 0


def _raise_unless_gone(error: OSError) -> None:
    if not isinstance(error, FileNotFoundError):
        raise error


def _key_of(path: str) -> str:
    """A path as part of a key: a name that begins with a dot, as none in a key may, gets that spelled out.

    Raises:
        Incompatible: it is no relative path, or no text.
    """
    parts = path.split("/")
    try:
        path.encode()
    except UnicodeEncodeError:
        raise Incompatible(f"{path!r} has bytes in it that are no text; rename the file", path=path) from None
    if not all(parts) or not {".", ".."}.isdisjoint(parts) or "\0" in path:
        raise Incompatible(f"{path!r} is no path of a file; one is relative, as 'logs/train.txt'", path=path)
    spelled = (part.replace("%", "%25") for part in parts)
    return "/".join(f"%2E{part[1:]}" if part.startswith(".") else part for part in spelled)


def _path_of(key: str) -> str:
    """Inverse of :func:`_key_of`."""
    path = "/".join(part.replace("%2E", ".").replace("%25", "%") for part in key.split("/"))
    if _key_of(path) != key:
        raise Incompatible(f"{key!r} of the remote is no path of a file", key=key)
    return path


def _nobody_counts(_: int) -> None:
    pass
