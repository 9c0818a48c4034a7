"""The index in LMDB.

| table | key | value |
|---|---|---|
| objects | object id + pack number | place |
| packs | pack number | pack id |
| numbers | pack id | pack number |
| commits | commit id | row |
| sequence | order of arrival, from 1 without gaps | commit id |
| sequence | 0 | the last of these |
| deltas | base's id + object id + pack number | nothing: that this copy is stored against that base |
| layout | ``layout`` | which tables there are |

No transaction outlives a call.
"""

import logging
import threading
from collections.abc import Callable, Collection, Iterator
from contextlib import AbstractContextManager
from functools import partial
from itertools import islice
from pathlib import Path
from typing import Final, Protocol, TypeVar

from ..errors import Busy
from ..ids import CommitId, ObjectId, PackId
from ..limits import INDEX_ATTEMPTS
from .depths import with_bases
from .environment import Environment, Superseded
from .records import SEQUENCE_KEY, BrokenIndex, CommitRow, Place, Version, WalkedPlace, unseal
from .sharing import close_environment, guard
from .transaction import COMMITS, PACKS, SEQUENCE, Transaction
from .walking import Walk
from .writer import IndexWriter, last_sequence, places_of, places_of_each, row_of

T = TypeVar("T")

_log = logging.getLogger(__name__)

_PAGE_COUNT: Final = 1000


class Source(Protocol):
    """Where the index in use is; ``store.opening.generations.Generations`` says."""

    def attach(self) -> Environment:
        """Open the environment in use.

        Raises:
            BrokenIndex: there is none, or it is damaged.
        """
        ...

    def writing(self) -> AbstractContextManager[Path]:
        """Keep rebuilds away meanwhile; gives the directory in use."""
        ...

    def renew(self, seen: Path | None, *, is_broken: bool) -> None:
        """Rebuild the index, unless somebody has since the one at ``seen`` was found wanting."""
        ...


