"""A disk that takes so many changes of names, and no more: what a process leaves that is killed between two."""

import errno
from pathlib import Path

from store.disk.calls import Disk


class Dying(Disk):
    """Takes so many changes of names, and no more."""

    def __init__(self, changes: int) -> None:
        self.changes = changes

    def _change(self) -> None:
        self.changes -= 1
        if self.changes < 0:
            raise OSError(errno.EIO, "gone")

    def rename(self, source: Path, target: Path) -> None:
        """Raises OSError once there were too many."""
        self._change()
        super().rename(source, target)

    def unlink(self, path: Path) -> None:
        """Raises OSError once there were too many."""
        self._change()
        super().unlink(path)
