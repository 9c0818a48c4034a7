"""What one save leaves to the next, in one process, for each branch of a store.

A writer is little more than a path: programs make a new one for each save, and torch pickles it for the process that
saves in the background. What makes the next save cheap, the last state's bytes above all, is kept here.
"""

import os
import threading
from collections.abc import Sequence
from pathlib import Path
from typing import Final, NamedTuple

from store.disk.files import Files
from store.naming.refs import RefStore
from store.parallel import Threads, default_thread_count
from store.saving.apart import NOTHING_TOLD, Apart, begin_apart, told_on
from store.saving.bases import LastSave
from store.saving.descriptions import Description
from store.saving.rankbases import RankMemory
from store.saving.ranks import save_rank

from ..capture.staging import Staging
from .shares import Share, items_of, states_of


class Published(NamedTuple):
    """What the rank that publishes remembers of its last commit.

    Attributes:
        last: the commit.
        values: what it stored of it beside tensors.
    """

    last: LastSave
    values: RankMemory


class Kept:
    """One process's memory of one line of saves. Thread-safe.

    Args:
        root: the store's directory.
        branch: short name of the branch; the store's current one if ``None``.

    Attributes:
        files: does the I/O.
        threads: copy and encode.
        published: what was published from here, if the last save was.
    """

    def __init__(self, root: Path, branch: str | None) -> None:
        self.files = Files()
        self.threads = Threads(default_thread_count())
        self.published: Published | None = None
        self._root = root
        self._branch = branch
        self._staging = Staging(self.threads)
        self._lock = threading.Lock()
        self._last: tuple[Apart, RankMemory] | None = None

    def store(self, shares: Sequence[Share]) -> Apart:
        """Copy what this rank has to write, and store it apart.

        Args:
            shares: the boxes.

        Raises:
            Incompatible: something cannot be stored.
            StoreNotFound: there is no store.
            MemoryError: there is no room for a copy.
            OSError: writing failed.
        """
        with self._lock:
            memory = self._taken_memory()
            capture = self._staging.capture(states_of(shares), is_last_committed=memory is not None)
            last = memory if capture.keeps_last else None
            apart = begin_apart(self._root, self.files, NOTHING_TOLD if last else self._told())
            try:
                items = items_of(shares, capture.items, capture.arena)
                saved = save_rank(self._root, apart.id, 0, items, last=last, files=self.files, threads=self.threads)
            except BaseException:
                apart.release()
                raise
            self._last = apart, saved.memory
            return apart

    def close(self) -> None:
        """Give memory and threads back."""
        with self._lock:
            self._last = self.published = None
            self._staging.close()
            self.threads.close()

    def _taken_memory(self) -> RankMemory | None:
        """What was last stored, if that was committed. It is good for one save."""
        last, self._last = self._last, None
        if last is None or not last[0].is_published:
            return None
        last[0].release()
        return last[1]

    def _told(self) -> Description:
        """What the branch holds, for want of memory."""
        branch = self._branch or RefStore(self._root, self.files).head()
        return told_on(self._root, self.files, branch)


_Key = tuple[int, Path, str | None]

_kept: Final[dict[_Key, Kept]] = {}
_lock: Final = threading.Lock()


def kept_for(root: Path, branch: str | None) -> Kept:
    """This process's memory of what it saves to a branch."""
    key = _key(root, branch)
    with _lock:
        if key not in _kept:
            _kept[key] = Kept(root, branch)
        return _kept[key]


def forget(root: Path, branch: str | None) -> None:
    """Drop it; what is not there is fine."""
    with _lock:
        kept = _kept.pop(_key(root, branch), None)
    if kept is not None:
        kept.close()


def _key(root: Path, branch: str | None) -> _Key:
    return os.getpid(), root.resolve(), branch  # a forked child remembers nothing
