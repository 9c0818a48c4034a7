"""Replacing packs by others that hold the same objects: what gc's compaction and repack are made of.

1. The objects go into new packs, as they are stored or encoded anew, under a lease.
2. The new packs are made durable under their names.
3. Every object is read back from there, decoded, and its hash compared. What fails is as if it had not been written.
4. The index is told of the new places.
5. The old places are removed, never the last good one of an object, nor one on which something depends that would get
   unreadable or too deep. Each transaction looks anew, so whatever writers did meanwhile counts.
6. A pack of which no place is left is removed.

Whatever ends this leaves objects twice at worst, and another run completes it. Savers and readers go on: an object
keeps its id, and who finds its old place gone looks it up again.

Spec: docs/format.md §8.6.
"""

from collections.abc import Callable, Container, Iterable, Iterator, Mapping, Sequence
from contextlib import suppress
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from ..batches import batches, fitting
from ..codec import encode
from ..errors import Corrupt, Incompatible, MoonclipError, NotFound
from ..format.objects import Kind
from ..format.pack import ObjectHeader, PackTable, Sealed, TableEntry, seal
from ..ids import ObjectId, PackId
from ..index import Copy, IndexWriter, Place, Unremoved
from ..limits import REWRITE_WINDOW_BYTES, SWEEP_KEYS
from ..reading.packs import PackGone
from ..reading.reader import Stored
from ..repository import Repository
from ..saving.leases import Lease, acquire_lease
from ..saving.packseries import PackSeries
from .retiring import retire_pack
from .verifying import Verifier

Bases = Mapping[ObjectId, ObjectId | None]
"""Chunks to be encoded anew: each against which chunk, or ``None`` for none."""

Advance = Callable[[int], None]
"""Told of bytes of old packs that are dealt with, and between two windows of other work of none. May hold it up, or end
it by raising."""


@dataclass(slots=True)
class Replaced:
    """What became of packs.

    Attributes:
        removed: packs that are gone.
        made: packs in their stead.
        removed_bytes: length of the former.
        made_bytes: length of the latter.
        left: packs that stay, and why. Another run may find that they can go.
        damaged: objects that could not be moved, as no copy is intact, and why. Their packs stay.
    """

    removed: list[PackId] = field(default_factory=list)
    made: list[PackId] = field(default_factory=list)
    removed_bytes: int = 0
    made_bytes: int = 0
    left: dict[PackId, str] = field(default_factory=dict)
    damaged: dict[ObjectId, str] = field(default_factory=dict)

    def add(self, other: "Replaced") -> None:
        """Add what became of other packs, some of which may have stayed before."""
        self.removed += other.removed
        self.made += other.made
        self.removed_bytes += other.removed_bytes
        self.made_bytes += other.made_bytes
        self.left |= other.left
        self.damaged |= other.damaged
        for pack in other.removed:
            self.left.pop(pack, None)


class _Old(NamedTuple):
    """A pack that is to go."""

    id: PackId
    entries: Sequence[TableEntry]
    size_bytes: int


class Rewriter:
    """Replaces packs. For whoever holds ``gc.lock``, and one thread.

    Args:
        repository: the store.
        advance: told how far the work is.
    """

    def __init__(self, repository: Repository, advance: Advance | None = None) -> None:
        self._repo = repository
        self._advance = advance or _nobody_watches
        self._moved: list[_Old] = []

    def replace(
        self,
        packs: Sequence[PackId],
        *,
        keep: Container[ObjectId] = frozenset(),
        bases: Bases | None = None,
        order: Callable[[TableEntry], Any] | None = None,
    ) -> Replaced:
        """Move what packs hold into new ones, and remove them.

        An object is moved if the index has a place for it in one of these packs, or it is in ``keep``; not if another
        pack holds an intact copy encoded as it is to be: as ``bases`` says, else as the copy that is read, the first
        that is intact. What is left then goes with its pack.

        Args:
            packs: which, and not too many: as much space is taken until they are gone.
            keep: objects that are needed whatever the index says.
            bases: chunks that are to be encoded anew. Following them must come to an end.
            order: key that sorts what the new packs hold; as it comes if ``None``.

        Returns:
            What became of them. Damage in these packs is reported, not raised.

        Raises:
            OSError: the disk is full or failed. Whatever was there is there.
            BrokenIndex: the index is damaged, and damaged again after it was rebuilt.
            Corrupt: a new pack cannot be read back, or a lease is damaged. Whatever was there is there.

        Cost: reads what is moved twice, and the bases of its deltas; what there is encoded in several ways once more;
        memory of ``REWRITE_WINDOW_BYTES`` and a few chunks a thread.
        """
        with acquire_lease(self._repo.layout.root, self._repo.files) as lease:
            job = _Job(self._repo, lease, keep, bases or {}, self._advance)
            done = job.run(packs, order)
        self._moved += job.stuck
        return done

    @property
    def is_stuck(self) -> bool:
        """Whether packs had to stay that :meth:`finish` may yet remove."""
        return bool(self._moved)

    def finish(self) -> Replaced:
        """Remove packs that had to stay for what was stored against their objects, which may have been moved since.

        Raises:
            OSError: the disk is full or failed.
            BrokenIndex: the index is damaged.
        """
        moved = self._moved
        with acquire_lease(self._repo.layout.root, self._repo.files) as lease:
            job = _Job(self._repo, lease, frozenset(), {}, _nobody_watches)
            for pack in moved:
                job.remove(pack)
        self._moved = job.stuck
        return job.done


