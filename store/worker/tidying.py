"""What is done after a save, when nobody waits for it: dropping what a policy does not keep.

Nothing here fails a save: what goes wrong is told once, and tried again after the next one.
"""

import logging
from collections import deque
from statistics import fmean

from ..limits import AUTO_GC_BYTES, AUTO_GC_SHARE, TIDY_SAVES
from ..repository import Repository
from ..upkeep.prune import Pruner
from ..upkeep.retention import Keep

_log = logging.getLogger(__name__)


class Tidier:
    """Tidies one store up. Not thread-safe.

    Args:
        repo: the store.
    """

    def __init__(self, repo: Repository) -> None:
        self._repo = repo
        self._pruner = Pruner(repo)
        self._keep: Keep | None = None
        self._due_count = 0
        self._stored_bytes: deque[int] = deque(maxlen=TIDY_SAVES)
        self._dropped_bytes = 0.0
        self._told: set[str] = set()

    def note(self, keep: Keep | None, stored_bytes: int) -> None:
        """Hear of a save that was made.

        Args:
            keep: what to keep from now on; ``None`` for everything.
            stored_bytes: what it took in packs.
        """
        self._keep = keep
        self._due_count += keep is not None
        self._stored_bytes.append(stored_bytes)

    @property
    def is_due(self) -> bool:
        """Whether a save was made since the last :meth:`prune`."""
        return self._due_count > 0

    @property
    def is_overdue(self) -> bool:
        """Whether so many were that the next one has to wait: a run that saves without a pause would fill the disk."""
        return self._due_count >= TIDY_SAVES

    def prune(self) -> None:
        """Drop what the policy does not keep, if a save was made since the last time. Raises nothing."""
        if self._keep is None or not self.is_due:
            return
        self._due_count = 0
        try:
            dropped = self._pruner.apply(self._pruner.by_policy(self._keep))
        except Exception as error:  # noqa: BLE001 - whatever it is, the next save needs this process
            self._tell("what the policy does not keep is not dropped", error)
        else:
            self._dropped_bytes += len(dropped) * fmean(self._stored_bytes)

    def takes_gc(self) -> bool:
        """Whether so much was dropped, guessed by what saves take, that gc pays; it is not said again for the same."""
        if self._dropped_bytes < AUTO_GC_BYTES:
            return False
        try:
            store_bytes = self._repo.packs.total_bytes()
        except OSError:
            return False
        if self._dropped_bytes < AUTO_GC_SHARE * store_bytes:
            return False
        self._dropped_bytes = 0
        return True

    def _tell(self, what: str, error: Exception) -> None:
        text = f"{what}: {type(error).__name__}: {error}"
        if text not in self._told:
            self._told.add(text)
            _log.warning("%s", text)
