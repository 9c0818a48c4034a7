"""Threads that run batches of tasks."""

import gc
import os
import signal
import subprocess
import sys
import threading
import weakref
from pathlib import Path
from queue import SimpleQueue
from types import FrameType
from typing import Any

import pytest

from store import parallel
from store.errors import Incompatible, MoonclipError
from store.parallel import Threads, default_thread_count
from tests.indexing import REPOSITORY


@pytest.mark.parametrize(("thread_count", "task_count"), [(1, 0), (1, 5), (4, 0), (4, 1), (4, 1000)])
def test_every_task_is_run_once(thread_count: int, task_count: int) -> None:
    threads, done = Threads(thread_count), list[int]()
    threads.run(done.append, range(task_count))
    threads.run(done.append, range(task_count))
    threads.close()
    assert sorted(done) == sorted([*range(task_count), *range(task_count)])


def test_tasks_run_at_the_same_time() -> None:
    threads, barrier = Threads(3), threading.Barrier(3)

    def work(_: int) -> None:
        barrier.wait(timeout=60)

    threads.run(work, range(3))
    threads.close()


def test_the_first_error_is_raised_as_it_was_and_the_rest_is_skipped() -> None:
    threads, done = Threads(1), []

    def work(number: int) -> None:
        if number == 3:
            raise KeyError(number)
        done.append(number)

    with pytest.raises(KeyError, match="3"):
        threads.run(work, range(10))
    assert done == [0, 1, 2]
    threads.run(done.append, [99])  # it goes on
    assert done[-1] == 99
    threads.close()


def test_what_ends_a_thread_reaches_the_caller() -> None:
    threads = Threads(2)

    def leave(_: int) -> None:
        raise SystemExit(3)

    with pytest.raises(SystemExit):
        threads.run(leave, range(2))
    threads.close()


def test_several_callers_share_the_threads() -> None:
    threads, done, lock = Threads(2), set(), threading.Lock()

    def work(task: tuple[int, int]) -> None:
        with lock:
            done.add(task)

    callers = [
        threading.Thread(target=threads.run, args=(work, [(caller, number) for number in range(200)]))
        for caller in range(4)
    ]
    for caller in callers:
        caller.start()
    for caller in callers:
        caller.join()
    threads.close()
    assert len(done) == 800


