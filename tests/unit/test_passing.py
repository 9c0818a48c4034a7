"""Pieces that several threads make and one takes: in order, in little memory, and without waiting for ever."""

import gc
import threading
import weakref
from collections.abc import Iterator
from typing import NamedTuple

import pytest

from moonclip.exchange.passing import pass_in_order
from store.parallel import Threads

_THREADS = 3
_ROOMS = _THREADS + 2


class Numbered(NamedTuple):
    number: int
    size_bytes: int


@pytest.fixture
def threads() -> Iterator[Threads]:
    made = Threads(_THREADS)
    yield made
    made.close()


def pieces(count: int) -> list[Numbered]:
    return [Numbered(number, 1 + number % 7) for number in range(count)]


def write(piece: Numbered, out: memoryview) -> None:
    out[:] = bytes([piece.number]) * len(out)


def test_pieces_are_taken_in_their_order_and_each_as_long_as_it_is(threads: Threads) -> None:
    taken: list[bytes] = []
    pass_in_order(pieces(50), threads, write, lambda data: taken.append(bytes(data)))
    assert taken == [bytes([piece.number]) * piece.size_bytes for piece in pieces(50)]


def test_nothing_to_pass(threads: Threads) -> None:
    pass_in_order([], threads, write, lambda _: pytest.fail("nothing was made"))


def test_no_memory_is_kept_until_somebody_collects_garbage(threads: Threads) -> None:
    """It is some tens of megabytes for each file of an export."""

    def make(piece: Numbered, out: memoryview) -> None:
        write(piece, out)

    gone = threading.Event()
    gc.disable()
    try:
        pass_in_order(pieces(50), threads, make, lambda _: None)
        weakref.finalize(make, gone.set)
        del make
        assert gone.wait(60)  # the thread that made the last one may be about to let go of it
    finally:
        gc.enable()


def test_the_first_piece_may_be_the_last_that_is_made(threads: Threads) -> None:
    """All memory but its own is full by then: it must not be given to those behind it."""
    others = threading.Semaphore(0)
    taken: list[int] = []

    def make(piece: Numbered, out: memoryview) -> None:
        if piece.number == 0:
            for _ in range(_ROOMS - 1):
                assert others.acquire(timeout=60)
        write(piece, out)
        if 0 < piece.number < _ROOMS:
            others.release()

    pass_in_order(pieces(30), threads, make, lambda data: taken.append(data[0]))
    assert taken == list(range(30))


def test_no_piece_is_made_where_one_lies_that_is_not_taken(threads: Threads) -> None:
    begun: set[int] = set()
    seen: list[int] = []
    lock = threading.Lock()
    all_begun = threading.Event()

    def make(piece: Numbered, out: memoryview) -> None:
        with lock:
            begun.add(piece.number)
            if len(begun) == _ROOMS:
                all_begun.set()
        write(piece, out)

    def take(data: memoryview) -> None:
        assert all_begun.wait(60)
        with lock:
            assert max(begun) < len(seen) + _ROOMS
        seen.append(data[0])

    pass_in_order(pieces(40), threads, make, take)
    assert seen == list(range(40))


@pytest.mark.parametrize("number", [0, 1, _ROOMS, 39])
def test_what_makes_fails(threads: Threads, number: int) -> None:
    taken: list[int] = []

    def make(piece: Numbered, out: memoryview) -> None:
        if piece.number == number:
            raise OSError("cannot be read")
        write(piece, out)

    with pytest.raises(OSError, match="cannot be read"):
        pass_in_order(pieces(40), threads, make, lambda data: taken.append(data[0]))
    assert taken == list(range(len(taken)))
    assert number not in taken
    pass_in_order(pieces(3), threads, write, lambda _: None)  # the threads are free again


@pytest.mark.parametrize("number", [0, 1, _ROOMS, 39])
def test_what_takes_fails(threads: Threads, number: int) -> None:
    taken: list[int] = []

    def take(data: memoryview) -> None:
        if data[0] == number:
            raise OSError("cannot be written")
        taken.append(data[0])

    with pytest.raises(OSError, match="cannot be written"):
        pass_in_order(pieces(40), threads, write, take)
    assert taken == list(range(number))
    assert not [thread for thread in threading.enumerate() if thread.name == "moonclip-take"]
    pass_in_order(pieces(3), threads, write, lambda _: None)
