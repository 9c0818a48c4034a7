"""Packs on disk: writing one, and reading objects out of all of them.

A pack is written under a temporary name, made durable, and then named by its id: whatever has a pack's name is whole.
Packs never change. Readers take no lock and use ``pread``, never a mapping: a pack that is cut off or altered under
an open reader is an error that names it, not a dead process.

Spec: docs/format.md §6.
"""

import errno
import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from contextlib import suppress
from itertools import islice
from pathlib import Path
from typing import Self

from .. import ids
from ..disk.files import Files, Fingerprint, ReadHandle
from ..errors import Corrupt, Incompatible, NotFound
from ..format import pack
from ..format.pack import ObjectHeader, PackTable, Sealed, TableEntry
from ..ids import ID_BYTES, Buffer, ObjectId, PackId
from ..limits import CHECKED_OPEN_PACKS, MAX_OPEN_PACKS

_SUFFIX = ".pack"


class PackGone(NotFound):
    """A pack went away after it was looked up: gc or repack moved what it held. Look the object up again."""

    kind = "pack-gone"


class Unreadable(Corrupt):
    """The disk failed to give these bytes. The next time it may: they are not known to be bad."""

    kind = "unreadable"


def pack_path(directory: Path, pack_id: PackId) -> Path:
    """Where a pack lies."""
    return directory / (pack_id.hex() + _SUFFIX)


class PackWriter:
    """Writes one pack. For one thread at a time.

    After an error only :meth:`abandon` is of use: write what it held anew, into another pack.

    Args:
        files: does the I/O.
        directory: where packs lie.
        name: of the file until it is published; must be unique and end in no ``.pack``.

    Raises:
        OSError: the file could not be made.
    """

    def __init__(self, files: Files, directory: Path, name: str) -> None:
        self._files = files
        self._directory = directory
        self._temporary = directory / name
        self._entries: list[TableEntry] = []
        self._table: PackTable | None = None
        self._is_published = False
        self._blocks = files.open_blocks(self._temporary)
        self._blocks.write([pack.encode_header()])

    @property
    def bytes_written(self) -> int:
        """Length of the pack so far."""
        return self._blocks.size_bytes

    def append(self, sealed: Sealed) -> None:
        """Append an object that the pack does not hold yet.

        The object's buffers may be changed once this returns.

        Raises:
            OSError: writing failed, and the file is gone.
            ValueError: the pack is finished, abandoned or failed earlier.

        Cost: one copy; every 4 MiB one write.
        """
        entry = pack.table_entry(sealed, self._blocks.size_bytes)
        self._blocks.write(sealed.buffers)
        self._entries.append(entry)

    def finish(self) -> PackTable:
        """Write the table and make the content durable, still under the temporary name.

        Raises:
            OSError: the content is not durable, and the file is gone.
            ValueError: the pack is finished, abandoned or failed earlier.
        """
        encoded = pack.encode_table(self._entries)
        footer = pack.footer_of(encoded, self._blocks.size_bytes)
        self._blocks.write([encoded, pack.encode_footer(footer)])
        self._blocks.finish()
        self._table = PackTable(ids.pack_id(encoded), tuple(self._entries))
        return self._table

    def publish(self) -> None:
        """Give the finished pack its name, durably. A pack of the same id has the same content and is replaced.

        Raises:
            OSError: it is under one of its names, or perhaps both after a power cut.
            ValueError: the pack is not finished.
        """
        if self._table is None:
            raise ValueError(f"{self._temporary} is not finished")
        self._files.rename_durable(self._temporary, pack_path(self._directory, self._table.id))
        self._is_published = True

    def abandon(self) -> None:
        """Remove the file, unless it is published; again does nothing."""
        if not self._is_published:
            self._blocks.abandon()


