"""Absence records: the sole permission for a hole.

A commit's object always stays, since its id covers its parents; what it reaches may go. The file ``absent`` says which
items of which commits nobody may expect any more, and why. Whoever walks from a commit to its trees asks here first.

A record is one line, ``<commit> <item> <why> <time_ns>`` and perhaps `` <origin>``: the item percent-encoded, or ``*``
for all of them. Records are appended, and each is durable before anything is removed that it permits to be missing.
A torn last line was never acted upon; a damaged line permits nothing.

Spec: docs/format.md, section on absence records.
"""

import logging
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from enum import StrEnum
from pathlib import Path
from typing import Final, NamedTuple, Protocol
from urllib.parse import quote, unquote

from ..disk.files import FileLock, Files, Fingerprint
from ..errors import Pruned
from ..format.objects import Commit
from ..ids import CommitId, ObjectId, TreeId, short

WHOLE: Final = "*"
"""Stands for all items of a commit. An item that is itself called so is written ``%2A``."""

_LINE = re.compile(r"([0-9a-f]{64}) ([^ ]*) (pruned|collected|shallow|partial) (0|[1-9][0-9]{0,19})(?: ([^ ]+))?")

_log = logging.getLogger(__name__)


class Why(StrEnum):
    """Why something is absent."""

    PRUNED = "pruned"
    """It was dropped here, and is not to come back by itself."""
    COLLECTED = "collected"
    """Nothing reached it, and gc took what it held."""
    SHALLOW = "shallow"
    """It is older than what was fetched."""
    PARTIAL = "partial"
    """Other items were fetched."""


class Absence(NamedTuple):  # ten thousand are read at once: made in a third of a dataclass's time
    """One record.

    Attributes:
        commit: the commit.
        item: the item's name as it is written: percent-encoded; ``WHOLE`` for all. See :meth:`of`.
        why: why it is absent.
        time_ns: since when, nanoseconds since the epoch, by the clock of whoever said so (shown, decides nothing).
        origin: where it can be fetched from; empty if nowhere.
    """

    commit: CommitId
    item: str
    why: Why
    time_ns: int
    origin: str = ""

    @classmethod
    def of(cls, commit: CommitId, item: str | None, why: Why, time_ns: int, origin: str = "") -> "Absence":
        """A record for an item by its name, or for all of them if ``None``."""
        return cls(commit, WHOLE if item is None else _written(item), why, time_ns, origin)


_Records = dict[CommitId, tuple[Absence, ...]]


@dataclass(frozen=True, slots=True)
class _Read:
    """What was read of the file.

    Attributes:
        stamp: the file then; ``None`` if there was none, or part of a line at its end, which somebody may be writing.
        end: length of its whole lines in bytes.
        last: the last of these. No line is ever written twice, so where it stands, all before it does.
        records: by commit. Grows when lines are added, in any thread: adding them again changes nothing.
        problems: damaged lines.
    """

    stamp: Fingerprint | None
    end: int
    last: bytes
    records: _Records
    problems: tuple[str, ...]


_NOTHING = _Read(None, 0, b"", {}, ())


