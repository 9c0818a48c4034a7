"""Tensors that lie in files, described as a store describes its own, so that one planner serves both.

Each run of a file that is read at once stands for a chunk, under an id that is a number and no hash. What reads a store
through ``bring`` and ``read_copies`` reads files through the same two.
"""

import threading
from collections.abc import Iterable, Sequence
from itertools import accumulate
from math import prod
from pathlib import Path
from typing import Final, NamedTuple, Protocol

from store.boxes import Box
from store.disk.files import Files
from store.errors import Corrupt
from store.format.chunking import tensor_cuts
from store.format.dtypes import dtype
from store.format.entries import Entry, Piece, TensorEntry
from store.ids import ID_BYTES, ChunkId, ObjectId
from store.parallel import Threads
from store.reading.copies import ChunkCopy, Copy
from store.reading.retrieve import ChunkRead, gather, plan_span
from store.saving.inputs import MadeInput

MAX_SIZE: Final = (1 << 63) - 1
"""Of a tensor in any dim; a file may claim more for one without elements, and then no reader would take the commit."""


class Source(Protocol):
    """A run of a tensor's bytes that can be had."""

    @property
    def size_bytes(self) -> int:
        """How many."""
        ...

    def read(self, files: Files) -> memoryview:
        """The bytes.

        Raises:
            Corrupt: they are not there, or not what they should be.
            OSError: reading failed.
        """
        ...


class FileRange(NamedTuple):
    """Bytes of a file that are a tensor's, in C order.

    Attributes:
        path: the file.
        offset: where they begin.
        size_bytes: how many.
    """

    path: Path
    offset: int
    size_bytes: int

    def read(self, files: Files) -> memoryview:
        """The bytes. Opens the file each time: a checkpoint may have more files than a process may hold open.

        Raises:
            Corrupt: the file ends before.
            OSError: reading failed.
        """
        data = memoryview(bytearray(self.size_bytes))
        self.read_into(files, data)
        return data

    def read_into(self, files: Files, out: memoryview) -> None:
        """The same into memory of their length.

        Raises:
            Corrupt: the file ends before.
            OSError: reading failed.
        """
        with files.open_read(self.path) as handle:
            count = handle.pread_into(self.offset, out)
        if count < self.size_bytes:
            raise Corrupt(f"{self.path} ends at byte {self.offset + count}, in a tensor", path=str(self.path))


class Part(NamedTuple):
    """A box of a tensor, and the bytes of it.

    Attributes:
        box: the box.
        source: its elements in C order. What is no range of a file is read whole, or not at all.
    """

    box: Box
    source: Source


class Ranges:
    """Tensors in files, as entries, and the reading of them. Entries are made by one thread; any may read.

    Args:
        files: does the I/O.
        threads: run the reads; ``None`` for the caller's thread, which may be one of those that store.

    Attributes:
        read_bytes: how much was read so far.
        largest_read_bytes: the most that was read at once.
    """

    def __init__(self, files: Files, threads: Threads | None = None) -> None:
        self._files = files
        self._threads = threads
        self._sources: dict[ChunkId, Source] = {}
        self._counting, self._reading_whole = threading.Lock(), threading.Lock()
        self._whole: tuple[Source, memoryview] | None = None
        self.read_bytes = 0
        self.largest_read_bytes = 0

    @property
    def files(self) -> Files:
        """What does the I/O."""
        return self._files

    def entry(self, position: int, dtype_name: str, shape: tuple[int, ...], parts: Sequence[Part]) -> TensorEntry:
        """Describe a tensor.

        Args:
            position: its place among its siblings.
            dtype_name: stored name.
            shape: global shape.
            parts: boxes that tile it.
        """
        if not prod(shape):
            return TensorEntry(position, dtype_name, shape, inline=b"")
        item_bytes = dtype(dtype_name).item_bytes
        pieces = tuple(self._piece(part, item_bytes) for part in parts if part.box.volume)
        return TensorEntry(position, dtype_name, shape, pieces)

    def input(self, entry: TensorEntry) -> MadeInput:
        """A tensor for a save, which reads it a chunk at a time."""
        return MadeInput(entry.position, entry.dtype, entry.shape, lambda start, stop: self._run(entry, start, stop))

    def bring(self, entries: Iterable[Entry]) -> None:
        """Nothing: files are here."""

    def read_copies(self, copies: Iterable[Copy], *, verify_hash: bool = False) -> None:  # noqa: ARG002 - as a store
        """Read what was planned, each run of a file once.

        Raises:
            Corrupt: a file is not what it was described to be. Targets may be partly written.
            OSError: reading failed.

        Cost: memory of one run, at most 4 MiB of a file, for each thread. What is read whole is kept until the next
        such is: a save asks for the chunks of a tensor one after another.
        """
        reads = gather(copies)
        if self._threads is not None:
            self._threads.run(self._read, reads)
            return
        for read in reads:
            self._read(read)

    def _read(self, read: ChunkRead) -> None:
        source, (first, *others) = self._sources[read.chunk], read.copies
        if isinstance(source, FileRange) and isinstance(first, ChunkCopy) and first.is_whole and not others:
            source.read_into(self._files, first.out)
            self._count(source.size_bytes)
            return
        raw = self._raw(source)
        for copy in read.copies:
            copy.put(raw)

    def _raw(self, source: Source) -> memoryview:
        if isinstance(source, FileRange):
            return self._counted(source)
        with self._reading_whole:
            if self._whole is None or self._whole[0] is not source:
                self._whole = None  # before the next one is there
                self._whole = (source, self._counted(source))
            return self._whole[1]

    def _run(self, entry: TensorEntry, start: int, stop: int) -> memoryview:
        run = memoryview(bytearray(stop - start))
        self.read_copies(plan_span(entry, start, run))
        return run

    def _piece(self, part: Part, item_bytes: int) -> Piece:
        cuts: tuple[int, ...] = (part.source.size_bytes,)
        sources: list[Source] = [part.source]
        if isinstance(part.source, FileRange):
            cuts = tensor_cuts(part.box.sizes, item_bytes)
            path, offset, _ = part.source
            stops = accumulate(cuts)
            sources = [FileRange(path, offset + stop - cut, cut) for cut, stop in zip(cuts, stops, strict=True)]
        chunks = tuple(map(self._named, sources))
        return Piece(part.box.offsets, part.box.sizes, cuts, chunks)

    def _named(self, source: Source) -> ChunkId:
        chunk = ChunkId(ObjectId(len(self._sources).to_bytes(ID_BYTES, "big")))
        self._sources[chunk] = source
        return chunk

    def _counted(self, source: Source) -> memoryview:
        raw = source.read(self._files)
        self._count(len(raw))
        return raw

    def _count(self, size_bytes: int) -> None:
        with self._counting:
            self.read_bytes += size_bytes
            self.largest_read_bytes = max(self.largest_read_bytes, size_bytes)
