"""One LMDB environment, opened so that threads, forks and other processes get along.

LMDB must not be open twice in a process, nor used across a fork, and cannot grow while a transaction is open. Its
answer to all of these, and to an error that it calls fatal, is the same here: close the handle once no transaction is
open, and let the next one open it anew. Transactions pass a gate for that, which closing and forking shut.

Callers' functions run inside a transaction: they must not fork, and should not wait for other threads.
"""

import os
import threading
import time
from collections.abc import Callable
from contextlib import suppress
from pathlib import Path
from typing import Final, TypeVar

import lmdb

from ..limits import INDEX_ATTEMPTS, INDEX_LOCK_BYTES, INDEX_MAP_GROWTH, INDEX_PAUSE_SECONDS, INDEX_READERS
from ..upkeep.collector import collector_paused
from .faults import as_os_error
from .gate import Gate
from .metapages import HEAD_BYTES, Meta, meta_pages
from .records import BrokenIndex
from .snapshot import FileView
from .stamps import Fit, Stamp
from .transaction import Transaction
from .treepages import Unsound, check_pages

T = TypeVar("T")

_META_READS: Final = 3

_GARBLED = (lmdb.CorruptedError, lmdb.InvalidError, lmdb.PageNotFoundError, lmdb.VersionMismatchError)
_PASSING = (lmdb.MapResizedError, lmdb.MapFullError, lmdb.ReadersFullError, lmdb.PanicError, lmdb.BadRslotError)
"""What another attempt can get over, once :meth:`Environment._recover` has done its part."""


class Superseded(Exception):
    """The environment's file is not there any more: another index has taken its place. Internal."""