class Absences:
    """The absence records of one store. Thread-safe; processes meet at ``absent.lock``.

    Args:
        root: the store.
        files: does the I/O.
    """

    def __init__(self, root: Path, files: Files) -> None:
        self._files = files
        self._path = root / "absent"
        self._lock = root / "absent.lock"
        self._read = _NOTHING

    # --- asking -----------------------------------------------------------------------------------------------------

    def of(self, commit: CommitId) -> frozenset[str]:
        """Names of the items that a commit lacks; just ``WHOLE`` if it lacks all. One called ``*`` is ``%2A`` here.

        Cost: a ``stat``; what was appended since is read, all of it only after records were withdrawn.
        """
        found = {record.item for record in self.records(commit)}
        return frozenset((WHOLE,)) if WHOLE in found else frozenset(map(_name, found))

    def records(self, commit: CommitId) -> tuple[Absence, ...]:
        """The records of a commit. Cost: as :meth:`of`."""
        return self._current().records.get(commit, ())

    def lacks(self, commit: CommitId, item: str) -> bool:
        """Whether a commit lacks an item. Cost: as :meth:`of`."""
        return self.reason(commit, item) is not None

    def reason(self, commit: CommitId, item: str | None = None) -> Absence | None:
        """The record that says that a commit lacks an item, or, if ``None``, all of them. Cost: as :meth:`of`."""
        return first_for(self.records(commit), item)

    def all(self) -> Mapping[CommitId, tuple[Absence, ...]]:
        """All records, by commit."""
        return dict(self._current().records)

    def problems(self) -> tuple[str, ...]:
        """Damaged lines, in words."""
        return self._current().problems

    def require(self, commit: CommitId, item: str | None = None) -> None:
        """See that a commit has an item, or, if ``None``, that it has not lost all of them.

        Raises:
            Pruned: it lacks it.
        """
        record = self.reason(commit, item)
        if record is not None:
            raise _absent(record, item)

    # --- changing ---------------------------------------------------------------------------------------------------

    @contextmanager
    def kept(self) -> Iterator[None]:
        """Keep records from being added meanwhile: hold this from finding a commit whole until something names it.

        Not within a transaction of the index: others hold this while they wait for one.
        """
        with self._locked(exclusive=False):
            yield

    @contextmanager
    def adding(self) -> Iterator[Callable[[Iterable[Absence]], None]]:
        """Be the only one to add records: hold this from looking at what is protected until they are added.

        Gives what adds them durably, those that are there already aside; it raises OSError if it added none.
        """
        with self._locked(exclusive=True):
            self._cut_torn()
            yield self._append

    def add(self, records: Iterable[Absence]) -> None:
        """Add records durably, those that are there already aside.

        Raises:
            OSError: none was added.
        """
        with self.adding() as add:
            add(records)

    def settle(self) -> None:
        """See that every record that can be read is durable, also one whose writer died: before a sweep acts on it.

        Not within a transaction of the index, as :meth:`kept`.

        Raises:
            OSError: they may not be.
        """
        if self._files.fingerprint(self._path) is not None:
            with self._locked(exclusive=True):
                self._cut_torn()
                self._files.append_durable(self._path, b"")
                self._files.sync_directory(self._path.parent)  # its first writer may have died before that

    def withdraw(self, commit: CommitId, items: Iterable[str] | None = None) -> None:
        """Take back the records of a commit whose content is here again: of some items, or all if ``None``.

        Raises:
            OSError: they stand.
        """
        gone = None if items is None else {_written(item) for item in items}
        with self._locked(exclusive=True):
            self._cut_torn()
            lines = self._lines()
            self._put(lines, [line for line in lines if not _is_withdrawn(line, commit, gone)])

    def replace(self, records: Mapping[CommitId, Iterable[Absence]]) -> None:
        """Give commits other records than they have, all at once; none to take back what they have.

        Raises:
            OSError: those that they have stand.
        """
        with self._locked(exclusive=True):
            self._cut_torn()
            lines = self._lines()
            decoded = {line: decode_record(line.rstrip(b"\n")) for line in lines}
            kept = [line for line, record in decoded.items() if record is None or record.commit not in records]
            self._put(lines, [*kept, *(encode_record(record) for given in records.values() for record in given)])

    # --- how --------------------------------------------------------------------------------------------------------

    def _append(self, records: Iterable[Absence]) -> None:
        known = self._current().records
        lines = [
            encode_record(record)
            for record in dict.fromkeys(records)
            if not any(other.item in (record.item, WHOLE) for other in known.get(record.commit, ()))
        ]
        if lines:
            self._files.append_durable(self._path, b"".join(lines))

    def _put(self, before: Sequence[bytes], lines: Sequence[bytes]) -> None:
        """Put other lines in the place of those there are, if they differ."""
        if lines != before:
            self._files.write_atomic(self._path, b"".join(lines))

    def _locked(self, *, exclusive: bool) -> FileLock:
        return self._files.lock_exclusive(self._lock) if exclusive else self._files.lock_shared(self._lock)

    def _lines(self) -> list[bytes]:
        try:
            return self._files.read_bytes(self._path).splitlines(keepends=True)
        except FileNotFoundError:
            return []

    def _cut_torn(self) -> None:
        """What is added next must not become part of a line that a writer did not finish."""
        whole_bytes = self._current().end
        found = self._files.fingerprint(self._path)
        if found is not None and found[1] > whole_bytes:
            self._files.truncate(self._path, whole_bytes)

    def _current(self) -> _Read:
        stamp = self._files.fingerprint(self._path)
        seen = self._read
        if stamp is None:
            return _NOTHING
        if stamp == seen.stamp:
            return seen
        current = self._continued(seen, stamp)
        self._read = current  # threads that read the same file at once come to the same
        return current

    def _continued(self, seen: _Read, stamp: Fingerprint) -> _Read:
        """What was read, and what was appended since; all anew if the file is another."""
        try:
            handle = self._files.open_read(self._path)
        except FileNotFoundError:
            return _NOTHING
        with handle:
            start = seen.end - len(seen.last)
            tail = handle.pread(start, handle.size - start)
            if seen.last and tail.startswith(seen.last):
                return _extended(seen, stamp, tail[len(seen.last) :])
            return _extended(_Read(None, 0, b"", {}, ()), stamp, handle.pread(0, handle.size))