class _Job:
    def __init__(
        self, repository: Repository, lease: Lease, keep: Container[ObjectId], bases: Bases, advance: Advance
    ) -> None:
        self.done = Replaced()
        self.stuck: list[_Old] = []
        self._repo = repository
        self._lease = lease
        self._keep = keep
        self._bases = bases
        self._advance = advance
        self._verifier = Verifier(repository.reader, repository.packs)
        self._sound: dict[ObjectId, Place] = {}

    def run(self, packs: Sequence[PackId], order: Callable[[TableEntry], Any] | None) -> Replaced:
        old = [each for pack in packs if (each := self._read(pack)) is not None]
        wanted = list(self._wanted(old))
        if order is not None:
            wanted.sort(key=order)
        shared = {base for entry in wanted if (base := self._bases.get(entry.id, entry.base)) is not None}
        self._verifier = Verifier(self._repo.reader, self._repo.packs, shared)
        self._move(wanted, {pack.id for pack in old})
        for pack in old:
            self.remove(pack)
        self._advance(sum(pack.size_bytes for pack in old) - sum(entry.stored_bytes for entry in wanted))
        return self.done

    def remove(self, pack: _Old) -> None:
        """Remove the places of a pack whose objects are elsewhere, and the pack once none is left."""
        if pack.id in self.done.made:
            return  # the new one came out just the same
        damaged = [entry.id for entry in pack.entries if entry.id in self.done.damaged]
        refused: list[Unremoved] = []
        going = [Copy(entry.id, pack.id) for entry in reversed(pack.entries) if entry.id not in self.done.damaged]
        for batch in batches(going, SWEEP_KEYS):
            refused += self._repo.index.write(partial(_remove_places, batch))
        if damaged:
            self.done.left[pack.id] = f"{len(damaged)} of its objects are damaged; run `moonclip fsck`"
        elif refused:
            self.done.left[pack.id] = f"object {refused[0].copy.id.hex()} has to stay: {refused[0].why}"
            self.stuck.append(pack)
        elif retire_pack(self._repo, self._lease, pack.id, [entry.id for entry in pack.entries]):
            self.done.removed.append(pack.id)
            self.done.removed_bytes += pack.size_bytes
        else:
            self.done.left[pack.id] = "a writer is at work on it"

    # --- what there is ----------------------------------------------------------------------------------------------

    def _read(self, pack: PackId) -> _Old | None:
        try:
            return _Old(pack, self._repo.packs.table(pack).entries, self._repo.packs.size_bytes(pack))
        except PackGone:
            return None
        except (Corrupt, Incompatible) as error:
            self.done.left[pack] = str(error)
            return None

    def _wanted(self, old: Sequence[_Old]) -> Iterator[TableEntry]:
        """Of each object that has to be moved the entry of one copy."""
        going = {pack.id for pack in old}
        seen: set[ObjectId] = set()
        for pack in old:
            for batch in batches(pack.entries, SWEEP_KEYS):
                places = self._repo.index.places_of_each([entry.id for entry in batch])
                for entry in batch:
                    known = places[entry.id]
                    is_needed = entry.id in self._keep or any(place.pack == pack.id for place in known)
                    if is_needed and entry.id not in seen:
                        seen.add(entry.id)
                        if not self._is_elsewhere(entry, known, going):
                            yield entry

    def _is_elsewhere(self, entry: TableEntry, known: Sequence[Place], going: Container[PackId]) -> bool:
        """Whether a pack that stays holds an intact copy, encoded as it is to be."""
        base = self._base_to_be(entry.id, known)
        return any(
            place.base == base and place.pack not in going and self._is_intact(entry.id, place) for place in known
        )

    def _base_to_be(self, object_id: ObjectId, known: Sequence[Place]) -> ObjectId | None:
        """Against what an object is to be stored: as ``bases`` says, else as the copy that is read.

        The first copy may not be that one: it may be rotten, decode to something else, or its base may be lost.
        """
        if object_id in self._bases:
            return self._bases[object_id]
        if len({place.base for place in known}) > 1:
            for place in known:
                if self._is_intact(object_id, place):
                    self._sound[object_id] = place
                    return place.base
        return known[0].base if known else None

    def _is_intact(self, object_id: ObjectId, place: Place) -> bool:
        try:
            self._verifier.require_place(object_id, place)
        except (NotFound, Corrupt, Incompatible):
            return False
        return True

    # --- moving -----------------------------------------------------------------------------------------------------

    def _move(self, wanted: Sequence[TableEntry], going: Container[PackId]) -> None:
        """Steps 1 to 4."""
        named: list[PackId] = []

        def announce(pack: PackId) -> None:
            self._lease.add_pack(pack)
            named.append(pack)

        series = PackSeries(self._repo.files, self._repo.layout.packs, self._lease.name, announce)
        try:
            for window in _windows(wanted):
                self._append(series, window)
            verified = [(table.id, self._verified(table)) for table in series.publish()]
        except BaseException:
            series.abandon()
            for pack in (each for each in named if each not in going):  # one may come out just as it was
                with suppress(MoonclipError, OSError):  # the first error is the one to report; gc finds what is left
                    retire_pack(self._repo, self._lease, pack, [entry.id for entry in wanted])
            raise
        for pack, entries in verified:
            for batch in batches(entries, SWEEP_KEYS):
                self._repo.index.write(partial(_add_places, pack, batch))
            self.done.made.append(pack)
            self.done.made_bytes += self._repo.packs.size_bytes(pack)

    def _append(self, series: PackSeries, window: Sequence[TableEntry]) -> None:
        sealed: list[Sealed | None] = [None] * len(window)

        def prepare(number: int) -> None:
            try:
                sealed[number] = self._sealed(window[number])
            except (NotFound, Corrupt, Incompatible) as error:
                self.done.damaged[window[number].id] = str(error)

        self._repo.threads.run(prepare, range(len(window)))
        for each in sealed:
            if each is not None:
                series.append(each)
        self._advance(sum(entry.stored_bytes for entry in window))

    def _sealed(self, entry: TableEntry) -> Sealed:
        if entry.kind != Kind.CHUNK or entry.id not in self._bases:
            header, payload = self._stored(entry)
            return seal(header, [payload])
        raw, base = self._verifier.chunk(entry.id, entry.raw_bytes), self._bases[entry.id]
        encoded = encode(raw, entry.element, None if base is None else self._verifier.chunk(base, entry.raw_bytes))
        used = base if encoded.uses_base else None
        header = ObjectHeader(
            Kind.CHUNK, encoded.transform, encoded.grouped, entry.element, entry.raw_bytes, entry.id, used
        )
        return seal(header, encoded.payload)

    def _stored(self, entry: TableEntry) -> Stored:
        """The copy that is read."""
        place = self._sound.get(entry.id)
        if place is None:
            return self._repo.reader.stored(entry.id, entry.kind)
        return self._repo.packs.read(place.pack, place.offset, place.stored_bytes, entry.id)

    def _verified(self, table: PackTable) -> list[TableEntry]:
        """What can be read back from a new pack as it should be."""
        self._repo.packs.table(table.id)
        failed: set[ObjectId] = set()

        def require(entry: TableEntry) -> None:
            try:
                self._verifier.require(table.id, entry)
            except (NotFound, Corrupt, Incompatible) as error:
                self.done.damaged[entry.id] = str(error)
                failed.add(entry.id)

        for window in _windows(table.entries):
            self._repo.threads.run(require, window)
            self._advance(0)  # whoever is told may want the threads for something else
        return [entry for entry in table.entries if entry.id not in failed]


def _windows(entries: Iterable[TableEntry]) -> Iterator[list[TableEntry]]:
    """What is worked on at a time."""
    return fitting(entries, lambda entry: entry.raw_bytes, REWRITE_WINDOW_BYTES, SWEEP_KEYS)


def _add_places(pack: PackId, entries: Sequence[TableEntry], writer: IndexWriter) -> None:
    writer.add_pack(pack, entries)
    writer.lower_depths([entry.id for entry in entries])


def _remove_places(copies: Sequence[Copy], writer: IndexWriter) -> list[Unremoved]:
    return writer.remove_places(copies, spare_last=True)


def _nobody_watches(_: int) -> None:
    """Nobody asked to be told."""
