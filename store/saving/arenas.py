"""Stretches of memory that two processes share: what one copies a state into, the other stores from.

An arena is a memfd, mapped by both. It has no name: nothing is left of it when both are gone, whatever ended them,
and it needs no room in ``/dev/shm``, which is small in containers. Forked children inherit neither the mapping, whose
pages a write after the fork would have to copy, nor the descriptor, which would keep the memory of an arena that was
given up.

The mapping is made by libc, not by Python's ``mmap``: that keeps a second descriptor, and a forked child that drops it
unmaps whatever came to lie at those addresses since.
"""

import ctypes
import errno
import fcntl
import mmap
import os
import tempfile
import weakref
from contextlib import suppress
from itertools import count
from typing import Final, Self

from ..disk.descriptors import Descriptor
from ..limits import PAGE_BYTES, POPULATE_STRIDE_BYTES

_libc: Final = ctypes.CDLL(None, use_errno=True)
_libc.mmap.restype = ctypes.c_void_p
_libc.mmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t, *[ctypes.c_int] * 3, ctypes.c_int64]
_libc.munmap.argtypes = [ctypes.c_void_p, ctypes.c_size_t]
_libc.madvise.argtypes = [ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int]

_MAP_FAILED: Final = ctypes.c_void_p(-1).value
_MADV_POPULATE_WRITE: Final = 23
"""Since Linux 5.14; Python's ``mmap`` has no name for it."""

_CLOSED_FD: Final = -1

_numbers: Final = count()
_living: Final["weakref.WeakSet[Arena]"] = weakref.WeakSet()


class Arena:
    """One stretch of shared memory. Not thread-safe, but any threads may use its memory.

    Attributes:
        number: unique in the process that made it.
        size_bytes: its size.
        memory: its bytes, flat. They stay mapped as long as this or any view of it lives, even if the arena is closed.
            Where it was adopted, they may only be read.
    """

    def __init__(self, number: int, fd: int, size_bytes: int, address: int, memory: memoryview) -> None:
        self.number = number
        self._descriptor = Descriptor(fd)
        self.size_bytes = size_bytes
        self.memory = memory
        self._address = address
        _living.add(self)

    @classmethod
    def make(cls, size_bytes: int) -> Self:
        """Make one; at least a page. Its pages come to be when they are first written, or by :meth:`populate`.

        Raises:
            MemoryError: there is no address space for it.
            OSError: there is no descriptor left.
        """
        size_bytes = max(size_bytes, PAGE_BYTES)
        fd = nameless_file()
        try:
            _sized(fd, size_bytes)
            address = _mapped(fd, size_bytes, mmap.PROT_READ | mmap.PROT_WRITE)
            for advice in (mmap.MADV_DONTFORK, mmap.MADV_HUGEPAGE):  # a kernel without huge pages refuses the latter
                _libc.madvise(address, size_bytes, advice)
            return cls(next(_numbers), fd, size_bytes, address, _view(address, size_bytes))
        except BaseException:
            os.close(fd)
            raise

    @classmethod
    def adopt(cls, number: int, fd: int, size_bytes: int) -> Self:
        """Map one that another process made, to read it. Closes ``fd`` in any case.

        Raises:
            MemoryError: there is no address space for it.
        """
        try:
            address = _mapped(fd, size_bytes, mmap.PROT_READ)
        finally:
            os.close(fd)
        return cls(number, _CLOSED_FD, size_bytes, address, _view(address, size_bytes).toreadonly())

    @property
    def fd(self) -> int:
        """Its descriptor, close-on-exec; -1 once closed, and where it was adopted."""
        return self._descriptor.fd

    @property
    def is_intact(self) -> bool:
        """Whether the descriptor is still this arena's; else something closed it that it does not belong to."""
        return self._descriptor.is_intact

    def populate(self, start: int, stop: int) -> None:
        """Make the pages between two offsets, so that writing them does not have to. Keeps what they hold.

        Does nothing where the kernel cannot (before Linux 5.14).

        Raises:
            MemoryError: there is no room. Writing there would end the process.

        Cost: about 0.3 s for 500 MB. Releases the GIL.
        """
        start -= start % PAGE_BYTES
        for at in range(start, stop, POPULATE_STRIDE_BYTES):
            length = min(POPULATE_STRIDE_BYTES, stop - at)
            if not _populated(self._address + at, length):
                return

    def close(self) -> None:
        """Give up descriptor and memory; again does nothing."""
        self.memory = memoryview(b"")
        self._descriptor.close()

    def __del__(self) -> None:
        self.close()


# --- system calls -------------------------------------------------------------------------------------------------


def nameless_file() -> int:
    """Descriptor, close-on-exec, of an empty file in memory; of one on disk that is unlinked where there is no memfd.

    Raises:
        OSError: there is no descriptor left.
    """
    if hasattr(os, "memfd_create"):
        try:
            return os.memfd_create("moonclip", os.MFD_CLOEXEC | os.MFD_ALLOW_SEALING)
        except OSError as error:
            if error.errno not in {errno.ENOSYS, errno.EPERM, errno.EACCES}:
                raise
    with tempfile.TemporaryFile(buffering=0) as file:
        return os.dup(file.fileno())


def _sized(fd: int, size_bytes: int) -> None:
    """Give a file its size for good: a mapping beyond its end would end the process."""
    os.truncate(fd, size_bytes)
    with suppress(OSError):  # a file on disk takes no seals
        fcntl.fcntl(fd, fcntl.F_ADD_SEALS, fcntl.F_SEAL_SHRINK | fcntl.F_SEAL_GROW | fcntl.F_SEAL_SEAL)


def _mapped(fd: int, size_bytes: int, protection: int) -> int:
    address: int | None = _libc.mmap(None, size_bytes, protection, mmap.MAP_SHARED, fd, 0)
    if address is None or address == _MAP_FAILED:
        raise MemoryError(f"no memory for {size_bytes} bytes: {os.strerror(ctypes.get_errno())}")
    return address


def _view(address: int, size_bytes: int) -> memoryview:
    """The bytes at an address; unmapped once no view of them lives."""
    import numpy as np  # only those who save need it

    mapping = (ctypes.c_ubyte * size_bytes).from_address(address)
    unmap = weakref.finalize(mapping, _unmap, address, size_bytes, os.getpid())
    unmap.atexit = False  # then threads may still be copying
    return np.asarray(mapping).data


def _unmap(address: int, size_bytes: int, pid: int) -> None:
    if pid == os.getpid():  # a forked child has something else there, or nothing
        _libc.munmap(address, size_bytes)


def _populated(address: int, length: int) -> bool:
    """Whether the kernel has made the pages; else it cannot."""
    while _libc.madvise(address, length, _MADV_POPULATE_WRITE) != 0:
        code = ctypes.get_errno()
        if code in {errno.EFAULT, errno.ENOMEM}:
            raise MemoryError(f"no memory for {length} bytes of an arena: {os.strerror(code)}")
        if code not in {errno.EAGAIN, errno.EINTR}:
            return False
    return True


def _close_in_child() -> None:
    for arena in list(_living):
        arena.close()


os.register_at_fork(after_in_child=_close_in_child)
