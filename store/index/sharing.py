"""One environment a process, whatever path led to it, and forks that wait for its transactions to end."""

import os
import threading
from pathlib import Path

from .environment import Environment

guard = threading.RLock()
"""Held while environments are opened or closed, and during a fork: no child inherits a half-open one."""

_user_counts: dict[Environment, int] = {}


def open_environment(path: Path, *, map_bytes: int, locked: bool = True) -> Environment:
    """Open the environment in a directory, or share the one this process has open there.

    Args:
        path: an existing directory; symbolic links to one directory lead to one environment.
        map_bytes: size of the map to begin with; it grows when it is full.
        locked: whether LMDB takes part in its lock file; without it nothing can be written, and nobody else may write.

    Raises:
        BrokenIndex: what lies there is no intact environment.
        OSError: it cannot be opened.
    """
    with guard:
        environment = _shared(path) or Environment(path, map_bytes=map_bytes, locked=locked)
        _user_counts[environment] = _user_counts.get(environment, 0) + 1
        return environment


def close_environment(environment: Environment) -> None:
    """Close the environment once everybody who opened it has closed it."""
    with guard:
        _user_counts[environment] -= 1
        if _user_counts[environment] == 0:
            del _user_counts[environment]
            environment.close()


def _shared(path: Path) -> Environment | None:
    try:
        status = (path / "data.mdb").stat()
    except FileNotFoundError:
        return None
    key = (status.st_ino, status.st_dev)
    return next((environment for environment in _user_counts if environment.key == key), None)


def _before_fork() -> None:
    """A child must not inherit an open transaction: it would end the parent's when it closes its handle."""
    guard.acquire()
    for environment in _user_counts:
        environment.gate.close()


def _after_fork_in_parent() -> None:
    for environment in _user_counts:
        environment.gate.open()
    guard.release()


def _after_fork_in_child() -> None:
    for environment in _user_counts:
        environment.after_fork_in_child()
    guard.release()


os.register_at_fork(before=_before_fork, after_in_parent=_after_fork_in_parent, after_in_child=_after_fork_in_child)
