"""Getting objects from a remote by their ids, and the bases that it takes to decode them."""

import threading
from collections.abc import Callable, Collection, Iterable, Mapping
from collections.abc import Set as AbstractSet
from dataclasses import dataclass, field

from ...batches import batches
from ...errors import Busy
from ...ids import ObjectId
from ...limits import FETCH_ATTEMPTS, SWEEP_KEYS
from ...repository import Repository
from ...saving.leases import Lease, acquire_lease
from ..remote import Remote
from .catalogue import Catalogue
from .incoming import Choice, choose, windows
from .receiving import Receiver

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do, in bytes. What it raises ends it."""


@dataclass(slots=True)
class Obtained:
    """What was got.

    Attributes:
        object_count: objects that were not here, bases among them, and
        stored_bytes: what they take here.
        read_bytes: what was read of the remote's packs.
        lacking: objects that could not be got, and why.
    """

    object_count: int = 0
    stored_bytes: int = 0
    read_bytes: int = 0
    lacking: dict[ObjectId, str] = field(default_factory=dict)

    def add(self, other: "Obtained") -> None:
        """Add what was got besides."""
        self.object_count += other.object_count
        self.stored_bytes += other.stored_bytes
        self.read_bytes += other.read_bytes
        self.lacking |= other.lacking


def obtain(
    repository: Repository, remote: Remote, object_ids: Collection[ObjectId], progress: Progress | None = None
) -> Obtained:
    """Get objects that are not here. They are indexed, but nothing keeps them from the next gc.

    Args:
        repository: the store.
        remote: where they may be had.
        object_ids: which.
        progress: told how far it is.

    Raises:
        RemoteError: the remote failed. What was got by then stays.
        Busy: what came is swept at once, again and again.
        ReadOnly: the store cannot be written from here.
        OSError: the disk failed.
    """
    repository.require_writable()
    with acquire_lease(repository.layout.root, repository.files) as lease:
        return Obtaining(repository, remote, Catalogue(remote), lease, progress).obtain(object_ids)


class Obtaining:
    """Gets objects, under a lease that the caller holds until something else needs them. For one thread.

    Args:
        repository: the store.
        remote: where they may be had.
        catalogue: what is there.
        lease: protects them.
        progress: told how far it is.
    """

    def __init__(
        self, repository: Repository, remote: Remote, catalogue: Catalogue, lease: Lease, progress: Progress | None
    ) -> None:
        self._repo = repository
        self._remote = remote
        self._catalogue = catalogue
        self._lease = lease
        self._progress = progress or _nobody_watches
        self._reasons: dict[ObjectId, str] = {}
        self._lock = threading.Lock()
        self._read_bytes = 0
        self._planned_bytes = 0

    def obtain(self, object_ids: Iterable[ObjectId]) -> Obtained:
        """Get those that are not here. Raises as :func:`obtain` does."""
        got = Obtained()
        wanted = self.missing(object_ids)
        for _ in range(FETCH_ATTEMPTS):
            choice = self.plan(wanted)
            if not choice.copies and not (choice.lacking and self._catalogue.refresh()):
                break
            if choice.copies:
                self._receive(choice, got)
            wanted = self.missing(wanted)
            if not wanted:
                break
        lacking = set(self.plan(wanted).lacking)
        if len(lacking) < len(wanted):
            raise Busy("objects are swept as fast as they are fetched; try again when gc is done")
        got.lacking = {object_id: self._why(object_id) for object_id in wanted}
        return got

    def missing(self, object_ids: Iterable[ObjectId]) -> list[ObjectId]:
        """Of some objects, those of which there is no good copy here."""
        missing: list[ObjectId] = []
        for batch in batches(dict.fromkeys(object_ids), SWEEP_KEYS):
            missing += [each for each, places in self._repo.index.places_of_each(batch).items() if not places]
        return missing

    def plan(self, wanted: Collection[ObjectId]) -> Choice:
        """What would be read to get some objects that are not here. Reads idx files at most."""
        return choose(wanted, self._catalogue.copies, self._depths(wanted))

    # --- how --------------------------------------------------------------------------------------------------------

    def _receive(self, choice: Choice, got: Obtained) -> None:
        planned = list(windows(choice.copies))
        self._planned_bytes = self._read_bytes + sum(window.read_bytes for window in planned)
        shared = {copy.entry.base for copy in choice.copies if copy.entry.base is not None}
        receiver = Receiver(self._repo, self._lease, self._remote.storage.url, shared)
        before_bytes = self._read_bytes
        try:
            received = receiver.receive(self._remote.storage, planned, self._advance)
        finally:
            got.read_bytes += self._read_bytes - before_bytes
            got.object_count += receiver.received.object_count
            got.stored_bytes += receiver.received.stored_bytes
        for copy, why in received.failed:
            self._catalogue.spoil(copy)
            self._reasons[copy.entry.id] = why

    def _advance(self, count: int) -> None:
        """Hear of bytes that arrived, in any thread; those of a body that was cut count too."""
        with self._lock:
            self._read_bytes += count
            self._progress("downloading", self._read_bytes, max(self._planned_bytes, self._read_bytes))

    def _depths(self, wanted: Collection[ObjectId]) -> Mapping[ObjectId, int]:
        """How deep the bases lie that are here, of all that may have to be read."""
        depths: dict[ObjectId, int] = {}

        def here(bases: AbstractSet[ObjectId]) -> AbstractSet[ObjectId]:
            for batch in batches(bases, SWEEP_KEYS):
                for base, places in self._repo.index.places_of_each(batch).items():
                    if places:
                        depths[base] = places[0].depth
            return depths.keys()

        self._catalogue.find_chains(wanted, here)
        return depths

    def _why(self, object_id: ObjectId) -> str:
        if object_id in self._reasons:
            return self._reasons[object_id]
        url = self._remote.storage.url
        for copy in self._catalogue.copies(object_id):
            if copy.entry.base is not None and copy.entry.base in self._reasons:
                return f"the base of object {object_id.hex()} cannot be had: {self._reasons[copy.entry.base]}"
        return f"object {object_id.hex()} is in no pack of {url}{self._catalogue.doubts()}"


def _nobody_watches(_name: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""
