"""Tasks that several threads do abreast: in order, the first error told, and none goes on once nobody waits."""

import signal
import threading
from collections.abc import Iterator
from contextlib import contextmanager

import pytest

from moonclip.exchange.abreast import Proceed, StoppedError, abreast


def go_on(proceed: Proceed) -> None:
    """What takes for ever, unless it is stopped."""
    while True:
        proceed()


def left() -> list[threading.Thread]:
    return [thread for thread in threading.enumerate() if thread.name == "moonclip-abreast"]


def test_all_are_done_once_the_wait_is_over() -> None:
    done: set[int] = set()
    with abreast(range(100), 3, lambda number, _: done.add(number)) as wait:
        wait()
        assert done == set(range(100))


def test_nothing_to_do() -> None:
    with abreast([], 3, lambda _, proceed: go_on(proceed)) as wait:
        wait()


def test_no_more_than_so_many_are_done_at_once() -> None:
    both = threading.Barrier(2)
    begun: list[int] = []

    def act(number: int, _: Proceed) -> None:
        begun.append(number)
        both.wait(60)

    with abreast(range(4), 2, act) as wait:
        wait()
    assert sorted(begun[:2]) == [0, 1]


def test_what_one_raises_ends_the_others() -> None:
    others = threading.Barrier(3)
    stopped: list[int] = []

    def act(number: int, proceed: Proceed) -> None:
        others.wait(60)
        if number == 1:
            raise OSError("cannot be written")
        try:
            go_on(proceed)
        except StoppedError:
            stopped.append(number)
            raise

    with pytest.raises(OSError, match="cannot be written"), abreast(range(9), 3, act) as wait:
        wait()
    assert sorted(stopped) == [0, 2]


def test_at_the_end_nothing_is_done_any_more_though_nobody_waited() -> None:
    begun = threading.Barrier(3)
    running: set[int] = set()

    def act(number: int, proceed: Proceed) -> None:
        running.add(number)
        begun.wait(60)
        try:
            go_on(proceed)
        finally:
            running.discard(number)

    with abreast(range(9), 2, act):
        begun.wait(60)
    assert not running


@contextmanager
def interrupts() -> Iterator[threading.Event]:
    """Have SIGINT raise KeyboardInterrupt, and say that it did."""
    handled = threading.Event()

    def interrupted(_number: int, _frame: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        yield handled
    finally:
        signal.signal(signal.SIGINT, before)


def test_an_interrupt_ends_what_is_being_done() -> None:
    running: set[int] = set()

    with interrupts() as handled:

        def act(number: int, proceed: Proceed) -> None:
            running.add(number)
            while not handled.wait(timeout=0.1):
                signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
            try:
                go_on(proceed)
            finally:
                running.discard(number)

        with pytest.raises(KeyboardInterrupt), abreast(range(9), 2, act) as wait:
            wait()
    assert not running


def test_an_interrupt_of_the_end_is_raised_once_all_have_ended() -> None:
    running: set[int] = set()
    begun = threading.Barrier(3)

    with interrupts() as handled:

        def act(number: int, proceed: Proceed) -> None:
            running.add(number)
            begun.wait(60)
            try:
                go_on(proceed)
            finally:
                while not handled.wait(timeout=0.1):
                    signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
                running.discard(number)

        with pytest.raises(KeyboardInterrupt), abreast(range(9), 2, act):
            begun.wait(60)
    assert not running


@pytest.mark.parametrize("error", [OSError, MemoryError, KeyboardInterrupt])
def test_where_no_thread_can_be_started_who_waits_does_it(
    monkeypatch: pytest.MonkeyPatch, error: type[BaseException]
) -> None:
    def refuse(_: threading.Thread) -> None:
        raise RuntimeError("can't start new thread")

    def act(number: int, _: Proceed) -> None:
        done.append(number)
        if number == 2:
            raise error("no")

    done: list[int] = []
    monkeypatch.setattr(threading.Thread, "start", refuse)
    with pytest.raises(error, match="no"), abreast(range(9), 3, act) as wait:
        wait()
    assert done == [0, 1, 2]
