"""Which packs are worth replacing for what is in them that nobody counts on: small ones and hollow ones. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from typing import NamedTuple

from ..batches import fitting
from ..format.pack import ENTRY_BYTES, FOOTER_BYTES, HEADER_BYTES
from ..ids import PackId
from ..limits import HOLLOW_PACK_RATIO, REWRITE_PACK_BYTES, SMALL_PACK_BYTES


class Filling(NamedTuple):
    """A pack, and how much of it is needed.

    Attributes:
        id: the pack.
        size_bytes: its length.
        needed_bytes: length of a pack of just those of its objects that are needed, and that are read from here.
        is_touched: whether something in it is to be stored in another way.
    """

    id: PackId
    size_bytes: int
    needed_bytes: int
    is_touched: bool = False

    @property
    def spare_bytes(self) -> int:
        """What is not needed."""
        return self.size_bytes - self.needed_bytes

    @property
    def is_hollow(self) -> bool:
        """Whether it is worth replacing by itself."""
        return self.needed_bytes < HOLLOW_PACK_RATIO * self.size_bytes

    @property
    def is_wanting(self) -> bool:
        """Whether it is worth replacing, perhaps with others."""
        return self.is_hollow or self.size_bytes < SMALL_PACK_BYTES


def pack_bytes(stored_bytes: int, object_count: int) -> int:
    """Length of a pack of so many objects that take so much."""
    return HEADER_BYTES + stored_bytes + ENTRY_BYTES * object_count + FOOTER_BYTES


def groups(packs: Iterable[Filling]) -> Iterator[Sequence[Filling]]:
    """Packs that are replaced together, of those that may be.

    Not one alone that is but small: it would come out as it was.
    """
    for group in fitting(packs, lambda pack: pack.needed_bytes, REWRITE_PACK_BYTES):
        if len(group) > 1 or any(pack.is_touched or pack.is_hollow for pack in group):
            yield group


def spare_bytes(packs: Iterable[Filling]) -> int:
    """How much a repack that puts packs together takes out of some, in order of their arrival."""
    return sum(pack.spare_bytes for group in groups(pack for pack in packs if pack.is_wanting) for pack in group)