class LmdbIndex:
    """An index on disk. Thread-safe, may be used across a fork, and beside other processes.

    When another process has rebuilt the index, this one goes on with the new one by itself. One that may write and
    finds its index damaged rebuilds it.

    Args:
        source: where the index in use is.
        environment: opened by ``source``; closed by :meth:`close`.
        writable: whether :meth:`write` can be used.
    """

    def __init__(self, source: Source, environment: Environment, *, writable: bool) -> None:
        self.writable = writable
        self._source = source
        self._environment: Environment | None = environment
        self._is_closed = False
        self._writers: set[int] = set()
        self._bad: set[tuple[ObjectId, PackId]] = set()

    @property
    def path(self) -> Path:
        """Directory of the index in use."""
        return self._attached().path

    def version(self) -> Version | None:
        """What the index is now; ``None`` while copies that failed their check are still to be written down.

        Raises:
            BrokenIndex: the index is damaged.
        """
        if self._bad:
            return None
        return self._healed(lambda: self._in_use(_version_of))

    def places(self, object_id: ObjectId) -> list[Place]:
        """Good copies of an object, the shallowest first; none if it is unknown.

        Raises:
            BrokenIndex: the index is damaged.
        """
        return self._read(lambda transaction: places_of(transaction, object_id))

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """Of each object what :meth:`places` gives, all in one transaction.

        Raises:
            BrokenIndex: the index is damaged.

        Cost: 3 µs an object, 4 in an index of a million; :meth:`places` takes 11 and 13.
        """
        return self._read(lambda transaction: places_of_each(transaction, object_ids))

    def places_below(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        """The same, and of their bases, the bases of those, and so on.

        Raises:
            BrokenIndex: the index is damaged.

        Cost: as :meth:`places_of_each`, counting what is found.
        """
        return self._read(
            lambda transaction: with_bases(object_ids, lambda waiting: places_of_each(transaction, waiting))
        )

    def commit(self, commit_id: CommitId, /) -> CommitRow | None:
        """The row of a commit, or ``None`` if it is unknown.

        Raises:
            BrokenIndex: the index is damaged.
        """
        return self._read(lambda transaction: row_of(transaction, commit_id))

    def commits_with_prefix(self, prefix: str, /) -> list[CommitId]:
        """Ids of all commits whose hex form begins with ``prefix`` (lower case, any number of digits).

        Raises:
            BrokenIndex: the index is damaged.
        """
        whole_bytes = bytes.fromhex(prefix[: len(prefix) // 2 * 2])
        found = self._read(lambda transaction: transaction.prefixed(COMMITS, whole_bytes))
        return [CommitId(ObjectId(key)) for key, _ in found if key.hex().startswith(prefix)]

    def commits_since(self, sequence: int) -> Iterator[CommitRow]:
        """Rows of all commits that arrived at ``sequence`` or later, in order of arrival.

        Holds no transaction between commits.

        Raises:
            BrokenIndex: the index is damaged.
        """
        while rows := self._read(partial(_rows_since, sequence)):
            yield from rows
            sequence = rows[-1].sequence + 1

    def places_by_id(self) -> Iterator[list[WalkedPlace]]:
        """Every place there is, also of copies known to be bad, in the order of the objects' ids, page by page.

        Holds no transaction between pages. Places that are added or removed meanwhile may be among them or not.

        Raises:
            BrokenIndex: the index is damaged.

        Cost: 1.3 µs a place.
        """
        walk = Walk()
        while page := self._healed(lambda: self._in_use(walk.page)):
            yield page

    def packs(self) -> list[PackId]:
        """All packs whose objects are indexed.

        Raises:
            BrokenIndex: the index is damaged.
        """
        return self._read(lambda transaction: [PackId(unseal(key, record)) for key, record in transaction.items(PACKS)])

    def write(self, body: Callable[[IndexWriter], T]) -> T:
        """Change the index in one transaction, durable on return.

        Waits for a rebuild that is under way.

        Args:
            body: does the changes. It may be run again from its start. It must not write itself, nor fork.

        Raises:
            BrokenIndex: the index is damaged again after it was rebuilt.
            OSError: the disk is full or failed. Nothing was written.
            BaseException: whatever ``body`` raises. Nothing was written.
        """
        seen = self._environment
        try:
            return self._write(body)
        except BrokenIndex as error:
            self._heal(seen, error)
            return self._write(body)

    def check(self) -> None:
        """See that LMDB can be trusted with the index's file. Opening does so only now and then, this does it now.

        Raises:
            BrokenIndex: it cannot. Whatever is asked next finds the index broken too, and nothing is left to LMDB.

        Cost: 4 µs a page of 4 KiB, of which a million objects fill 40,000.
        """
        self._in_use(Environment.check)

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        """Remember that a copy failed its check.

        At once, or with the next write if a thread of this process is writing: that write may itself be what read the
        copy, or wait for whoever did.

        Raises:
            BrokenIndex: the index is damaged.
            OSError: the disk is full or failed.
        """
        self._bad.add((object_id, pack))
        if not self._attached().is_writing:
            self._write(lambda _: None)

    def outdated(self) -> None:
        """Hear that it tells of a pack that went before, and rebuild it if this handle may.

        Raises:
            BrokenIndex: it may not.
            OSError: the disk is full or failed.
        """
        seen = self._attached()
        error = BrokenIndex(f"index at {seen.path} tells of packs that are gone", path=str(seen.path))
        self._heal(seen, error)

    def close(self) -> None:
        """Close the environment, unless somebody else in this process has it open; again does nothing."""
        with guard:
            self._is_closed = True
            self._leave()

    # --- transactions -----------------------------------------------------------------------------------------------

    def _read(self, body: Callable[[Transaction], T]) -> T:
        return self._healed(lambda: self._in_use(lambda environment: environment.read(body)))

    def _healed(self, read: Callable[[], T]) -> T:
        seen = self._environment
        try:
            return read()
        except BrokenIndex as error:
            try:
                self._heal(seen, error)
            except OSError:  # a disk that is full must not keep anybody from reading
                raise error from None
            return read()

    def _in_use(self, ask: Callable[[Environment], T]) -> T:
        """Ask the environment in use, also if that changes meanwhile."""
        for _ in range(INDEX_ATTEMPTS):
            environment = self._attached()
            try:
                return ask(environment)
            except Superseded:
                self._follow(environment)
        raise _moves_on(self._attached())

    def _write(self, body: Callable[[IndexWriter], T]) -> T:
        self._writers.add(threading.get_ident())
        try:
            return self._write_once(body)
        finally:
            self._writers.discard(threading.get_ident())

    def _write_once(self, body: Callable[[IndexWriter], T]) -> T:
        for _ in range(INDEX_ATTEMPTS):
            with self._source.writing() as path:
                environment = self._attached()
                try:
                    if environment.path.name == path.name:
                        return self._write_in(environment, body)
                except Superseded:
                    pass
                self._follow(environment)
        raise _moves_on(self._attached())

    def _write_in(self, environment: Environment, body: Callable[[IndexWriter], T]) -> T:
        bad = list(self._bad)

        def write(transaction: Transaction) -> T:
            writer = IndexWriter(transaction, environment.key)
            for object_id, pack in bad:
                writer.mark_bad(object_id, pack)
            return body(writer)

        result = environment.write(write)
        self._bad.difference_update(bad)  # another thread may have written them meanwhile, and more may have come
        return result

    def _heal(self, seen: Environment | None, error: BrokenIndex) -> None:
        """Rebuild the index, unless this handle may not, or this thread is keeping rebuilds away."""
        if not self.writable or threading.get_ident() in self._writers:
            raise error
        _log.warning("%s; it is rebuilt from the packs", error)
        self._source.renew(seen.path if seen else None, is_broken=True)

    # --- following --------------------------------------------------------------------------------------------------

    def _attached(self) -> Environment:
        environment = self._environment
        if environment is not None:
            return environment
        with guard:
            if self._is_closed:
                raise ValueError("the index is closed")
            if self._environment is None:
                self._environment = self._source.attach()
            return self._environment

    def _follow(self, left: Environment) -> None:
        """Go on with the index that is in use now, unless another thread has done so."""
        with guard:
            if self._environment is left:
                self._leave()

    def _leave(self) -> None:
        environment, self._environment = self._environment, None
        if environment is not None:
            close_environment(environment)


def _moves_on(environment: Environment) -> Busy:
    path = str(environment.path)
    return Busy(f"the index at {path} is rebuilt as fast as it is opened; try again", path=path)


def _rows_since(sequence: int, transaction: Transaction) -> list[CommitRow]:
    first = max(sequence, 1)
    found = islice(transaction.items(SEQUENCE, SEQUENCE_KEY.pack(first)), _PAGE_COUNT)
    rows = [_arrived(transaction, number, *item) for number, item in enumerate(found, first)]
    if len(rows) < _PAGE_COUNT and first + len(rows) <= last_sequence(transaction):
        raise _lost(first + len(rows))
    return rows


def _arrived(transaction: Transaction, sequence: int, key: bytes, record: bytes) -> CommitRow:
    row = row_of(transaction, CommitId(ObjectId(unseal(key, record))))
    if row is None or (key, row.sequence) != (SEQUENCE_KEY.pack(sequence), sequence):
        raise _lost(sequence)
    return row


def _lost(sequence: int) -> BrokenIndex:
    return BrokenIndex(f"index: the commit that arrived as number {sequence} is lost; run `moonclip reindex`")


def _version_of(environment: Environment) -> Version:
    return environment.read(lambda transaction: Version(environment.key, transaction.number))
