"""Files that are to come back byte for byte, each of which is read once: when somebody asks, or by threads, ahead."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager, suppress
from typing import Final

from store.ids import ChunkId

from .abreast import Proceed, abreast
from .listing import Found
from .recipes import Read, Told

_MAX_FILES: Final = 4
"""Read ahead at once, beside the threads that store."""

Reader = Callable[[Told], Read]
"""Reads a file, and tells somebody of so many more bytes of it."""


class KeptFile:
    """A file of an import. Threads may share it.

    Args:
        found: where it is.
        reader: reads it; ``None`` for one whose bytes are a value.
    """

    def __init__(self, found: Found, reader: Reader | None = None) -> None:
        self.found: Final = found
        self._reader = reader
        self._read: Read | None = None
        self._reading = threading.Lock()

    @property
    def name(self) -> str:
        """Its path below the directory, parts joined by ``/``."""
        return self.found.name

    @property
    def has_recipe(self) -> bool:
        """Whether it is stored as what it consists of; else its bytes are a value."""
        return self._reader is not None

    @property
    def is_read(self) -> bool:
        """Whether nothing of it has to be read any more."""
        return self._reader is None or self._read is not None

    @property
    def chunks(self) -> tuple[ChunkId, ...]:
        """Ids of the chunks that its tensors had when it was hashed. Raises as :meth:`read` does."""
        return () if self._reader is None else self.read().chunks

    def read(self, told: Told = lambda _: None) -> Read:
        """What it consists of; read now, unless that was done.

        Args:
            told: told of so many more bytes of it; what it raises ends the reading, and is raised.

        Raises:
            Conflict: the file is shorter than it was.
            OSError: it cannot be read.
        """
        assert self._reader is not None, "its bytes are a value"
        with self._reading:
            if self._read is None:
                self._read = self._reader(told)
            return self._read


@contextmanager
def reading_ahead(files: Sequence[KeptFile], thread_count: int, most: int = _MAX_FILES) -> Iterator[None]:
    """Read files beside what is done meanwhile. At its end nothing of them is being read any more.

    What fails is read again, and fails again, for whoever asks for it. Where no thread can be started, they read alone.

    Args:
        files: which; the largest is begun first.
        thread_count: how many to read at once, at most, and
        most: no more than that.
    """
    unread = sorted((file for file in files if not file.is_read), key=lambda file: -file.found.size_bytes)

    def read(file: KeptFile, proceed: Proceed) -> None:
        with suppress(Exception):  # whatever it is, who asks for the file is told
            file.read(lambda _: proceed())

    with abreast(unread, min(thread_count, most), read):
        yield
