"""The files that reflogs are kept in.

    logs/HEAD
    logs/refs/branches/exp~lr3      the log of branches/exp/lr3: "/" is written "~", which no ref name holds

They lie flat because they outlive their refs: what a deleted ``exp`` held can be found again, even when an
``exp/lr3`` was made since.
"""

from collections.abc import Iterator
from pathlib import Path

from ..disk.files import Files
from ..ids import CommitId
from ..limits import REFLOG_TAIL_BYTES
from .reflog import ReflogLine, decode_lines, encode_line, logged_ids, unapplied_bytes
from .refnames import HEAD, KINDS, RefName, full_name, is_full_name


class LogFiles:
    """The reflogs of one store. Appending is for the holder of ``refs.lock``; reading is for anyone."""

    def __init__(self, root: Path, files: Files) -> None:
        self._files = files
        self._root = root / "logs"

    def path(self, name: str) -> Path:
        """Where the log of ``name`` (full, or ``HEAD``) lies.

        Raises:
            Incompatible: ``name`` is not a full ref name.
        """
        if name == HEAD:
            return self._root / HEAD
        kind, _, short = full_name(name).partition("/")
        return self._root / "refs" / kind / short.replace("/", "~")

    def name(self, path: Path) -> RefName | None:
        """Inverse of :meth:`path` for refs; ``None`` for ``HEAD`` and for what is no log."""
        name = f"{path.parent.name}/{path.name.replace('~', '/')}"
        return RefName(name) if path != self._root / HEAD and is_full_name(name) else None

    def lines(self, path: Path) -> list[ReflogLine]:
        """All lines of one log, oldest first, also such as never came true; none if there is no log.

        Raises:
            Corrupt: a line is damaged that is not the last.
        """
        return decode_lines(self._bytes(path), str(path))

    def last(self, path: Path) -> ReflogLine | None:
        """The last of :meth:`lines`; ``None`` if there is none. Reads no more than the end.

        Raises:
            Corrupt: a line there is damaged that is not the last.
        """
        tail, _ = self._tail(path)
        return next(reversed(decode_lines(tail, str(path))), None)

    def ids(self, path: Path, since_ns: int = 0) -> set[CommitId]:
        """Every commit that a line of one log names, whether or not the line came true.

        Args:
            path: the log.
            since_ns: leave out lines that are older.

        Raises:
            Corrupt: a line is damaged that is not the last.
        """
        return logged_ids(self._bytes(path), str(path), since_ns)

    def all(self) -> Iterator[Path]:
        """Paths of all logs."""
        yield self._root / HEAD
        for kind in KINDS:
            directory = self._root / "refs" / kind
            yield from (directory / name for name in self._entries(directory))

    def append(self, name: str, current: CommitId | None, line: ReflogLine) -> None:
        """Add ``line`` durably, after cutting off what an earlier writer left that never came true.

        Args:
            name: full name of the ref, or ``HEAD``.
            current: its value now.
            line: what is about to come true.
        """
        path = self.path(name)
        tail, size_bytes = self._tail(path)
        unapplied = unapplied_bytes(tail, current)
        if unapplied:
            self._files.truncate(path, size_bytes - unapplied)
        if not size_bytes:
            self._files.make_directory(path.parent)
        self._files.append_durable(path, encode_line(line))

    def _bytes(self, path: Path) -> bytes:
        try:
            return self._files.read_bytes(path)
        except FileNotFoundError:
            return b""

    def _tail(self, path: Path) -> tuple[bytes, int]:
        """The end of a log, from the beginning of a line on, and the length of all of it.

        A window is enough as long as it holds a whole line; a longer line makes us read everything.
        """
        try:
            handle = self._files.open_read(path)
        except FileNotFoundError:
            return b"", 0
        with handle:
            size_bytes = handle.size
            window = handle.pread(max(0, size_bytes - REFLOG_TAIL_BYTES), min(size_bytes, REFLOG_TAIL_BYTES))
            start = 0 if len(window) == size_bytes else window.find(b"\n") + 1
            if b"\n" in window[start:]:
                return window[start:], size_bytes
            return handle.pread(0, size_bytes), size_bytes

    def _entries(self, directory: Path) -> list[str]:
        try:
            return self._files.list_directory(directory)
        except FileNotFoundError:
            return []