def first_for(records: Iterable[Absence], item: str | None) -> Absence | None:
    """Of one commit's records the first for an item, or, if ``None``, for all of them."""
    wanted = {WHOLE} if item is None else {WHOLE, _written(item)}
    return next((record for record in records if record.item in wanted), None)


class Records(Protocol):
    """Absence records, wherever they are from: a store's are :class:`Absences`."""

    def records(self, commit: CommitId) -> tuple[Absence, ...]:
        """The records of a commit."""
        ...

    def reason(self, commit: CommitId, item: str | None = None) -> Absence | None:
        """The record that says that a commit lacks an item, or, if ``None``, all of them."""
        ...


def expected_items(commit: Commit, absences: Records, commit_id: CommitId | None = None) -> Mapping[str, TreeId]:
    """The items of a commit that must be whole, with their trees.

    Args:
        commit: the commit.
        absences: what may be missing.
        commit_id: its id, if known: else it is hashed.
    """
    absent = {record.item for record in absences.records(commit.id if commit_id is None else commit_id)}
    if not absent:
        return commit.items
    return {item: tree for item, tree in commit.items.items() if absent.isdisjoint((WHOLE, _written(item)))}


def _absent(record: Absence, item: str | None) -> Pruned:
    commit = short(record.commit)
    others = "load the others by name, or pick another revision, see `moonclip log`"
    if record.item == WHOLE:
        message = {
            Why.PRUNED: f"commit {commit} was pruned: its history stays, its tensors are gone",
            Why.COLLECTED: f"nothing led to commit {commit} any more, and its tensors were collected by gc",
            Why.SHALLOW: f"commit {commit} lies beyond what was fetched: its history is here, its tensors are not",
            Why.PARTIAL: f"of commit {commit} only the history was fetched",
        }[record.why]
        others = "pick another revision, see `moonclip log`"
    elif record.why is Why.PRUNED:
        message = f"the item {unquote(record.item)!r} of commit {commit} was pruned: its tensors are gone"
    else:
        message = f"the item {unquote(record.item)!r} of commit {commit} was not fetched"
    command = f"`moonclip fetch {record.origin} --commit {commit}`"
    origin = f"fetch it from {record.origin} with {command}, or " if record.origin else ""
    return Pruned(
        f"{message}; {origin}{others}",
        commit=record.commit.hex(),
        item=item,
        why=record.why.value,
        time_ns=record.time_ns,
        origin=record.origin,
    )


# --- lines ----------------------------------------------------------------------------------------------------------


def intact_lines(data: bytes) -> list[bytes]:
    """The lines of a file of records as they are stored, without those that are none."""
    return [line + b"\n" for line in data.split(b"\n")[:-1] if decode_record(line) is not None]


def _written(item: str) -> str:
    return quote(item, safe="")


def _name(written: str) -> str:
    """How callers see it: as it is called, unless they would take that for :data:`WHOLE`."""
    return written if written == _written(WHOLE) else unquote(written)


def encode_record(record: Absence) -> bytes:
    """The line of a record, with its newline."""
    origin = f" {quote(record.origin, safe=':/@')}" if record.origin else ""
    return f"{record.commit.hex()} {record.item} {record.why} {record.time_ns}{origin}\n".encode()


def decode_record(line: bytes) -> Absence | None:
    """The record that a line, without its newline, is; ``None`` if it is none."""
    match = _LINE.fullmatch(line.decode("ascii", "replace"))
    if match is None or (match[2] != WHOLE and _written(unquote(match[2])) != match[2]):
        return None
    commit, item, why, time_ns, origin = match.groups()
    return Absence(CommitId(ObjectId(bytes.fromhex(commit))), item, Why(why), int(time_ns), unquote(origin or ""))


def _extended(read: _Read, stamp: Fingerprint, appended: bytes) -> _Read:
    *lines, torn = appended.split(b"\n")
    problems = list(read.problems)
    for line in lines:
        record = decode_record(line)
        if record is None:
            problems.append(f"the file 'absent' has a damaged line, which permits nothing: {line[:100]!r}")
            _log.warning("%s", problems[-1])
            continue
        known = read.records.get(record.commit, ())
        if record not in known:
            read.records[record.commit] = (*known, record)
    last = lines[-1] + b"\n" if lines else read.last
    end = read.end + len(appended) - len(torn)
    return _Read(None if torn else stamp, end, last, read.records, tuple(problems))


def _is_withdrawn(line: bytes, commit: CommitId, items: set[str] | None) -> bool:
    record = decode_record(line.rstrip(b"\n"))
    return record is not None and record.commit == commit and (items is None or record.item in items)
