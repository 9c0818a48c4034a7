import threading
from collections.abc import Callable

from store.index.gate import Gate


def in_thread(body: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=body)
    thread.start()
    return thread


def test_closing_waits_for_whoever_is_inside_and_keeps_others_out() -> None:
    gate = Gate()
    seen: list[str] = []
    gate.enter()

    def close_and_open() -> None:
        with gate.closed():
            seen.append("closed")

    def enter_and_leave() -> None:
        gate.enter()
        seen.append("entered")
        gate.leave()

    closing = in_thread(close_and_open)
    while not gate._is_closed:
        pass
    entering = in_thread(enter_and_leave)
    gate.enter()  # again, by who is inside
    gate.leave()
    assert seen == []
    gate.leave()
    closing.join()
    entering.join()
    assert seen == ["closed", "entered"]


def test_who_is_inside_can_close_it() -> None:
    gate = Gate()
    gate.enter()
    with gate.closed():
        assert gate.is_inside
    gate.leave()
    assert not gate.is_inside


def test_many_threads_pass_a_gate_that_is_closed_again_and_again() -> None:
    gate, inside, worst = Gate(), [0], [0]
    lock = threading.Lock()

    def pass_often() -> None:
        for _ in range(300):
            gate.enter()
            with lock:
                inside[0] += 1
            with lock:
                inside[0] -= 1
            gate.leave()

    threads = [in_thread(pass_often) for _ in range(4)]
    for _ in range(100):
        with gate.closed():
            worst[0] = max(worst[0], inside[0])
    for thread in threads:
        thread.join()
    assert worst == [0]
