"""What moving what is needed of sparse packs would come to."""

from collections.abc import Sequence
from typing import Final

from ..format.objects import Kind
from ..format.pack import TableEntry
from ..ids import ObjectId, PackId
from ..index import Place
from ..limits import MAX_PACK_BYTES
from ..repack.hollow import pack_bytes
from ..repository import Repository
from ..upkeep.rewriting import Replaced
from .marking import Marks

_UNMADE: Final = PackId(b"")
"""In place of a pack that is not there yet."""


def foretell(repository: Repository, groups: Sequence[Sequence[PackId]], marks: Marks) -> Replaced:
    """What ``packing.compact`` would do, as far as nothing is damaged. Changes nothing.

    A delta that looks deeper in the index than it is may come to be read first meanwhile: that is not foreseen.

    Args:
        repository: the store.
        groups: packs, some at a time.
        marks: what is needed.

    Raises:
        NotFound: a pack is not there.
        Corrupt: the table of one is damaged.
        Incompatible: a newer version wrote it.
        OSError: it cannot be read.
    """
    told, moves = Replaced(), _Moves(marks)
    for group in groups:
        sizes: list[int] = []
        moves.begin(group)
        for pack in group:
            entries = repository.packs.table(pack).entries
            places = repository.index.places_of_each([entry.id for entry in entries])
            told.removed.append(pack)
            told.removed_bytes += repository.packs.size_bytes(pack)
            moved = (moves.meet(entry, pack, places[entry.id]) for entry in entries)
            sizes += [place.stored_bytes for place in moved if place is not None]
        for made in _filled(sizes):
            told.made.append(_UNMADE)
            told.made_bytes += made
    return told


class _Moves:
    """What becomes of copies as one group of packs after another goes, as ``rewriting.Rewriter`` decides it.

    Args:
        marks: what is needed.
    """

    def __init__(self, marks: Marks) -> None:
        self._marks = marks
        self._gone: set[PackId] = set()
        self._going: set[PackId] = set()
        self._made: dict[ObjectId, list[Place]] = {}

    def begin(self, group: Sequence[PackId]) -> None:
        """Turn to packs that go together; those of the group before are gone."""
        self._gone |= self._going
        self._going = set(group)

    def meet(self, entry: TableEntry, pack: PackId, places: Sequence[Place]) -> Place | None:
        """The copy that is moved as an entry is met, if one is.

        Args:
            entry: of the table of a pack that goes.
            pack: the pack.
            places: copies of the object before any pack went, the one that is read first.
        """
        known = self._left(entry.id, places)
        is_needed = entry.id in self._marks.objects or _is_commit_in(pack, entry, known)
        if not known or not is_needed:
            return None
        read = known[0]
        if any(place.base == read.base and place.pack not in self._going for place in known):
            return None
        self._made.setdefault(entry.id, []).append(read._replace(pack=_UNMADE))
        return read

    def _left(self, object_id: ObjectId, places: Sequence[Place]) -> list[Place]:
        """Copies that there are by now, as the index lists them: of equally deep ones that in the newest pack last."""
        left = [place for place in places if place.pack not in self._gone]
        made = self._made.get(object_id)
        return sorted([*left, *made], key=lambda place: place.depth) if made else left


def _is_commit_in(pack: PackId, entry: TableEntry, known: Sequence[Place]) -> bool:
    """Whether it is a commit with a place in a pack: those stay, also of commits that nothing reaches."""
    return entry.kind is Kind.COMMIT and any(place.pack == pack for place in known)


def _filled(sizes: Sequence[int]) -> list[int]:
    """Lengths of the packs that objects of these sizes fill, one after another."""
    lengths: list[int] = []
    stored_bytes = count = 0
    for size_bytes in sizes:
        if count and pack_bytes(stored_bytes, 0) + size_bytes > MAX_PACK_BYTES:
            lengths.append(pack_bytes(stored_bytes, count))
            stored_bytes = count = 0
        stored_bytes += size_bytes
        count += 1
    return [*lengths, pack_bytes(stored_bytes, count)] if count else lengths
