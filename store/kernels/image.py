"""Compiled kernels as one flat image, and how a process takes it into its memory: no linker, no compiler, no file.

An image is position-independent: whatever points from one place in it to another was settled by
:mod:`store.kernels.linking`. Only a C library's functions lie elsewhere for each process. Calls to them go to the
entries at the image's start, and each entry jumps to the address that its last 8 bytes hold. All numbers are
little-endian:

    machine     16 bytes   as ``uname`` calls it, padded with zeros
    count       uint32     of functions
    size        uint32     of the code
    functions   uint32[count]   where each begins, from the code's start
    code        entries, instructions, constants
"""

import ctypes
import mmap
import os
import struct
from collections.abc import Sequence
from typing import Final

RUNTIME: Final = ("memcpy", "memmove", "memset")
"""What code may call, in the order of its entries: every C library has these, and LLVM takes them for granted."""

ENTRY_BYTES: Final = 16
_ADDRESS_AT: Final = 8
_HEAD: Final = struct.Struct("<16sII")
_OFFSET_BYTES: Final = 4
_WRITABLE: Final = mmap.PROT_READ | mmap.PROT_WRITE
_EXECUTABLE: Final = mmap.PROT_READ | mmap.PROT_EXEC
"""Never both at once: who finds a way to write there could have it run."""


def packed(machine: str, functions: Sequence[int], code: bytes) -> bytes:
    """An image.

    Args:
        machine: whose instructions these are, as ``uname`` calls it.
        functions: where each begins, from the code's start.
        code: what comes into memory.
    """
    head = _HEAD.pack(machine.encode(), len(functions), len(code))
    return head + struct.pack(f"<{len(functions)}I", *functions) + code


class Image:
    """Code in this process's memory, private and read-only, until this is dropped. Children of a fork have it too.

    Args:
        image: what :func:`packed` made, undamaged.

    Attributes:
        addresses: where the functions are. Whoever calls them holds on to this.

    Raises:
        ValueError: it is no image, or for another machine.
        OSError: this system runs no code but that of files (SELinux, systemd and others can forbid it).
    """

    def __init__(self, image: bytes) -> None:
        functions, code = _unpacked(image)
        self._memory = mmap.mmap(-1, len(code), mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, prot=_WRITABLE)
        self._memory.write(code)
        library = ctypes.CDLL(None, use_errno=True)
        for index, name in enumerate(RUNTIME):
            address = ctypes.cast(library[name], ctypes.c_void_p).value
            struct.pack_into("<Q", self._memory, index * ENTRY_BYTES + _ADDRESS_AT, address)
        start = ctypes.addressof(ctypes.c_char.from_buffer(self._memory))
        _make_executable(library, start, len(code))
        self.addresses = tuple(start + offset for offset in functions)


def _unpacked(image: bytes) -> tuple[tuple[int, ...], bytes]:
    if len(image) < _HEAD.size:
        raise ValueError("compiled kernels are cut short")
    machine, count, code_bytes = _HEAD.unpack_from(image)
    code_at = _HEAD.size + count * _OFFSET_BYTES
    if machine.rstrip(b"\0") != os.uname().machine.encode():
        raise ValueError(f"compiled kernels are for {machine!r}")
    if len(image) != code_at + code_bytes or code_bytes < ENTRY_BYTES * len(RUNTIME):
        raise ValueError("compiled kernels are cut short")
    functions = struct.unpack_from(f"<{count}I", image, _HEAD.size)
    if any(offset >= code_bytes for offset in functions):
        raise ValueError("compiled kernels begin outside their code")
    return functions, image[code_at:]


def _make_executable(library: ctypes.CDLL, start: int, size_bytes: int) -> None:
    if library.mprotect(ctypes.c_void_p(start), ctypes.c_size_t(size_bytes), _EXECUTABLE):
        number = ctypes.get_errno()
        raise OSError(number, f"compiled kernels may not run here: {os.strerror(number)}")
    if os.uname().machine != "x86_64":
        # Others' processors fetch instructions past the cache that these were written to, unless told.
        clear = ctypes.CDLL("libgcc_s.so.1")["__clear_cache"]
        clear(ctypes.c_void_p(start), ctypes.c_void_p(start + size_bytes))
