"""A queue with a thread of its own: whoever has stopped it may give up what it was writing."""

import signal
import threading

import pytest

from store.disk.blockqueue import BlockQueue


def test_stopping_waits_for_what_is_being_written_though_finishing_was_interrupted() -> None:
    """The file is closed next, and its memory is another's."""
    handled, stopping, done = threading.Event(), threading.Event(), []

    def interrupted(_number: int, _frame: object) -> None:
        handled.set()
        raise KeyboardInterrupt

    def write(block: int) -> None:
        while not handled.wait(timeout=0.1):  # a signal just before the caller begins to wait is seen only later
            signal.pthread_kill(threading.main_thread().ident or 0, signal.SIGINT)
        assert stopping.wait(60)
        sum(range(1_000_000))
        done.append(block)

    queue = BlockQueue(write, "moonclip-test")
    before = signal.signal(signal.SIGINT, interrupted)
    try:
        with pytest.raises(KeyboardInterrupt):
            queue.put(1)
            queue.put(2)
            queue.finish()
    finally:
        signal.signal(signal.SIGINT, before)
    stopping.set()
    queue.stop()
    assert done == [1]


@pytest.mark.parametrize("has_begun", [False, True])
def test_what_is_handed_to_a_queue_that_was_stopped_is_refused(has_begun: bool) -> None:
    queue: BlockQueue[int] = BlockQueue(lambda _: None, "moonclip-test")
    if has_begun:
        queue.put(0)
    queue.stop()
    with pytest.raises(ValueError, match="stopped"):
        queue.put(1)
