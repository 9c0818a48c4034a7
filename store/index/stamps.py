"""A note beside LMDB's file: its pages make up its trees, as far as anybody knows.

Walking the pages of a million objects takes a quarter of a second, and opening a store should not. So whoever has
walked them leaves a stamp, which says what the file was like. Whoever writes moves a stamp that still fits on to what
the file is like afterwards: on sound pages LMDB makes sound pages. Whatever else happens to the file, no stamp fits:

- another file was put there, or it was written to by anything but LMDB: its inode, times or length differ;
- somebody wrote who found no stamp that fits, or died before moving it: times or transaction differ;
- the machine was restarted, perhaps by a power cut: another boot.

What leaves no trace, a disk on which bits flip, is why a stamp ends a day after the walk. By any clock: one that is
ahead of the clock has ended too.

The stamp is not synced, and is written in place: half of one has no valid check.
"""

import os
import struct
import time
from contextlib import suppress
from functools import cache
from pathlib import Path
from typing import Final, NamedTuple, Self
from uuid import UUID

from ..errors import Corrupt
from ..limits import INDEX_WALK_NS
from .records import seal, unseal

_FIELDS: Final = struct.Struct("<QQQqqQ16sQ")
_KEY: Final = b"moonclip pages 1"
_BOOT: Final = Path("/proc/sys/kernel/random/boot_id")


class Fit(NamedTuple):
    """What a stamp has to say to fit.

    Attributes:
        device: where LMDB's file lies.
        inode: the file.
        size_bytes: its length.
        content_ns: when its content changed, nanoseconds since the epoch.
        inode_ns: when its inode changed, which nobody can set back.
        transaction: number of the last transaction in it.
    """

    device: int
    inode: int
    size_bytes: int
    content_ns: int
    inode_ns: int
    transaction: int

    @classmethod
    def of(cls, status: os.stat_result, transaction: int) -> Self:
        """What fits a file that is so, and whose last transaction is that."""
        times = status.st_mtime_ns, status.st_ctime_ns
        return cls(status.st_dev, status.st_ino, status.st_size, *times, transaction)

    def encode(self, walked_ns: int) -> bytes:
        """The stamp, without its check."""
        return _FIELDS.pack(*self, _boot(), walked_ns)


class Stamp:
    """The stamp in an environment's directory. Raises nothing: a stamp that cannot be read or written is none."""

    def __init__(self, directory: Path) -> None:
        self._name = str(directory / "stamp")

    def walked_ns(self, fit: Fit) -> int | None:
        """When the pages were last walked, nanoseconds since the epoch, if the stamp fits."""
        try:
            body = unseal(_KEY, self._read())
        except (OSError, Corrupt):
            return None
        walked_ns: int = _FIELDS.unpack(body)[-1] if len(body) == _FIELDS.size else 0
        return walked_ns if body == fit.encode(walked_ns) else None

    def is_fresh(self, fit: Fit) -> bool:
        """Whether the pages need not be walked."""
        walked_ns = self.walked_ns(fit)
        return walked_ns is not None and 0 <= time.time_ns() - walked_ns < INDEX_WALK_NS

    def write(self, fit: Fit, walked_ns: int) -> None:
        """Say that the pages were walked then, and have been sound since."""
        with suppress(OSError):
            fd = os.open(self._name, os.O_WRONLY | os.O_CREAT | os.O_CLOEXEC, 0o666)
            try:
                os.pwrite(fd, seal(_KEY, fit.encode(walked_ns)), 0)
            finally:
                os.close(fd)

    def remove(self) -> None:
        """Take back what was said."""
        with suppress(OSError):
            os.unlink(self._name)  # noqa: PTH108 (as the rest here)

    def _read(self) -> bytes:
        fd = os.open(self._name, os.O_RDONLY | os.O_CLOEXEC)
        try:
            return os.pread(fd, _FIELDS.size + 64, 0)
        finally:
            os.close(fd)


@cache
def _boot() -> bytes:
    """Which boot of which machine this is; zeros where the system does not say."""
    try:
        return UUID(_BOOT.read_text(encoding="ascii").strip()).bytes
    except (OSError, ValueError):
        return bytes(16)