def test_an_interrupted_caller_waits_for_tasks_that_run() -> None:
    """They still write into the caller's memory."""
    threads, handled, done = Threads(1), threading.Event(), []

    def interrupted(_number: int, _frame: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def work(number: int) -> None:
        while not handled.wait(timeout=0.1):  # a signal just before the caller begins to wait is seen only later
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        done.append(number)

    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            threads.run(work, range(100))
    finally:
        signal.signal(signal.SIGINT, before)
    assert 0 < len(done) < 100
    left = len(done)
    threads.run(lambda _: None, [0])  # whatever still ran would run before this
    threads.close()
    assert len(done) == left


def test_a_forked_child_has_threads_of_its_own() -> None:
    threads = Threads(2)
    child = os.fork()
    if child == 0:
        done: list[int] = []
        threads.run(done.append, range(10))
        os._exit(0 if sorted(done) == list(range(10)) else 1)
    _, status = os.waitpid(child, 0)
    threads.close()
    assert status == 0


def test_tasks_that_run_tasks_in_the_same_threads_wait_for_nobody() -> None:
    threads, done = Threads(2), SimpleQueue[int]()
    threads.run(lambda tens: threads.run(lambda ones: done.put(10 * tens + ones), range(3)), range(4))
    assert sorted(done.get_nowait() for _ in range(done.qsize())) == [
        10 * tens + ones for tens in range(4) for ones in range(3)
    ]
    with pytest.raises(ZeroDivisionError):
        threads.run(lambda _: threads.run(lambda number: 1 / number, [1, 0]), [1, 2])  # type: ignore[arg-type,return-value]
    threads.close()


class Buffer:
    """Something large."""


def test_idle_threads_keep_nothing_alive() -> None:
    threads, buffer = Threads(2), Buffer()
    gone = weakref.ref(buffer)
    threads.run(lambda _, held=buffer: None, [buffer, buffer])  # type: ignore[misc]
    del buffer
    for _ in range(200):  # they let go of it soon after they have told that they are done
        gc.collect()
        if gone() is None:
            break
    assert gone() is None
    threads.close()


AT_EXIT = """
import atexit
from store.errors import MoonclipError
from store.parallel import Threads
threads = Threads(2)
done = []
atexit.register(lambda: print(sorted(done)))
atexit.register(lambda: threads.run(done.append, range(5)))
"""


def test_they_work_while_the_interpreter_shuts_down() -> None:
    printed = subprocess.run(
        [sys.executable, "-c", AT_EXIT], cwd=REPOSITORY, capture_output=True, check=True, text=True
    )
    assert printed.stdout.split("\n")[0] == "[0, 1, 2, 3, 4]"
    assert printed.stderr == ""


@pytest.fixture
def eight_cpus(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """A machine with eight CPUs and no quota; gives the file for that."""
    for name in ("MOONCLIP_THREADS", "LOCAL_WORLD_SIZE"):
        monkeypatch.delenv(name, raising=False)
    monkeypatch.setattr(os, "sched_getaffinity", lambda _: set(range(8)))
    monkeypatch.setattr(parallel, "_QUOTA", tmp_path / "cpu.max")
    return tmp_path / "cpu.max"


@pytest.mark.usefixtures("eight_cpus")
@pytest.mark.parametrize(
    ("told", "ranks", "expected"),
    [(None, None, 8), ("", "", 8), ("3", None, 3), ("3", "4", 3), (None, "4", 2), (None, "3", 2), (None, "16", 1)]
    + [(None, ranks, 8) for ranks in ("0", "-2", "many", "2.0", " 2", "²")],
)
def test_as_many_threads_as_one_is_told_or_as_there_are_cpus_for_each_rank(
    monkeypatch: pytest.MonkeyPatch, told: str | None, ranks: str | None, expected: int
) -> None:
    for name, value in (("MOONCLIP_THREADS", told), ("LOCAL_WORLD_SIZE", ranks)):
        if value is not None:
            monkeypatch.setenv(name, value)
    assert default_thread_count() == expected


@pytest.mark.parametrize(
    ("quota", "expected"),
    [("max 100000", 8), ("350000 100000", 3), ("50000 100000", 1), ("9900000 100000", 8), ("", 8), ("1 2 3", 8)],
)
def test_no_more_threads_than_the_quota_of_a_container_is_worth(eight_cpus: Path, quota: str, expected: int) -> None:
    eight_cpus.write_text(quota)
    assert default_thread_count() == expected


@pytest.mark.parametrize("told", ["0", "-1", "two", "1.5", " 2", "1025", "²"])
def test_a_number_of_threads_that_is_none_is_refused(monkeypatch: pytest.MonkeyPatch, told: str) -> None:
    monkeypatch.setenv("MOONCLIP_THREADS", told)
    with pytest.raises(Incompatible, match=f"MOONCLIP_THREADS is '{told}'; it must be a number from 1 to"):
        default_thread_count()


def test_closed_threads_refuse_instead_of_waiting_for_ever() -> None:
    threads = Threads(1)
    threads.close()
    with pytest.raises(MoonclipError, match="closed"):
        threads.run(print, [1])


def test_an_interrupt_between_any_two_steps_leaves_no_task_running_and_the_threads_usable() -> None:
    """A handler of a signal may raise before each line of the caller: also with a lock just taken, or a task given."""
    threads, lines_until, is_over = Threads(2), 0, False
    while not is_over:
        is_over = not _interrupted_after(lines_until, threads)
        lines_until += 1
    threads.close()
    assert lines_until > 10


def _interrupted_after(line_count: int, threads: Threads) -> bool:
    """Run tasks and raise before so many lines are executed in the caller's thread; whether there were as many."""
    left, running, done = line_count, set[int](), list[int]()

    def work(_: int) -> None:
        running.add(threading.get_ident())
        sum(range(1_000))
        running.discard(threading.get_ident())

    def trace(frame: FrameType, _event: str, _argument: object) -> Any:
        nonlocal left
        frame.f_trace_opcodes = True
        left -= 1
        if left == 0:
            sys.settrace(None)
            raise KeyboardInterrupt
        return trace

    sys.settrace(trace)
    try:
        threads.run(work, range(50))
    except KeyboardInterrupt:
        assert not running
    finally:
        sys.settrace(None)
    threads.run(done.append, range(10))
    assert sorted(done) == list(range(10))
    return left <= 0


@pytest.mark.parametrize("delay_us", [1, 50, 500, 5_000])
def test_an_interrupt_leaves_no_task_running_and_the_threads_usable(delay_us: int) -> None:
    threads = Threads(2)
    running: set[int] = set()

    def work(_: int) -> None:
        running.add(threading.get_ident())
        sum(range(20_000))
        running.discard(threading.get_ident())

    def interrupt(*_: object) -> None:
        raise KeyboardInterrupt

    before = signal.signal(signal.SIGALRM, interrupt)
    try:
        with pytest.raises(KeyboardInterrupt):
            signal.setitimer(signal.ITIMER_REAL, delay_us / 1e6)
            while True:
                threads.run(work, range(50))
        assert not running
    finally:
        signal.setitimer(signal.ITIMER_REAL, 0)
        signal.signal(signal.SIGALRM, before)
    done: list[int] = []
    threads.run(done.append, range(10))
    threads.close()
    assert sorted(done) == list(range(10))
