"""The index's file, read without LMDB.

LMDB maps its file: one that is cut off under the mapping ends the process, and so may one that contradicts itself. A
check must not die of what it looks for. So it reads by offset, as readers of packs do, and finds the records by itself.
"""

import os
from pathlib import Path
from typing import NamedTuple

from ..errors import Busy
from ..limits import INDEX_ATTEMPTS
from .metapages import HEAD_BYTES, Meta, meta_pages
from .records import BrokenIndex
from .treepages import Unsound

_META_READS = 3


class FileView:
    """A file's bytes, read as they are asked for.

    Args:
        fd: the file, which stays open meanwhile.
    """

    def __init__(self, fd: int) -> None:
        self._fd = fd

    def __getitem__(self, part: slice) -> memoryview:
        """Some of them.

        Raises:
            Unsound: the file ends before.
            OSError: it cannot be read.
        """
        return memoryview(_pread(self._fd, part.start or 0, part.stop))


class Snapshot(NamedTuple):
    """The file as a transaction left it.

    Attributes:
        file: its bytes.
        meta: what the transaction's meta page says.
    """

    file: memoryview
    meta: Meta


def read_snapshot(path: Path) -> Snapshot:
    """Read the file of an environment, which others may have open and write to.

    What the last transaction wrote is overwritten by none before another has been committed: so a file whose last
    transaction is still the same once all of it was read is that transaction's.

    Args:
        path: the environment's directory.

    Raises:
        BrokenIndex: there is none, or it is cut off or garbled.
        Busy: it is written to as fast as it is read.
        OSError: it cannot be read.

    Cost: reads all of it into memory.
    """
    try:
        fd = os.open(path / "data.mdb", os.O_RDONLY | os.O_CLOEXEC)
    except (FileNotFoundError, NotADirectoryError):
        raise BrokenIndex(f"index at {path} has no data", path=str(path)) from None
    try:
        return _snapshot(fd, path)
    except Unsound as error:
        raise BrokenIndex(f"index at {path} is cut off ({error})", path=str(path)) from error
    finally:
        os.close(fd)


def _snapshot(fd: int, path: Path) -> Snapshot:
    for _ in range(INDEX_ATTEMPTS):
        meta = _last_meta(fd, path)
        file = memoryview(_pread(fd, 0, meta.needed_bytes))
        if _last_meta(fd, path).transaction == meta.transaction:
            return Snapshot(file, meta)
    raise Busy(f"the index at {path} is written to as fast as it is read; try again", path=str(path))


def _last_meta(fd: int, path: Path) -> Meta:
    for _ in range(_META_READS):  # another process may just be writing one of the pages
        metas = meta_pages(os.pread(fd, HEAD_BYTES, 0))
        if metas is not None:
            return max(metas, key=lambda meta: meta.transaction)
    raise BrokenIndex(f"index at {path} is garbled or of another version", path=str(path))


def _pread(fd: int, start: int, stop: int) -> bytes:
    parts: list[bytes] = []
    while start < stop:
        part = os.pread(fd, stop - start, start)  # 2 GiB at most
        if not part:
            raise Unsound(f"it ends before byte {stop}")
        parts.append(part)
        start += len(part)
    return parts[0] if len(parts) == 1 else b"".join(parts)
