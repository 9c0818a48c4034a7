"""What a remote's packs hold, as far as somebody has asked: holdings that grow.

The idx files of packs that are new since the last look come first, since what is sought is most often there; the
others, which are remembered, are looked into only if that does not do.
"""

import logging
from collections.abc import Callable, Collection, Iterable, Sequence
from collections.abc import Set as AbstractSet
from typing import Final

from ...batches import batches
from ...format.objects import Commit
from ...ids import CommitId, ObjectId
from ..holdings import Holdings
from ..idx import decoded_commit
from ..names import PackName
from ..remote import Remote
from .incoming import RemoteCopy

_OLD_AT_ONCE: Final = 64
"""Remembered idx files that are looked into before asking again whether that does."""

_log = logging.getLogger(__name__)


class Catalogue:
    """What a remote holds. For one thread.

    Args:
        remote: the remote.

    Attributes:
        problems: idx files that cannot be used, and why.
    """

    def __init__(self, remote: Remote) -> None:
        self.problems: dict[PackName, str] = {}
        self._remote = remote
        self._held = Holdings()
        self._unread: list[PackName] = []
        self._is_listed = False

    def refresh(self) -> bool:
        """Look which packs there are now; whether there are others than before."""
        there = self._remote.packs().keys()
        self._is_listed = True
        self._remote.cache.drop_idx({pack.id for pack in there})
        before = self._held.idxs.keys() | set(self._unread)
        self._held.lose(self._held.idxs.keys() - there)
        self._unread = [pack for pack in there if pack not in self._held.idxs and pack not in self.problems]
        self._unread.sort(key=lambda pack: (self._remote.cache.has_idx(pack.id), pack.text))
        return before != self._held.idxs.keys() | set(self._unread)

    def find(self, object_ids: Iterable[ObjectId]) -> None:
        """Look into idx files until all of some objects are found, or there are no more."""
        missing = [object_id for object_id in object_ids if not self._held.copies_of(object_id)]
        if missing and not self._is_listed:
            self.refresh()
        while missing and self._unread:
            new = [pack for pack in self._unread if not self._remote.cache.has_idx(pack.id)]
            self._take(new or self._unread[:_OLD_AT_ONCE])
            missing = [object_id for object_id in missing if not self._held.copies_of(object_id)]

    def find_chains(
        self, object_ids: Collection[ObjectId], here: Callable[[AbstractSet[ObjectId]], AbstractSet[ObjectId]]
    ) -> None:
        """Find objects, and all that may have to be read before them.

        Args:
            object_ids: the objects.
            here: tells which of some bases need not be read.
        """
        seen = set(object_ids)
        waiting: Collection[ObjectId] = object_ids
        while waiting:
            self.find(waiting)
            copies = (copy for object_id in waiting for copy in self.copies(object_id))
            bases = {copy.entry.base for copy in copies if copy.entry.base is not None} - seen
            seen |= bases
            waiting = bases - here(bases)

    def copies(self, object_id: ObjectId) -> Sequence[RemoteCopy]:
        """Copies of an object that were found and are not known to be bad."""
        return self._held.copies_of(object_id)

    def doubts(self) -> str:
        """What to add to a message that something is not there: why it may be, if packs cannot be looked into."""
        return "".join(f"; but {problem}" for problem in list(self.problems.values())[:1])

    def sizes(self) -> dict[ObjectId, int]:
        """What the smallest copy of each object takes that the remote holds, in bytes. Looks into every idx file."""
        if not self._is_listed:
            self.refresh()
        self._take(self._unread)
        return {
            object_id: min(copy.entry.stored_bytes for copy in copies)
            for object_id, copies in self._held.copies.items()
            if copies
        }

    def spoil(self, copy: RemoteCopy) -> None:
        """Hear that a copy is bad."""
        self._held.drop([(copy.pack.text, copy.entry.id)])

    def commit(self, commit_id: CommitId) -> Commit | None:
        """A commit, whose hash was compared; ``None`` if there is none.

        Raises:
            Corrupt: it is damaged.
            Incompatible: a newer version wrote it.
        """
        stored = self.stored_commit(commit_id)
        return None if stored is None else decoded_commit(commit_id, stored)

    def stored_commit(self, commit_id: CommitId) -> bytes | None:
        """The same as it is stored; also if its pack is gone by now."""
        if commit_id not in self._held.commits:
            self.find([commit_id])
        return self._held.commits.get(commit_id)

    def _take(self, packs: Collection[PackName]) -> None:
        url = self._remote.storage.url
        for some in batches(packs, _OLD_AT_ONCE):
            idxs, faults = self._remote.idxs(some)
            for pack, idx in idxs.items():
                self._held.take(pack, idx)
            for pack, error in faults.items():
                self.problems[pack] = f"{url}: what is in pack {pack.text} cannot be read: {error}"
                _log.warning("%s", self.problems[pack])
            done = set(some)
            self._unread = [pack for pack in self._unread if pack not in done]
