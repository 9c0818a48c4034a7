"""Reading the tree objects that a remote holds: those that are here from here, others in few requests."""

from collections.abc import Iterator, Sequence

from ...batches import batches
from ...errors import Corrupt, Incompatible, NotFound
from ...ids import ObjectId, TreeId, short
from ...limits import FETCH_WINDOW_OBJECTS
from ...repository import Repository
from ..fetching.incoming import RemoteCopy, Run, Window, windows
from ..fetching.verifying import name_of, small_content, unsealed
from ..holdings import Holdings
from ..remote import Remote

Read = tuple[TreeId, bytes]
"""A tree object's id and its canonical encoding, whose hash was compared."""


class TreeReading:
    """Reads tree objects by id, many at a time. For one thread.

    Args:
        repo: the store, which has many of them.
        remote: the remote.
        holdings: what that has.

    Attributes:
        unreadable: those that were asked for and could be read nowhere, and why.
        damaged: copies on the remote that turned out to be damaged, and why.
    """

    def __init__(self, repo: Repository, remote: Remote, holdings: Holdings) -> None:
        self.unreadable: dict[ObjectId, str] = {}
        self.damaged: list[tuple[RemoteCopy, str]] = []
        self._repo = repo
        self._remote = remote
        self._holdings = holdings

    def read(self, trees: Sequence[TreeId]) -> Iterator[Read]:
        """Each of some tree objects, in any order, but for those that can be read nowhere.

        Memory: of what is read from the remote a window at a time.
        """
        for batch in batches(trees, FETCH_WINDOW_OBJECTS):
            lacking: list[TreeId] = []
            known = self._repo.index.places_of_each(batch)
            for tree in batch:
                encoded = self._from_here(tree) if known[tree] else None
                if encoded is None:
                    lacking.append(tree)
                else:
                    yield tree, encoded
            yield from self._from_remote(lacking)

    def _from_here(self, tree: TreeId) -> bytes | None:
        try:
            return self._repo.reader.encoded_tree(tree)
        except (NotFound, Corrupt):
            return None

    def _from_remote(self, trees: Sequence[TreeId]) -> Iterator[Read]:
        held: list[RemoteCopy] = []
        for tree in trees:
            copies = self._holdings.copies_of(tree)
            held += copies[:1]
            if not copies:
                self.unreadable[tree] = f"tree {short(tree)} is in no pack of the remote"
        for window in windows(sorted(held, key=lambda copy: (copy.pack.text, copy.entry.offset))):
            yield from self._from_window(window)

    def _from_window(self, window: Window) -> Iterator[Read]:
        stretches = self._remote.at_once(self._stretch, window.runs)
        for placed in window.placed:
            stretch = stretches[window.runs[placed.run]]
            stored = stretch and stretch[placed.at : placed.at + placed.copy.entry.stored_bytes]
            encoded = self._decoded(placed.copy, stored)
            tree = TreeId(placed.copy.entry.id)
            if encoded is None:
                encoded = self._from_others(placed.copy)
            if encoded is not None:
                yield tree, encoded

    def _from_others(self, bad: RemoteCopy) -> bytes | None:
        """A tree of which one copy is damaged."""
        for copy in self._holdings.copies_of(bad.entry.id):
            if copy != bad:
                stretch = self._stretch(Run(copy.pack, copy.entry.offset, copy.entry.stored_bytes))
                encoded = self._decoded(copy, stretch)
                if encoded is not None:
                    return encoded
        return None

    def _stretch(self, run: Run) -> memoryview | None:
        """What a run holds; ``None`` if the pack ends too early, or is gone."""
        out = memoryview(bytearray(run.size_bytes))
        try:
            self._remote.storage.read_into(run.pack.pack_key, run.start, out, _nobody_counts)
        except (NotFound, Corrupt):
            return None
        return out

    def _decoded(self, copy: RemoteCopy, stored: memoryview | None) -> bytes | None:
        """A tree from how it is stored; ``None`` if that is not it, intact."""
        if stored is None:
            self._spoil(copy, f"{name_of(copy)}: the pack does not go so far, or is gone")
            return None
        try:
            encoded = small_content(copy, *unsealed(copy, stored))
        except (Corrupt, Incompatible) as error:
            self._spoil(copy, str(error))
            return None
        self.unreadable.pop(copy.entry.id, None)
        return encoded

    def _spoil(self, copy: RemoteCopy, why: str) -> None:
        self.unreadable[copy.entry.id] = why
        self.damaged.append((copy, why))


def _nobody_counts(_: int) -> None:
    """Nobody asked to be told."""