class Environment:
    """An open environment. Thread-safe. Made by ``sharing.open_environment``.

    Args:
        path: the environment's directory.
        map_bytes: size of the map to begin with.
        locked: whether LMDB takes part in its lock file; without it nothing can be written, and nobody else may write.

    Raises:
        BrokenIndex: what lies there is no intact environment.
        OSError: it cannot be opened.
    """

    def __init__(self, path: Path, *, map_bytes: int, locked: bool) -> None:
        self.path = path
        self.gate = Gate()
        self._data = path / "data.mdb"
        self._data_name = str(self._data)
        self._lock_name = str(path / "lock.mdb")
        self._lock_key: tuple[int, int] | None = None
        self._map_bytes = map_bytes
        self._locked = locked
        self._opening = threading.Lock()
        self._writing = threading.Lock()
        self._writer = 0
        self._pid = os.getpid()
        self._is_closed = False
        self._handle: lmdb.Environment | None = None
        self._stamp = Stamp(path)
        self._damage: str | None = None
        self._open(map_bytes)
        status = self._data.stat()
        self.key = (status.st_ino, status.st_dev)
        self._size_bytes = status.st_size
        try:
            self._walk(even_if_fresh=False)
        except BaseException:
            self.close()
            raise

    @property
    def is_writing(self) -> bool:
        """Whether a thread of this process is inside :meth:`write`."""
        return self._writing.locked()

    def read(self, body: Callable[[Transaction], T]) -> T:
        """Run ``body`` in a read transaction, which ends with it.

        Raises:
            Superseded: the environment is not there any more.
            BrokenIndex: its file is damaged.
            OSError: LMDB cannot read it.
        """
        return self._run(body, write=False)

    def write(self, body: Callable[[Transaction], T]) -> T:
        """Run ``body`` in a write transaction, durable on return; again from its start when the map had to grow.

        Raises:
            Superseded: the environment is not there any more.
            BrokenIndex: its file is damaged.
            OSError: the disk is full or failed. Nothing was written.
            RuntimeError: ``body`` writes itself: it would wait for itself.
        """
        if self._writer == threading.get_ident():
            raise RuntimeError(f"a write to the index at {self.path} within another")
        with self._writing:
            self._writer = threading.get_ident()
            try:
                return self._write_stamped(body)
            finally:
                self._writer = 0

    def check(self) -> None:
        """See that LMDB can be trusted with its file, whatever was seen when it was opened.

        Raises:
            Superseded: the environment is not there any more.
            BrokenIndex: it cannot, and nothing is read or written through this environment from now on.
            OSError: LMDB cannot read it.

        Cost: as ``treepages.check_pages``.
        """
        self._walk(even_if_fresh=True)

    def close(self) -> None:
        """Close, once no transaction is open; again does nothing."""
        with self.gate.closed():
            self._is_closed = True
            self._drop()

    def after_fork_in_child(self) -> None:
        """Forget the threads that are no more. The handle is closed at its next use: see :meth:`_usable`."""
        self.gate.reset()
        self._opening = threading.Lock()
        self._writing = threading.Lock()
        self._writer = 0

    # --- transactions -----------------------------------------------------------------------------------------------

    def _run(self, body: Callable[[Transaction], T], *, write: bool) -> T:
        for attempts_left in reversed(range(INDEX_ATTEMPTS)):
            try:
                return self._attempt(body, write=write)
            except _PASSING as error:
                if not attempts_left or self.gate.is_inside:  # inside another transaction, whose handle must stay
                    raise self._as_ours(error) from error
                self._recover(error)
        raise AssertionError("the last attempt returns or raises")

    def _attempt(self, body: Callable[[Transaction], T], *, write: bool) -> T:
        self.gate.enter()
        try:
            with Transaction(self._usable().begin(write=write)) as transaction:
                return body(transaction)
        except _PASSING:
            raise
        except lmdb.Error as error:
            raise self._as_ours(error) from error
        finally:
            self.gate.leave()

    def _recover(self, failure: lmdb.Error) -> None:
        if isinstance(failure, lmdb.ReadersFullError):
            self._free_readers()
        elif isinstance(failure, lmdb.MapFullError):
            self._grow()
        else:
            with self.gate.closed():
                self._drop()

    def _free_readers(self) -> None:
        """Processes that were killed left their places taken; those of the living are free in microseconds."""
        self.gate.enter()
        try:
            if self._usable().reader_check() == 0:
                time.sleep(INDEX_PAUSE_SECONDS)
        finally:
            self.gate.leave()

    def _grow(self) -> None:
        with self.gate.closed():
            full_bytes = self._map_bytes
            self._drop()
            if self._known_map_bytes() <= full_bytes:  # else another process has grown it already
                self._open(full_bytes * INDEX_MAP_GROWTH)

    # --- the handle -------------------------------------------------------------------------------------------------

    def _usable(self) -> lmdb.Environment:
        if self._is_closed:
            raise Superseded
        if self._pid != os.getpid():
            self._adopt_process()
        self._check_file()
        if self._damage is not None:
            raise self._garbled(self._damage)
        return self._handle or self._reopen()

    def _check_file(self) -> None:
        """See whether the file is still that which is mapped: touching a page it has lost is a SIGBUS.

        And whether the lock is still that which others take: with two of them there are two writers at a time.
        """
        least_bytes = self._size_bytes  # before another thread sees it grow
        has_lock = self._handle is None or self._lock_key == self._lock_in_place()  # first: both may be moved away
        try:
            status = os.stat(self._data_name)  # noqa: PTH116 (half the time of Path.stat, in every look-up)
        except (FileNotFoundError, NotADirectoryError):
            raise Superseded from None
        if (status.st_ino, status.st_dev) != self.key:
            raise Superseded
        if status.st_size < least_bytes:
            raise BrokenIndex(f"index at {self.path} was cut off at {status.st_size} bytes", path=str(self.path))
        if not has_lock:
            raise BrokenIndex(f"index at {self.path}: its lock was removed while in use", path=str(self.path))
        self._size_bytes = status.st_size  # it never shrinks

    def _lock_in_place(self) -> tuple[int, int] | None:
        if not self._locked:
            return None
        try:
            status = os.stat(self._lock_name)  # noqa: PTH116 (as above)
        except (FileNotFoundError, NotADirectoryError):
            return None
        return status.st_ino, status.st_dev

    def _adopt_process(self) -> None:
        """In a forked child: close what it inherited, in which no transaction is open; closing frees nothing shared."""
        with self._opening:
            if self._pid != os.getpid():
                self._drop()
                self._pid = os.getpid()

    def _reopen(self) -> lmdb.Environment:
        with self._opening:
            return self._handle or self._open(self._map_bytes)

    def _drop(self) -> None:
        handle, self._handle = self._handle, None
        if handle is not None:
            handle.close()

    def _open(self, map_bytes: int) -> lmdb.Environment:
        map_bytes = max(map_bytes, self._known_map_bytes())
        try:
            handle = self._open_handle(map_bytes)
        except lmdb.Error as error:
            raise self._as_ours(error) from error
        self._map_bytes = map_bytes
        self._lock_key = self._lock_in_place()
        self._handle = handle
        return handle

    def _open_handle(self, map_bytes: int) -> lmdb.Environment:
        if self._locked:
            self._reserve_lock()
        handle = lmdb.open(
            str(self.path),
            map_size=map_bytes,
            max_readers=INDEX_READERS,
            # A kept transaction would keep its place among the readers: a forked child that closes the handle would
            # give away its parent's.
            max_spare_txns=0,
            mode=0o777,  # as the umask has it: a shared directory stays shared
            readonly=not self._locked,
            lock=self._locked,
            create=False,  # the directory, which a rebuild may just have removed
            readahead=False,
        )
        try:
            if self._locked:
                handle.reader_check()  # whoever was killed while reading keeps pages from being used again
        except BaseException:
            handle.close()
            raise
        return handle

    def _reserve_lock(self) -> None:
        """Make the lock file with all its blocks: LMDB maps it, and a block that a full disk lacks is a SIGBUS."""
        fd = os.open(self._lock_name, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o666)
        try:
            if os.fstat(fd).st_size == 0:
                os.posix_fallocate(fd, 0, INDEX_LOCK_BYTES)
        finally:
            os.close(fd)

    # --- damage -----------------------------------------------------------------------------------------------------

    def _known_map_bytes(self) -> int:
        """Size of the map as the file has it; 0 if it is yet to be made."""
        try:
            metas = self._metas()
        except FileNotFoundError:
            return 0
        return max(meta.map_bytes for meta in metas)

    def _metas(self) -> tuple[Meta, Meta]:
        what = ""
        for _ in range(_META_READS):
            with self._data.open("rb") as data:
                metas = meta_pages(data.read(HEAD_BYTES))
                size_bytes = os.fstat(data.fileno()).st_size
            if metas is None:
                what = "is garbled or of another version"
            elif size_bytes < _needed_bytes(metas):
                what = f"has {size_bytes} of {_needed_bytes(metas)} bytes"
            else:
                return metas
            time.sleep(INDEX_PAUSE_SECONDS)  # another process may just be at it
        raise BrokenIndex(f"index at {self.path} {what}", path=str(self.path))

    def _walk(self, *, even_if_fresh: bool) -> None:
        """See that LMDB can be trusted with its file: what it finds contradictory ends the process."""
        for _ in range(INDEX_ATTEMPTS):
            if self.read(lambda transaction: self._is_sound(transaction, even_if_fresh=even_if_fresh)):
                return
        raise BrokenIndex(f"index at {self.path} has no meta page for its last transaction", path=str(self.path))

    def _is_sound(self, transaction: Transaction, *, even_if_fresh: bool) -> bool:
        """Whether the pages of a transaction could be checked: two commits meanwhile overwrite its meta page."""
        fit = self._fit(transaction.number)
        if not even_if_fresh and self._stamp.is_fresh(fit):
            return True
        walked_ns = time.time_ns()
        meta = next((meta for meta in self._metas() if meta.transaction == transaction.number), None)
        if meta is None:
            return False
        try:
            with self._data.open("rb") as data:
                check_pages(FileView(data.fileno()), meta)
        except Unsound as error:
            self._damage = str(error)
            raise self._garbled(error) from error
        if self._locked and fit == self._fit(transaction.number):  # else it would displace a later writer's stamp
            self._stamp.write(fit, walked_ns)
        return True

    def _write_stamped(self, body: Callable[[Transaction], T]) -> T:
        """Write, and move a stamp that fits along. One that does not stays: on what pages we wrote, nobody knows.

        Whether it fits is asked last, when nothing is in the file yet: whoever wrote before us may just be stamping.
        """
        walked_ns, number = None, 0

        def write(transaction: Transaction) -> T:
            nonlocal walked_ns, number
            with collector_paused():  # others wait for the lock, and a full collection may look at a million objects
                result = body(transaction)
            number = transaction.number
            walked_ns = self._stamp.walked_ns(self._fit(number - 1)) if transaction.has_written else None
            return result

        result = self._run(write, write=True)
        with suppress(Superseded, OSError):  # what was written is durable all the same
            self._lengthen()
            if walked_ns is not None:
                self._stamp.write(self._fit(number), walked_ns)
        return result

    def _lengthen(self) -> None:
        """Make the file as long as its meta pages say. Whoever opens it would take it for cut off.

        LMDB leaves out pages at its end that one transaction took and gave back.
        """
        with self._data.open("r+b") as data:
            metas = meta_pages(data.read(HEAD_BYTES))
            size_bytes = os.fstat(data.fileno()).st_size
            lacking_bytes = 0 if metas is None else _needed_bytes(metas) - size_bytes
            if lacking_bytes > 0:
                os.posix_fallocate(data.fileno(), size_bytes, lacking_bytes)

    def _fit(self, number: int) -> Fit:
        """What a stamp has to say to fit, if that is the number of the last transaction."""
        try:
            fit = Fit.of(self._data.stat(), number)
        except (FileNotFoundError, NotADirectoryError):
            raise Superseded from None
        if (fit.inode, fit.device) != self.key:
            raise Superseded
        return fit

    def _garbled(self, error: Exception | str) -> BrokenIndex:
        self._stamp.remove()
        return BrokenIndex(f"index at {self.path} is garbled ({error})", path=str(self.path))

    def _as_ours(self, error: lmdb.Error) -> Exception:
        if isinstance(error, _GARBLED):
            return self._garbled(error)
        return as_os_error(error, self.path)


def _needed_bytes(metas: tuple[Meta, Meta]) -> int:
    return max(metas, key=lambda meta: meta.transaction).needed_bytes
