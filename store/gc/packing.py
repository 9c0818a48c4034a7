"""Packs: which there are, those that the index has not read, and those of which nothing or little is needed."""

import errno
import logging
from collections.abc import Callable, Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass, field

from ..disk.ballastroom import Room
from ..errors import Corrupt, Incompatible
from ..format.pack import TableEntry
from ..ids import ObjectId, PackId
from ..index import IndexWriter
from ..index.depths import resolve_depths
from ..opening.reindex import Digest, PackEntry, digest_packs
from ..reading.packs import PackGone
from ..repository import Repository
from ..saving.leases import acquire_lease, living_leases
from ..upkeep.retiring import retire_pack
from ..upkeep.rewriting import Replaced, Rewriter
from .marking import Marks

_log = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class Present:
    """Packs that there are.

    Attributes:
        indexed: packs that the index has read, and
        strays: packs that it has not, and that no living writer names: of writers that died.
        leased: packs that living writers name.
        lost: packs that the index has read and that are not there.
    """

    indexed: frozenset[PackId]
    strays: frozenset[PackId]
    leased: frozenset[PackId]
    lost: frozenset[PackId]


def present(repository: Repository) -> Present:
    """Look what there is.

    In this order: nobody but the holder of ``gc.lock`` takes packs away, a living writer names a pack before it is
    there, and lets go of it once it is indexed.
    """
    layout, files = repository.layout, repository.files
    before = frozenset(repository.index.packs())
    there = frozenset(repository.packs.pack_ids())
    leased = frozenset[PackId]().union(*(lease.packs for lease in living_leases(layout.root, files)))
    indexed = frozenset(repository.index.packs())
    return Present(indexed & there, there - indexed - leased, leased, before - there)


def held_in(repository: Repository, packs: Iterable[PackId], wanted: Collection[ObjectId]) -> set[ObjectId]:
    """Of some objects, those that are in packs, as far as these can be read."""
    found: set[ObjectId] = set()
    for pack in packs if wanted else ():
        try:
            entries = repository.packs.table(pack).entries
        except (PackGone, Corrupt, Incompatible):
            continue
        found.update(entry.id for entry in entries if entry.id in wanted)
    return found


def adopt(repository: Repository, packs: Sequence[PackId]) -> None:
    """Tell the index of packs that it has not read, as far as what they hold can be read."""
    digest = digest_packs(repository.packs, packs)
    for problem in digest.problems:
        _log.warning("left out of the index: %s", problem)
    repository.index.write(lambda writer: _adopt(writer, digest))


def _adopt(writer: IndexWriter, digest: Digest) -> None:
    entries = [PackEntry(pack, entry) for pack, listed in digest.tables.items() for entry in listed]

    def depth_of(base: ObjectId) -> int | None:
        known = writer.places(base)
        return known[0].depth if known else None

    placed: dict[PackId, list[tuple[TableEntry, int]]] = {pack: [] for pack in digest.tables}
    for each, depth in resolve_depths(entries, depth_of).resolved:
        placed[each.pack].append((each.entry, depth))
    for pack, resolved in placed.items():
        writer.add_places(pack, resolved)
    for row in digest.rows:
        writer.add_commit(row)


@dataclass(slots=True)
class Emptying:
    """What becomes of packs of which nothing is needed.

    Attributes:
        removed: packs that are gone, or would be.
        removed_bytes: their length.
        left: packs that stay, and why.
    """

    removed: list[PackId] = field(default_factory=list)
    removed_bytes: int = 0
    left: dict[PackId, str] = field(default_factory=dict)


def remove_empty(
    repository: Repository, packs: Iterable[PackId], marks: Marks, room: Room | None, advance: Callable[[int], None]
) -> Emptying:
    """Remove packs of which the index has no place, and that hold nothing needed that it does not know.

    Args:
        repository: the store, whose ``gc.lock`` the caller holds.
        packs: which.
        marks: what is needed.
        room: makes some on a full disk; ``None`` to remove nothing, only to tell.
        advance: told of each pack.
    """
    done = Emptying()
    for pack in packs:
        try:
            entries = repository.packs.table(pack).entries
            size_bytes = repository.packs.size_bytes(pack)
        except PackGone:
            continue
        except (Corrupt, Incompatible) as error:
            done.left[pack] = str(error)
            continue
        if lacking := _only_here(repository, entries, marks):
            done.left[pack] = f"the index does not know {lacking} objects in it that are needed; run `moonclip fsck`"
        elif room is None or _retire(repository, pack, entries, room):
            done.removed.append(pack)
            done.removed_bytes += size_bytes
        else:
            done.left[pack] = "a writer is at work on it"
        advance(1)
    return done


def _only_here(repository: Repository, entries: Sequence[TableEntry], marks: Marks) -> int:
    needed = [entry.id for entry in entries if entry.id in marks.objects]
    return sum(not places for places in repository.index.places_of_each(needed).values())


def _retire(repository: Repository, pack: PackId, entries: Sequence[TableEntry], room: Room) -> bool:
    def retire() -> bool:
        with acquire_lease(repository.layout.root, repository.files) as lease:
            return retire_pack(repository, lease, pack, [entry.id for entry in entries])

    return room.make(retire)


def compact(
    repository: Repository,
    groups: Sequence[Sequence[PackId]],
    marks: Marks,
    room: Room,
    advance: Callable[[int], None],
) -> Replaced:
    """Move what is needed of packs into new ones. Where the disk is too full for that they stay as they are.

    Args:
        repository: the store, whose ``gc.lock`` the caller holds.
        groups: which, some at a time.
        marks: what is needed.
        room: makes some on a full disk.
        advance: told of bytes of these packs that are dealt with; may hold it up, or stop it.

    Raises as ``rewriting.Rewriter.replace`` does, but for a full disk.
    """
    rewriter, done = Rewriter(repository, advance), Replaced()
    for group in groups:
        try:
            done.add(room.make(lambda group=group: rewriter.replace(group, keep=marks.objects)))  # type: ignore[misc]
        except OSError as error:
            if error.errno != errno.ENOSPC:
                raise
            done.left |= dict.fromkeys(group, "the disk is too full to write anew what is needed of it")
    done.add(room.make(rewriter.finish))
    return done


def sizes_of(repository: Repository, packs: Iterable[PackId]) -> Mapping[PackId, int]:
    """Length of each pack that is there."""
    sizes: dict[PackId, int] = {}
    for pack in packs:
        try:
            sizes[pack] = repository.packs.size_bytes(pack)
        except PackGone:
            continue
    return sizes
