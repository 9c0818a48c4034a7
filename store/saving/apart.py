"""A rank's part of a save, stored apart, for a rank that cannot be told which snapshot it is for.

Some who bring ranks together, torch's distributed checkpointing above all, carry nothing from the one that publishes to
the others until it is over. So each rank stores its part where a snapshot of its own would have it, under a lease of
its own, and hands that lease's name to the publisher, which takes the part over into the snapshot
(``Snapshot.take_over``). Until the rank lets go of it, its lease keeps the packs. Once the snapshot is published the
publisher removes the directory: by this the rank learns, when it saves next, that what it remembers was committed.
"""

from pathlib import Path

from ..disk.files import Files
from ..errors import Corrupt, SnapshotGone
from .descriptions import Description
from .leases import Lease, acquire_lease, is_held
from .partfiles import begin_parts, is_there, read_description, release_parts, snapshot_directories

NOTHING_TOLD = Description(1, 0, is_second=False, trees={}, excerpt={})
"""For a rank that remembers its last save, or that nobody tells what its branch holds."""


class Apart:
    """Where one rank stores one part, as rank 0 of one. Made by :func:`begin_apart`.

    Attributes:
        id: what ``save_rank`` is told as the snapshot, and the publisher is to hear.
    """

    def __init__(self, root: Path, files: Files, lease: Lease) -> None:
        self.id = lease.name
        self._root = root
        self._files = files
        self._lease = lease
        self._is_published = False

    @property
    def is_published(self) -> bool:
        """Whether a snapshot that took the part over has been published, as far as this process can tell."""
        if not self._is_published and self._lease.is_ours:
            self._is_published = not is_there(self._root, self._files, self.id)
        return self._is_published

    def release(self) -> None:
        """Let go of it: what nobody published is garbage from here on. Again does nothing, nor in a forked child."""
        if self._lease.is_ours and not self.is_published:
            release_parts(self._root, self._files, self.id)
        self._lease.release()


def begin_apart(root: Path, files: Files, told: Description) -> Apart:
    """Make room for one rank's part.

    Args:
        root: the store's directory.
        files: does the I/O.
        told: what the branch holds, see :func:`told_on`.

    Raises:
        OSError: it could not be written.
    """
    apart = Apart(root, files, acquire_lease(root, files))
    try:
        begin_parts(root, files, apart.id, told._replace(world_size=1, branch="").encode())
    except BaseException:
        apart.release()
        raise
    return apart


def told_on(root: Path, files: Files, branch: str) -> Description:
    """What the ranks of a snapshot in the making on a branch are told of its content.

    With several of them any will do, since whether it still holds is checked when a part is published; with none, the
    part is stored in full.

    Raises:
        OSError: ``parts/`` cannot be read.
    """
    for directory in snapshot_directories(root, files):
        if is_held(root, files, directory.name):
            try:
                told = Description.decode(read_description(root, files, directory.name), f"{directory}")
            except (SnapshotGone, Corrupt):
                continue
            if told.branch == branch:
                return told
    return NOTHING_TOLD
