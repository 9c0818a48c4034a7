"""The garbage collector, out of the way of saves and loads."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager


@contextmanager
def collector_paused() -> Iterator[None]:
    """No garbage collection while many objects are made that all live on, and hold no cycles; or while others wait.

    A state of twenty thousand tensors makes a hundred thousand of them. That calls for full collections, each of which
    looks at every object of the process, 50 ms each time, in vain. For the whole process: other threads wait for their
    garbage as long. Where collections are off already, they stay off.
    """
    if not gc.isenabled():
        yield
        return
    try:
        gc.disable()  # inside: an interrupt must not leave it off
        yield
    finally:
        gc.enable()
