"""The hook ahead of every step, made and taken away by threads, signal handlers and forks that come in between."""

import os
import signal
import sys
import threading
from collections.abc import Callable
from functools import partial
from itertools import product
from types import FrameType
from typing import Any

import pytest
import torch
from torch.optim.optimizer import _global_optimizer_pre_hooks

from moonclip.capture import guard as module
from moonclip.capture.guard import Guard, guard_of_steps

_HANG_SECONDS = 20


def at_each_call(
    run: Callable[[], object], interrupt: Callable[[], object], *, prepare: Callable[[], object] = lambda: None
) -> None:
    """Run something again and again, each time interrupted once: at the next place where signals are handled.

    These are calls and returns. Only those of the guards' module count, and of what a weak set runs on its behalf.
    """
    number = 0
    prepare()
    while interrupted_at(number, run, interrupt):
        number += 1
        prepare()
    assert number


def interrupted_at(number: int, run: Callable[[], object], interrupt: Callable[[], object]) -> bool:
    passed = 0

    def profile(frame: FrameType, event: str, arg: Any) -> None:
        nonlocal passed
        if frame.f_code.co_filename.endswith(("/guard.py", "_weakrefset.py")):
            passed += 1
            if passed == number + 1:
                sys.setprofile(None)
                interrupt()

    sys.setprofile(profile)
    try:
        run()
    finally:
        sys.setprofile(None)
    return passed > number


def in_a_thread(call: Callable[[], object]) -> None:
    """Call it in another thread, and be sure that it ends as it should."""
    ended: list[bool] = []
    thread = threading.Thread(target=lambda: ended.append(call() is None), daemon=True)
    thread.start()
    thread.join(_HANG_SECONDS)
    assert ended


def step() -> None:
    parameter = torch.nn.Parameter(torch.ones(3))
    parameter.grad = torch.ones(3)
    torch.optim.SGD([parameter], lr=0.1).step()


def hooks() -> int:
    return len(_global_optimizer_pre_hooks)


def test_managers_come_and_go_in_another_thread_while_a_step_asks_whom_to_wait_for() -> None:
    guards: list[Guard] = []

    def come() -> None:
        guards.append(guard_of_steps())

    def go() -> None:
        guards.pop().close()

    def leave_three() -> None:
        while len(guards) > 3:
            go()
        while len(guards) < 3:
            come()

    for interrupt in (come, go):
        at_each_call(step, partial(in_a_thread, interrupt), prepare=leave_three)
    for guard in guards:
        guard.close()


def test_a_signal_handler_may_close_and_make_managers_while_one_is_closed_or_made() -> None:
    before = hooks()
    kept: list[Guard] = []

    def make() -> None:
        kept.append(guard_of_steps())

    def close_all() -> None:
        while kept:
            kept.pop().close()

    def check(guard: Guard) -> None:
        known = {one() for one in module._hook.guards}
        assert guard not in known and known >= set(kept)
        assert (hooks() > before) == bool(known)
        close_all()
        assert hooks() == before

    def make_and_close(begin: Callable[[], None]) -> None:
        begin()
        guard = guard_of_steps()
        guard.close()
        check(guard)

    for begin, interrupt in product((make, close_all), (make, close_all)):
        in_a_thread(partial(at_each_call, partial(make_and_close, begin), interrupt))


@pytest.mark.filterwarnings("ignore:This process.*is multi-threaded:DeprecationWarning")
def test_a_child_that_is_forked_while_a_manager_is_made_makes_its_own() -> None:
    statuses: list[int] = []

    def fork() -> None:
        child = os.fork()
        if not child:
            signal.alarm(_HANG_SECONDS)
            guard_of_steps().close()
            os._exit(0)
        statuses.append(os.waitpid(child, 0)[1])

    at_each_call(lambda: guard_of_steps().close(), lambda: in_a_thread(fork))
    assert statuses and not any(statuses)