class PackStore:
    """Reads the packs of one directory. Threads may share it.

    Args:
        files: does the I/O.
        directory: where packs lie.
    """

    def __init__(self, files: Files, directory: Path) -> None:
        self._files = files
        self._directory = directory
        self._locks: dict[int, threading.Lock] = {}
        self._handles: OrderedDict[PackId, ReadHandle] = OrderedDict()

    def pack_ids(self) -> list[PackId]:
        """Packs that there are, sorted. Temporaries of writers are none.

        Raises:
            OSError: the directory cannot be read.
        """
        names = self._files.list_directory(self._directory)
        return [pack_id for name in names if (pack_id := _id_in(name)) is not None]

    def read(
        self,
        pack_id: PackId,
        offset: int,
        stored_bytes: int,
        expected_id: ObjectId,
        room: Callable[[int], memoryview] | None = None,
    ) -> tuple[ObjectHeader, memoryview]:
        """Read a stored object and check it against its checksum and the id it should have.

        Args:
            pack_id: the pack.
            offset: where the object begins.
            stored_bytes: its length.
            expected_id: what is sought there.
            room: gives writable memory of so many bytes to read into; called once, with a length that an object may
                have. New memory if ``None``.

        Returns:
            Its header and payload, a view of that memory, which is the caller's.

        Raises:
            PackGone: there is no such pack (any more); or it is damaged, and another file has its name by now.
            Unreadable: the disk did not give them (EIO).
            Corrupt: the bytes there are not this object, intact. Names pack, offset and object.
            Incompatible: a newer version wrote it.
            OSError: the pack cannot be opened or read.

        Cost: one pread, one pass of xxh3.
        """
        with _Located(pack_id, offset, expected_id) as what:
            if not 0 < stored_bytes <= pack.MAX_STORED_BYTES:
                raise Corrupt(f"{what}: no object is {stored_bytes} bytes long")
            if room is None:
                data: Buffer = self._pread(pack_id, offset, stored_bytes, what)
            else:
                data = self._pread_into(pack_id, offset, room(stored_bytes), what)
        try:
            return self.checked(data, pack_id, offset, expected_id)
        except Corrupt:
            if self._forget_replaced(pack_id):
                raise self._gone(pack_id) from None
            raise

    def read_stretch(self, pack_id: PackId, start: int, room: memoryview) -> None:
        """Read what lies in a pack from an offset on; nothing is checked. Raises as :meth:`read` does."""
        with _Located(pack_id) as what:
            self._pread_into(pack_id, start, room, what)

    def checked(
        self, data: Buffer, pack_id: PackId, offset: int, expected_id: ObjectId
    ) -> tuple[ObjectHeader, memoryview]:
        """Check an object that was read, and take it apart, as :meth:`read` does.

        Args:
            data: its stored bytes.
            pack_id: where they were read.
            offset: where the object begins.
            expected_id: what is sought there.

        Raises:
            Corrupt: they are not this object, intact. Incompatible: a newer version wrote it.
        """
        with suppress(Corrupt, Incompatible):
            header, payload = pack.unseal(data, "an object")
            if header.id == expected_id:
                return header, payload
        # Again, with words for where it is: making them takes as long as checking a small object.
        with _Located(pack_id, offset, expected_id) as what:
            header, _ = pack.unseal(data, str(what))
            raise Corrupt(f"{what}: object {header.id.hex()} lies there instead")

    def table(self, pack_id: PackId) -> PackTable:
        """Read a pack's table, and check the pack's whole structure but not the objects themselves.

        Raises:
            PackGone: there is no such pack (any more).
            Unreadable: the disk did not give the bytes (EIO).
            Corrupt: header, footer or table is damaged, the length is wrong, or it is another pack.
            Incompatible: a newer version wrote it.
            OSError: the pack cannot be opened or read.

        Cost: three small reads, and about 10 µs an object.
        """
        with _Located(pack_id) as located:
            what = str(located)
            pack_bytes = self._handle(pack_id).size
            if pack_bytes < pack.HEADER_BYTES + pack.FOOTER_BYTES:
                raise Corrupt(f"{what}: {pack_bytes} bytes are too few for a pack")
            pack.check_header(self._pread(pack_id, 0, pack.HEADER_BYTES, what), what)
            tail = self._pread(pack_id, pack_bytes - pack.FOOTER_BYTES, pack.FOOTER_BYTES, what)
            footer = pack.decode_footer(tail, pack_bytes, what)
            encoded = self._pread(pack_id, footer.table_offset, footer.table_bytes, what)
            table = pack.decode_table(encoded, footer, what)
            if table.id != pack_id:
                raise Corrupt(f"{what}: it is pack {table.id.hex()}")
        return table

    def size_bytes(self, pack_id: PackId) -> int:
        """Length of a pack's file.

        Raises:
            PackGone: there is no such pack (any more).
            OSError: the pack cannot be opened.
        """
        return self._handle(pack_id).size

    def total_bytes(self) -> int:
        """Length of all packs' files. One that goes meanwhile may count or not.

        Raises:
            OSError: the directory cannot be read.
        """
        total_bytes = 0
        for pack_id in self.pack_ids():
            with suppress(FileNotFoundError):
                total_bytes += self._files.size(pack_path(self._directory, pack_id))
        return total_bytes

    def read_entry(self, pack_id: PackId, entry: TableEntry) -> tuple[ObjectHeader, memoryview]:
        """Read an object that a table names, and check that both agree. Raises as :meth:`read` does."""
        header, payload = self.read(pack_id, entry.offset, entry.stored_bytes, entry.id)
        if header != entry.header:
            with _Located(pack_id, entry.offset, entry.id) as what:
                raise Corrupt(f"{what}: its header differs from the pack's table")
        return header, payload

    def forget(self, pack_id: PackId) -> None:
        """Close a pack that is removed: its space is free only once nobody has it open."""
        with self._guard():
            self._handles.pop(pack_id, None)

    def fingerprint(self, pack_id: PackId) -> Fingerprint | None:
        """What tells whether a pack's file was changed or replaced since; ``None`` if there is none."""
        return self._files.fingerprint(pack_path(self._directory, pack_id))

    def close(self) -> None:
        """Close all packs. What is read later opens them again."""
        with self._guard():
            self._handles.clear()

    def _pread(self, pack_id: PackId, offset: int, size_bytes: int, what: object) -> bytes:
        data = self._handle(pack_id).pread(offset, size_bytes)
        if len(data) < size_bytes:
            raise _cut_off(what, size_bytes - len(data))
        return data

    def _pread_into(self, pack_id: PackId, offset: int, room: memoryview, what: object) -> memoryview:
        read_bytes = self._handle(pack_id).pread_into(offset, room)
        if read_bytes < len(room):
            raise _cut_off(what, len(room) - read_bytes)
        return room

    def _handle(self, pack_id: PackId) -> ReadHandle:
        with self._guard():
            handle = self._handles.get(pack_id)
            if handle is not None:
                self._handles.move_to_end(pack_id)
                return handle
        opened = self._open(pack_id)  # may take long on a network: readers of other packs need not wait
        with self._guard():
            handle = self._handles.setdefault(pack_id, opened)
            oldest = list(islice(self._handles.items(), CHECKED_OPEN_PACKS))
            for gone in [each for each, known in oldest if known.is_removed]:
                del self._handles[gone]  # gc or repack freed its space, and we were keeping it
            if len(self._handles) > MAX_OPEN_PACKS:
                self._handles.popitem(last=False)  # closes once the last thread that reads from it is done
            return handle

    def _forget_replaced(self, pack_id: PackId) -> bool:
        """Close a pack whose file we have open has lost its name, and say whether that is so."""
        with self._guard():
            handle = self._handles.get(pack_id)
            if handle is None or not handle.is_removed:
                return False
            del self._handles[pack_id]
            return True

    def _guard(self) -> threading.Lock:
        """The lock of this process: a forked child must not wait for a thread that it does not have."""
        return self._locks.setdefault(os.getpid(), threading.Lock())

    def _open(self, pack_id: PackId) -> ReadHandle:
        path = pack_path(self._directory, pack_id)
        try:
            return self._files.open_read(path)
        except FileNotFoundError:
            raise self._gone(pack_id) from None

    def _gone(self, pack_id: PackId) -> PackGone:
        return PackGone(
            f"pack {pack_id.hex()} is not there (any more); run `moonclip fsck` if this stays so",
            pack=pack_id.hex(),
            path=str(pack_path(self._directory, pack_id)),
        )


