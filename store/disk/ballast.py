"""Ballast: disk space held back, so that a full disk can be freed.

Deleting takes space too: index transactions and reflog lines are written before anything is unlinked. On a full file
system the ballast is what pays for them.
"""

from pathlib import Path

from ..limits import BALLAST_BYTES
from .files import Files


class Ballast:
    """The file ``ballast`` of the store at ``root``."""

    def __init__(self, root: Path, files: Files) -> None:
        self._path = root / "ballast"
        self._files = files

    def ensure(self) -> None:
        """Have the ballast in place, durably; if it is there already nothing is done.

        Raises:
            OSError: there is too little space, or the store cannot be written. What was there is there.
        """
        size_bytes = self._size_bytes()
        if size_bytes is None:
            self._files.allocate(self._path, BALLAST_BYTES)
        elif size_bytes < BALLAST_BYTES:  # part of it was given up, or its making was interrupted
            self._files.extend(self._path, BALLAST_BYTES)

    def release(self, at_most_bytes: int = BALLAST_BYTES) -> int:
        """Give some of the space up and return how many bytes that were; 0 if there is no ballast.

        Args:
            at_most_bytes: how many are asked for.

        Raises:
            OSError: the store cannot be written.
        """
        size_bytes = self._size_bytes()
        if size_bytes is None:
            return 0
        if size_bytes <= at_most_bytes:
            self._files.remove(self._path)
            return size_bytes
        self._files.truncate(self._path, size_bytes - at_most_bytes)
        return at_most_bytes

    def _size_bytes(self) -> int | None:
        return self._files.size(self._path) if self._files.exists(self._path) else None
