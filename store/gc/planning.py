"""What becomes of packs, from what the index has of them. Pure."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..ids import PackId
from ..limits import COMPACT_SHARE, REWRITE_PACK_BYTES
from ..repack.hollow import Filling, pack_bytes, spare_bytes
from .survey import Tally


@dataclass(frozen=True, slots=True)
class Plan:
    """Packs, by what becomes of them.

    Attributes:
        empty: of these nothing is needed: they go.
        sparse: of these little is needed: that is moved into new packs, some at a time, and they go.
    """

    empty: Sequence[PackId]
    sparse: Sequence[Sequence[PackId]]

    @property
    def moved(self) -> list[PackId]:
        """All sparse packs."""
        return [pack for group in self.sparse for pack in group]


def plan(tallies: Mapping[PackId, Tally], sizes: Mapping[PackId, int]) -> Plan:
    """Decide.

    Args:
        tallies: what the index has of each pack, doomed places counted.
        sizes: length in bytes of each pack that may be touched.
    """
    known = {pack: tallies.get(pack, Tally(0)) for pack in sizes}
    empty = [pack for pack, tally in known.items() if tally.place_count == tally.doomed_count]
    gone = set(empty)
    sparse = [
        pack for pack, tally in known.items() if pack not in gone and needed_bytes(tally) < COMPACT_SHARE * sizes[pack]
    ]
    return Plan(sorted(empty), list(_groups(sorted(sparse), known)))


def needed_bytes(tally: Tally) -> int:
    """Length of a pack of just what is needed of this one."""
    stored_bytes = tally.stored_bytes - tally.doomed_bytes
    return pack_bytes(stored_bytes, tally.place_count - tally.doomed_count)


def filling(pack: PackId, size_bytes: int, tally: Tally) -> Filling:
    """What repack will find of a pack once the doomed places are gone: copies beside the one that is read go, too."""
    stored_bytes = tally.stored_bytes - tally.doomed_bytes - tally.copied_bytes
    count = tally.place_count - tally.doomed_count - tally.copied_count
    return Filling(pack, size_bytes, pack_bytes(stored_bytes, count))


def spare_after(
    planned: Plan, tallies: Mapping[PackId, Tally], sizes: Mapping[PackId, int], order: Iterable[PackId]
) -> int:
    """How much a repack takes out of packs that stay.

    Args:
        planned: what becomes of packs.
        tallies: as for :func:`plan`.
        sizes: likewise.
        order: packs in order of their arrival.
    """
    gone = {*planned.empty, *planned.moved}
    staying = [pack for pack in order if pack in sizes and pack not in gone]
    return spare_bytes(filling(pack, sizes[pack], tallies.get(pack, Tally(0))) for pack in staying)


def _groups(packs: Sequence[PackId], tallies: Mapping[PackId, Tally]) -> Iterator[list[PackId]]:
    group: list[PackId] = []
    room_bytes = REWRITE_PACK_BYTES
    for pack in packs:
        if group and needed_bytes(tallies[pack]) > room_bytes:
            yield group
            group, room_bytes = [], REWRITE_PACK_BYTES
        group.append(pack)
        room_bytes -= needed_bytes(tallies[pack])
    if group:
        yield group
