"""LMDB's errors as the system's own."""

import errno
import os
from pathlib import Path
from typing import Final

import lmdb

_BY_TEXT: Final = {os.strerror(number): number for number in errno.errorcode}
_FULL_BYTES: Final = 1 << 20


def as_os_error(error: lmdb.Error, path: Path) -> OSError:
    """The error of the system call that failed inside LMDB, with its number.

    LMDB calls a short write EIO, and that is how the last write before a full disk ends: where there is no space, it
    is ENOSPC here.
    """
    text = str(error)
    number = _BY_TEXT.get(text.rpartition(": ")[2], errno.EIO)
    if isinstance(error, lmdb.DiskError) or (number == errno.EIO and _is_full(path)):
        number = errno.ENOSPC
    return OSError(number, f"{os.strerror(number)} (index: {text})", str(path))


def _is_full(path: Path) -> bool:
    try:
        status = os.statvfs(path)
    except OSError:
        return False
    return status.f_bavail * status.f_frsize < _FULL_BYTES
