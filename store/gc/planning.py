"""What becomes of packs, from what the index has of them. Pure."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

from ..format.pack import ENTRY_BYTES, FOOTER_BYTES, HEADER_BYTES
from ..ids import PackId
from ..limits import COMPACT_SHARE, REWRITE_PACK_BYTES
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


def pack_bytes(stored_bytes: int, object_count: int) -> int:
    """Length of a pack of so many objects that take so much."""
    return HEADER_BYTES + stored_bytes + ENTRY_BYTES * object_count + FOOTER_BYTES


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
