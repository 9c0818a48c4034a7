"""Processor time and memory of this process and of all that it started."""

import os
import resource
import signal
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Final

_PROCESS_CLOCK: Final = 2
"""``CPUCLOCK_SCHED`` of the kernel: all threads of a process, to the nanosecond."""


def tree(pid: int) -> list[int]:
    """A process and its descendants that live."""
    children: dict[int, list[int]] = {}
    for entry in Path("/proc").iterdir():
        if entry.name.isdecimal() and (parent := _parent(int(entry.name))) is not None:
            children.setdefault(parent, []).append(int(entry.name))
    found = [pid]
    for process in found:
        found += children.get(process, [])
    return found


def tree_cpu_s() -> float:
    """Processor seconds of this process, of its living descendants, and of children that have ended."""
    ended = resource.getrusage(resource.RUSAGE_CHILDREN)
    return ended.ru_utime + ended.ru_stime + sum(_cpu_s(pid) for pid in tree(os.getpid()))


def descendants_cpu_s() -> float:
    """Processor seconds of what this process started and what lives."""
    return sum(_cpu_s(pid) for pid in tree(os.getpid())[1:])


@contextmanager
def descendants_stopped() -> Iterator[None]:
    """Have all that this process started stand still: what it does itself is then all that its work costs."""
    others = tree(os.getpid())[1:]
    try:
        for pid in others:
            os.kill(pid, signal.SIGSTOP)
        yield
    finally:
        for pid in others:
            os.kill(pid, signal.SIGCONT)


def forget_peak() -> None:
    """Let the peak of the resident size begin anew."""
    Path("/proc/self/clear_refs").write_text("5")


def peak_rss_bytes() -> int:
    """The most that was resident since the last :func:`forget_peak`."""
    status = Path("/proc/self/status").read_text()
    return next(int(line.split()[1]) << 10 for line in status.splitlines() if line.startswith("VmHWM"))


def _parent(pid: int) -> int | None:
    try:
        return int(Path(f"/proc/{pid}/stat").read_bytes().rpartition(b")")[2].split()[1])
    except (OSError, IndexError):  # it ended meanwhile
        return None


def _cpu_s(pid: int) -> float:
    try:
        return time.clock_gettime((~pid << 3) | _PROCESS_CLOCK)
    except OSError:  # it ended meanwhile; once waited for, it counts among the children
        return 0.0
