"""The power fails after any of the calls by which an operation changes the disk."""

import shutil
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from hashlib import sha256
from pathlib import Path
from random import Random
from typing import Any, Final

from store.disk.files import Files
from store.repository import Repository

from .operations import History, Operation, garble_index, prepare, put_index, remove_index, require_recovered
from .power import Loss, power_cut
from .recording import Event, Mark, RecordingDisk

INDEXED: Final = Mark("indexed")
"""The index has changed. LMDB's own writes are not recorded: its transactions are durable, each wholly or not."""
RETURNED: Final = Mark("returned")
"""The operation has said that it is done."""


class MarkedIndex:
    """An index whose writes leave a mark in the recording, and a copy of what they made.

    Args:
        index: does the work.
        disk: the recording.
        copy: makes a copy of the environment as it is now.
    """

    def __init__(self, index: Any, disk: RecordingDisk, copy: Callable[[], None]) -> None:
        self._index = index
        self._disk = disk
        self._copy = copy

    def __getattr__(self, name: str) -> Any:
        return getattr(self._index, name)

    def write(self, body: Callable[[Any], Any]) -> Any:
        """Change the index in one transaction."""
        result = self._index.write(body)
        self._copy()
        self._disk.mark(INDEXED.label)
        return result


@dataclass(frozen=True)
class Cut:
    """What a power cut left, without an index.

    Attributes:
        root: the store.
        indexes: what puts one of the indexes in place that there may be beside it.
        has_returned: whether the operation had said that it was done.
    """

    root: Path
    indexes: Sequence[Callable[[Path], None]]
    has_returned: bool


class Recorded:
    """An operation, recorded on a store with a past.

    Args:
        directory: an empty one, to work in.
        operation: what is run, once.
    """

    def __init__(self, directory: Path, operation: Operation) -> None:
        self.operation = operation
        self._directory = directory
        self._index_count = 0
        root = directory / "store"
        self.before = prepare(root)
        with Repository.open(root, thread_count=1) as repo:
            self.before.update(operation.set_up(repo))
        self._recording = RecordingDisk(root)
        with Repository.open(root, files=Files(self._recording), thread_count=1) as repo:
            self.moved_from = repo.refs.read(operation.moves) if operation.moves else None
            self._keep_index()
            del self._recording.log[:]
            repo.index = MarkedIndex(repo.index, self._recording, self._keep_index)
            self.after: History = {**self.before, **operation.run(repo)}
            self._recording.mark(RETURNED.label)
        self.log: list[Event] = self._recording.log

    def cuts(self, loss_seeds: int) -> Iterator[Cut]:
        """Each state that a power cut may leave, once.

        Args:
            loss_seeds: in how many random ways parts of what was not synced get lost, besides the regular ones.
        """
        seen: set[bytes] = set()
        for length in range(len(self.log) + 1):
            log = self.log[:length]
            for number, loss in enumerate([*Loss, *[Loss.SOME] * loss_seeds]):
                target = self._directory / "cut"
                power_cut(self._recording.start, log, target, loss, Random(1000 * length + number))
                key = digest(target) + bytes([log.count(INDEXED), RETURNED in log])
                if key not in seen:
                    seen.add(key)
                    yield Cut(target, self.indexes(log), RETURNED in log)
                shutil.rmtree(target)

    def indexes(self, log: Sequence[Event]) -> Sequence[Callable[[Path], None]]:
        """What LMDB may hold: its last transaction, the one before it, nothing, or rubbish."""
        count = log.count(INDEXED)
        newest, older = (put_index(self._index(number)) for number in (count, max(0, count - 1)))
        others = () if self.operation.outdates_index or not count else (older,)
        return newest, remove_index, garbled(newest), *others

    def require_recovery(self, cut: Cut, put: Callable[[Path], None]) -> None:
        """Put an index in place and open the store again: nothing is lost."""
        put(cut.root)
        history = self.after if cut.has_returned else self.before
        require_recovered(cut.root, self.operation, history, moved_from=self.moved_from)

    def _keep_index(self) -> None:
        shutil.copytree(self._directory / "store" / "index", self._index(self._index_count))
        self._index_count += 1

    def _index(self, number: int) -> Path:
        return self._directory / f"index-{number}"


def garbled(put: Callable[[Path], None]) -> Callable[[Path], None]:
    """What puts an index in place, and then makes rubbish of it."""

    def put_garbled(root: Path) -> None:
        put(root)
        garble_index(root)

    return put_garbled


def digest(root: Path) -> bytes:
    """Tells directories with other content apart."""
    files = sorted(path for path in root.rglob("*") if path.is_file())
    directories = sorted(str(path) for path in root.rglob("*") if path.is_dir())
    parts = [f"{path}".encode() + sha256(path.read_bytes()).digest() for path in files]
    return sha256(b"\n".join(parts) + repr(directories).encode()).digest()
