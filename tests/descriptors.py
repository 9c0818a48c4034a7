"""What descriptors this process has open, as tests of leaks ask."""

import gc
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path


def opened() -> dict[int, str]:
    """Each open descriptor with what it stands for; empty for the one that the list is read by."""
    return {int(fd.name): _target(fd) for fd in Path("/proc/self/fd").iterdir()}


@contextmanager
def left_open(count: int = 0) -> Iterator[None]:
    """Fail if the block leaves more than ``count`` descriptors open that were not before.

    Those that go meanwhile are nobody's leak: what earlier tests left in cycles may be closed at any moment.
    """
    gc.collect()
    before = opened()
    yield
    new = {fd: target for fd, target in opened().items() if target and before.get(fd) != target}
    assert len(new) <= count, new


def _target(fd: Path) -> str:
    with suppress(FileNotFoundError):
        return str(fd.readlink())
    return ""
