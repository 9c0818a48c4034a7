"""Leases: how a writer says that it is alive, and what it is making.

A lease is a file under ``writers/`` that its owner holds locked, from before the first pack exists until the ref is
durable. The kernel drops the lock when the owner dies, however it dies: a lease whose lock can be taken is dead. No
clock is asked and no process id, neither of which says the truth on a machine that was restarted.

Lines are ``pack <id>`` and ``commit <id>``, ids in hex. A lease whose name is a snapshot's id also names, as long as it
lives, whatever packs the snapshot's parts name. Spec: docs/format.md, section on leases.
"""

import os
import re
from contextlib import suppress
from dataclasses import dataclass, replace
from pathlib import Path
from types import TracebackType
from typing import Self
from uuid import uuid4

from ..disk.files import FileLock, Files
from ..errors import Busy, Conflict, Corrupt
from ..ids import CommitId, ObjectId, PackId
from .partfiles import packs_of_parts

_NAME = re.compile(r"[0-9a-f]{32}")
_LINE = re.compile(rb"(pack|commit) ([0-9a-f]{64})")


@dataclass(frozen=True, slots=True)
class LeaseRecord:
    """What a lease says.

    Attributes:
        name: its file's name.
        packs: packs that its owner has made or is about to name, and those of the parts of its snapshot.
        commits: commits that its owner is making.
    """

    name: str
    packs: frozenset[PackId]
    commits: frozenset[CommitId]


class Lease:
    """A lease that this process holds. Made by :func:`acquire_lease`; a context manager that releases it.

    In a forked child the lease is not the child's: what it does there has no effect on the file.
    """

    def __init__(self, files: Files, path: Path, lock: FileLock) -> None:
        self._files = files
        self._path = path
        self._lock: FileLock | None = lock
        self._owner = os.getpid()

    @property
    def name(self) -> str:
        """The file's name: 32 hex digits."""
        return self._path.name

    @property
    def is_ours(self) -> bool:
        """Whether it is held, and by this process."""
        return self._lock is not None and self._is_owner()

    def add_pack(self, pack: PackId) -> None:
        """Say that ``pack`` is about to get its name. Durable on return."""
        self._append(f"pack {pack.hex()}\n")

    def add_commit(self, commit: CommitId) -> None:
        """Say that ``commit`` is about to be published. Durable on return."""
        self._append(f"commit {commit.hex()}\n")

    def release(self) -> None:
        """End the lease; again does nothing.

        Raises nothing: what was published stays so, and a file that cannot be removed is that of a dead lease.
        """
        lock, self._lock = self._lock, None
        if lock is not None and self._is_owner():
            with lock, suppress(OSError):
                self._files.remove(self._path)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, traceback: TracebackType | None
    ) -> None:
        self.release()

    def _append(self, line: str) -> None:
        if not self.is_ours:
            raise Conflict(f"lease {self.name} is not held by this process: its work cannot be published; start anew")
        self._files.append_durable(self._path, line.encode())

    def _is_owner(self) -> bool:
        return os.getpid() == self._owner


def acquire_lease(root: Path, files: Files) -> Lease:
    """Take a new lease on the store at ``root``.

    Raises:
        OSError: it could not be written.
    """
    directory = root / "writers"
    files.make_directory(directory)
    while True:
        path = directory / uuid4().hex
        lock = files.lock_exclusive(path)
        # Between the file's making and its locking it looked dead, and may have been removed as such.
        if files.exists(path):
            return Lease(files, path, lock)
        lock.close()


def living_leases(root: Path, files: Files) -> list[LeaseRecord]:
    """What the writers say that are alive now.

    Raises:
        Corrupt: a lease holds a line that is none, or a part of a living snapshot is damaged.
    """
    paths = [path for path in lease_paths(root, files) if not _is_dead(path, files)]
    # Parts after all leases: a rank hands its part in before it lets go of the lease that named the same packs.
    records = [record for record in [_read(path, files) for path in paths] if record is not None]
    return [replace(each, packs=each.packs | packs_of_parts(root, files, each.name)) for each in records]


def is_held(root: Path, files: Files, name: str) -> bool:
    """Whether the lease of that name is there, and its owner lives."""
    return not _is_dead(root / "writers" / name, files)


def lease_paths(root: Path, files: Files) -> list[Path]:
    """Where the leases lie, of the living and the dead."""
    directory = root / "writers"
    try:
        names = files.list_directory(directory)
    except FileNotFoundError:
        return []
    return [directory / name for name in sorted(names) if _NAME.fullmatch(name)]


def _is_dead(path: Path, files: Files) -> bool:
    try:
        # Shared: whoever else looks at the same moment must not make a dead lease look alive.
        files.lock_shared(path, blocking=False, create=False).close()
    except FileNotFoundError:
        return True
    except Busy:
        return False
    return True


def _read(path: Path, files: Files) -> LeaseRecord | None:
    """What a lease says; ``None`` if it is gone. A torn last line was never acted upon."""
    try:
        data = files.read_bytes(path)
    except FileNotFoundError:
        return None
    said: dict[bytes, set[bytes]] = {b"pack": set(), b"commit": set()}
    for line in data.split(b"\n")[:-1]:
        match = _LINE.fullmatch(line)
        if match is None:
            raise Corrupt(f"lease {path} holds a damaged line; if no writer is at work, remove it", path=str(path))
        said[match[1]].add(bytes.fromhex(match[2].decode()))
    packs = frozenset(PackId(pack) for pack in said[b"pack"])
    return LeaseRecord(path.name, packs, frozenset(CommitId(ObjectId(commit)) for commit in said[b"commit"]))
