"""Pieces of a file that several threads make and one takes, in their order."""

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from typing import Final, Generic, Protocol, TypeVar

from store.disk.blockqueue import BlockQueue
from store.limits import MAX_CHUNK_BYTES
from store.memory import fresh_pages
from store.parallel import Threads

MAX_PIECE_BYTES: Final = MAX_CHUNK_BYTES
"""Longer ones would take longer to begin with."""

_FURTHER_ROOMS: Final = 2
"""More pieces in memory than there are threads that make them: one is taken, one waits for that."""


class Piece(Protocol):
    """A run of bytes of a file."""

    @property
    def size_bytes(self) -> int:
        """Its length, ``MAX_PIECE_BYTES`` at most."""
        ...


P = TypeVar("P", bound=Piece)


def pass_in_order(
    pieces: Sequence[P],
    threads: Threads,
    make: Callable[[P, memoryview], None],
    take: Callable[[memoryview], None],
) -> None:
    """Make all pieces, and take each once it is made and all before it are taken.

    Args:
        pieces: in their order.
        threads: make them.
        make: writes a piece into memory of its length; called in any thread.
        take: called in one thread, which is none of these, with what was made of each. The memory is used again.

    Raises:
        BaseException: what ``make`` or ``take`` raises. Nothing is made or taken any more.

    Cost: memory of ``MAX_PIECE_BYTES`` for each thread and two more.
    """
    passing = _Passing(len(pieces), threads.count + _FURTHER_ROOMS, make, take)
    taking = BlockQueue(passing.take, "moonclip-take")  # it is not passing's own: a cycle would keep the memory
    try:
        threads.run(lambda numbered: passing.make(*numbered, taking), list(enumerate(pieces)))
        taking.finish()
    except BaseException:
        taking.stop()
        raise


class _Passing(Generic[P]):
    """Pieces between those who make them and who takes them.

    A piece is made in the memory of one before it that is taken: the first that is not taken always has some, so
    whoever makes that one waits for nobody.
    """

    def __init__(
        self,
        piece_count: int,
        room_count: int,
        make: Callable[[P, memoryview], None],
        take: Callable[[memoryview], None],
    ) -> None:
        self._make_into = make
        self._take_from = take
        self._rooms = [fresh_pages(MAX_PIECE_BYTES) for _ in range(min(piece_count, room_count))]
        self._changed = threading.Condition()
        self._made: dict[int, memoryview] = {}
        self._handed_count = self._taken_count = 0
        self._has_failed = False

    def make(self, number: int, piece: P, taking: BlockQueue[memoryview]) -> None:
        """Make a piece, and hand over all that are made up to the first that is not."""
        with self._changed:
            self._changed.wait_for(lambda: self._has_failed or number < self._taken_count + len(self._rooms))
        if self._has_failed:
            return  # whoever failed tells why
        with self._failing():
            made = memoryview(self._rooms[number % len(self._rooms)])[: piece.size_bytes]
            self._make_into(piece, made)
            with self._changed:
                self._made[number] = made
                while self._handed_count in self._made:
                    taking.put(self._made.pop(self._handed_count))
                    self._handed_count += 1

    def take(self, made: memoryview) -> None:
        """Take a piece, whose memory is free then."""
        with self._failing():
            self._take_from(made)
        with self._changed:
            self._taken_count += 1
            self._changed.notify_all()

    @contextmanager
    def _failing(self) -> Iterator[None]:
        """Wake those who would wait for ever once something fails."""
        try:
            yield
        except BaseException:
            with self._changed:
                self._has_failed = True
                self._changed.notify_all()
            raise
