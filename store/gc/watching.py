"""What has become a root since somebody last looked, cheaply enough to look again in every transaction that removes.

Files are read again only if they changed, and reflogs, which grow at their end, only from where they were read to.
"""

from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

from ..disk.files import Fingerprint
from ..ids import CommitId, PackId
from ..limits import REFLOG_TAIL_BYTES
from ..naming.logs import LogFiles
from ..naming.reflog import logged_ids
from ..repository import Repository
from ..saving.leases import LeaseRecord, living_leases
from ..upkeep.roots import read_roots


class _Read(NamedTuple):
    """How far a reflog was read.

    Attributes:
        stamp: the file then.
        end: behind its last whole line.
        last: that line, or its end. None is written twice, so where it stands, all before it does.
    """

    stamp: Fingerprint
    end: int
    last: bytes


class Watch:
    """Watches the roots of a store. For one thread.

    Args:
        repository: the store.

    Attributes:
        parents: of every commit that had arrived when :meth:`begin` was called.
    """

    def __init__(self, repository: Repository) -> None:
        self.parents: dict[CommitId, tuple[CommitId, ...]] = {}
        self._repo = repository
        self._logs = LogFiles(repository.layout.root, repository.files)
        self._arrived: tuple[int, CommitId | None] = 0, None
        self._refs: dict[str, Fingerprint] = {}
        self._read: dict[Path, _Read] = {}
        self._pins: Fingerprint | None = None

    def begin(self) -> frozenset[CommitId]:
        """All commits that are roots now. What :meth:`news` tells then is what came after.

        Raises:
            Corrupt: a ref, reflog, pin or lease is damaged: what it keeps is not known.
        """
        for row in self._repo.index.commits_since(1):
            self._arrived = row.sequence, row.id
            self.parents[row.id] = row.parents
        files = self._repo.files
        self._refs = {name: stamp for name in self._repo.refs.names() if (stamp := files.fingerprint(self._ref(name)))}
        self._pins = files.fingerprint(self._pin_file)
        self._read = {path: read for path in self._logs.all() if (read := self._end_of(path))}
        return read_roots(self._repo).commits

    def news(self) -> set[CommitId]:
        """Commits that have become roots, or have arrived, since this or :meth:`begin` was called last; others perhaps.

        In the order of ``roots.read_roots``, for the same reason.

        Raises:
            Corrupt: as :meth:`begin`.
        """
        found = {commit for lease in self._leases() for commit in lease.commits}
        found.update(self._from_refs())
        found.update(self._from_pins())
        for path in self._logs.all():
            found.update(self._from_log(path))
        found.update(self._from_index())
        return found

    def leased_packs(self) -> frozenset[PackId]:
        """Packs that living writers are making."""
        return frozenset[PackId]().union(*(lease.packs for lease in self._leases()))

    # --- how --------------------------------------------------------------------------------------------------------

    @property
    def _pin_file(self) -> Path:
        return self._repo.layout.root / "pins"

    def _ref(self, name: str) -> Path:
        return self._repo.layout.root / "refs" / name

    def _leases(self) -> list[LeaseRecord]:
        return living_leases(self._repo.layout.root, self._repo.files)

    def _from_refs(self) -> Iterator[CommitId]:
        for name in self._repo.refs.names():
            stamp = self._repo.files.fingerprint(self._ref(name))
            if stamp is not None and stamp != self._refs.get(name):
                self._refs[name] = stamp
                commit = self._repo.refs.read(name)
                if commit is not None:
                    yield commit

    def _from_pins(self) -> Iterator[CommitId]:
        stamp = self._repo.files.fingerprint(self._pin_file)
        if stamp != self._pins:
            self._pins = stamp
            yield from self._repo.pins.all()

    def _from_log(self, path: Path) -> set[CommitId]:
        stamp, seen = self._repo.files.fingerprint(path), self._read.get(path)
        if stamp is None or (seen is not None and stamp == seen.stamp):
            return set()
        end, last = (seen.end, seen.last) if seen else (0, b"")
        with self._repo.files.open_read(path) as handle:
            start = end - len(last)
            added = handle.pread(start, handle.size - start)
            if not added.startswith(last):
                start, last, added = 0, b"", handle.pread(0, handle.size)
        added = added[len(last) :]
        whole = added[: added.rfind(b"\n") + 1]
        self._read[path] = _Read(stamp, start + len(last) + len(whole), _last_line(whole) or last)
        return logged_ids(whole, str(path))

    def _from_index(self) -> Iterator[CommitId]:
        """Commits that arrived; all of them if a rebuilt index numbers them otherwise."""
        sequence, last = self._arrived
        rows = list(self._repo.index.commits_since(max(sequence, 1)))
        if last is not None and (not rows or rows[0].id != last):
            rows = list(self._repo.index.commits_since(1))
        for row in rows:
            self._arrived = row.sequence, row.id
            if row.id != last:
                yield row.id

    def _end_of(self, path: Path) -> _Read | None:
        """How far a reflog can be read now; ``None`` if there is none, or its last lines are too long to be sure."""
        stamp = self._repo.files.fingerprint(path)
        if stamp is None:
            return None
        with self._repo.files.open_read(path) as handle:
            start = max(0, stamp[1] - REFLOG_TAIL_BYTES)
            tail = handle.pread(start, stamp[1] - start)
        end = tail.rfind(b"\n") + 1
        return _Read(stamp, start + end, _last_line(tail[:end])) if end or not start else None


def _last_line(lines: bytes) -> bytes:
    """The last of whole lines, with its end; nothing if there are none."""
    return lines[lines.rfind(b"\n", 0, -1) + 1 :] if lines else b""
