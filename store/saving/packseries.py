"""The packs of one save: a new one is begun when one is full, all become visible together."""

import threading
from collections.abc import Callable
from pathlib import Path

from ..disk.files import Files
from ..features import need_feature
from ..format.pack import PackTable, Sealed
from ..ids import PackId
from ..layout import VIEWS, Layout
from ..limits import MAX_PACK_BYTES
from ..reading.packs import PackWriter


class PackSeries:
    """Appends sealed objects to as many packs as they take. Thread-safe.

    Args:
        files: does the I/O.
        directory: where packs lie, in a store.
        name: of the packs while they are in the making: the lease's, so that it shows whether their writer lives.
        announce: told of each pack's id before the pack appears under its name, so that no sweep takes it for garbage.
        begun: how many packs were begun under that name before: what a failing disk left of them may be there.

    Attributes:
        begun: how many there are by now.
    """

    def __init__(
        self, files: Files, directory: Path, name: str, announce: Callable[[PackId], None], begun: int = 0
    ) -> None:
        self.begun = begun
        self._files = files
        self._directory = directory
        self._name = name
        self._announce = announce
        self._lock = threading.Lock()
        self._writer: PackWriter | None = None
        self._full: list[tuple[PackWriter, PackTable]] = []
        self._published = 0

    def append(self, sealed: Sealed) -> None:
        """Append an object; it is durable only after :meth:`publish`. Raises OSError when writing fails."""
        with self._lock:
            if self._writer is not None and self._writer.bytes_written + sealed.stored_bytes > MAX_PACK_BYTES:
                self._finish()
            if self._writer is None:
                self.begun += 1
                self._writer = PackWriter(self._files, self._directory, f"tmp-{self._name}-{self.begun}")
            self._writer.append(sealed)

    def publish(self) -> list[PackTable]:
        """Make every pack durable under its name and return their tables, oldest first.

        Raises:
            Incompatible: the store has come to need what this version lacks, since it was opened.
            OSError: writing failed; packs that were named already hold nothing that anything refers to.
        """
        with self._lock:
            self._finish()
            self._say_what_it_takes()
            for writer, table in self._full[self._published :]:
                self._announce(table.id)
                writer.publish()
                self._published += 1
            return [table for _, table in self._full]

    def abandon(self) -> None:
        """Remove what was written and never got its name."""
        with self._lock:
            for writer in [*(writer for writer, _ in self._full[self._published :]), self._writer]:
                if writer is not None:
                    writer.abandon()
            del self._full[self._published :]
            self._writer = None

    @property
    def published(self) -> list[PackTable]:
        """Tables of the packs that have their name."""
        with self._lock:
            return [table for _, table in self._full[: self._published]]

    def _say_what_it_takes(self) -> None:
        """Keep those out who could not read what is about to get its name."""
        if any(entry.viewed for _, table in self._full[self._published :] for entry in table.entries):
            need_feature(Layout(self._directory.parent), self._files, VIEWS)

    def _finish(self) -> None:
        if self._writer is not None:
            self._full.append((self._writer, self._writer.finish()))
            self._writer = None