class _Located:
    """Words for where we are, put together where they are needed; errors raised inside get the same as details."""

    __slots__ = ("_object_id", "_offset", "_pack_id")

    def __init__(self, pack_id: PackId, offset: int | None = None, object_id: ObjectId | None = None) -> None:
        self._pack_id = pack_id
        self._offset = offset
        self._object_id = object_id

    def __str__(self) -> str:
        what = f"pack {self._pack_id.hex()}"
        if self._object_id is None:
            return what
        return f"{what} at offset {self._offset}: object {self._object_id.hex()}"

    def __enter__(self) -> Self:
        return self

    def __exit__(self, _kind: object, error: BaseException | None, _trace: object) -> None:
        if isinstance(error, Corrupt | Incompatible):
            error.details |= self._details
        elif isinstance(error, OSError) and error.errno == errno.EIO:
            raise Unreadable(f"{self}: it cannot be read ({error})", **self._details) from error

    @property
    def _details(self) -> dict[str, object]:
        where: dict[str, object] = {"pack": self._pack_id.hex()}
        if self._object_id is not None:
            where |= {"offset": self._offset, "object": self._object_id.hex()}
        return where


def _cut_off(what: object, missing_bytes: int) -> Corrupt:
    return Corrupt(f"{what}: the file ends {missing_bytes} bytes too early")


def _id_in(name: str) -> PackId | None:
    """The id in a pack's file name, or ``None`` for other files."""
    digits, dot, suffix = name.rpartition(".")
    if dot + suffix != _SUFFIX or len(digits) != 2 * ID_BYTES or not set(digits) <= set("0123456789abcdef"):
        return None
    return PackId(bytes.fromhex(digits))
