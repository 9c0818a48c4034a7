"""An operation on copies of one store, each time with another of its calls to the disk failing, or being the last."""

import errno
import shutil
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Final

from store.disk.files import Files
from store.repository import Repository

from .faults import FaultyDisk, Killed
from .operations import History, Operation, garble_index, prepare, put_index, remove_index, require_recovered

FAULTS: Final[Mapping[str, Mapping[str, Any]]] = {
    "EIO": {"error_number": errno.EIO},
    "ENOSPC from then on": {"error_number": errno.ENOSPC, "is_lasting": True},
    "killed": {"error_number": None},
}
"""How a call fails: arguments of :class:`FaultyDisk`."""

ChangeIndex = Callable[[Path], None]


def attempt(run: Callable[[], object]) -> bool:
    """Whether it got through."""
    try:
        run()
    except (OSError, Killed):
        return False
    return True


class Trials:
    """Runs one operation again and again.

    Args:
        directory: an empty one; the store before the operation is made in it, and the copies.
        operation: what is run.
    """

    def __init__(self, directory: Path, operation: Operation) -> None:
        self.operation = operation
        self.history: History = prepare(directory / "before")
        self._directory = directory
        with Repository.open(directory / "before", thread_count=1) as repo:
            self.history.update(operation.set_up(repo))
            self.moved_from = repo.refs.read(operation.moves) if operation.moves else None

    def copy(self) -> Path:
        """A fresh copy of the store; the one before it is gone."""
        target = self._directory / "trial"
        shutil.rmtree(target, ignore_errors=True)
        shutil.copytree(self._directory / "before", target)
        return target

    def operation_count(self) -> int:
        """How many calls the operation makes that can fail."""
        disk = FaultyDisk()
        with Repository.open(self.copy(), files=Files(disk), thread_count=1) as repo:
            opened = disk.operation_count
            self.operation.run(repo)
            return disk.operation_count - opened

    def run(self, disk: FaultyDisk, number: int) -> tuple[Path, History]:
        """Run the operation with a fault at its call ``number``; returns the store and what was acknowledged."""
        root = self.copy()
        history = dict(self.history)
        with Repository.open(root, files=Files(disk), thread_count=1) as repo:
            disk.fail_at(disk.operation_count + number)
            attempt(lambda: history.update(self.operation.run(repo)))
        return root, history

    def require_recovery(self, fault: Mapping[str, Any], number: int, change_index: ChangeIndex) -> bool:
        """Fail one call, change the index, open the store again: nothing is lost. Whether the operation failed."""
        root, history = self.run(FaultyDisk(**fault), number)
        change_index(root)
        require_recovered(root, self.operation, history, moved_from=self.moved_from)
        return history == self.history

    @property
    def index_changes(self) -> tuple[ChangeIndex, ...]:
        """What may become of the index meanwhile."""
        others = () if self.operation.outdates_index else (put_index(self._directory / "before" / "index"),)
        return keep_index, remove_index, garble_index, *others


def keep_index(_: Path) -> None:
    """Leave the index as it is."""
