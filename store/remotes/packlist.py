"""Which packs a remote has, as its listings tell."""

from collections.abc import Iterable, Iterator
from typing import NamedTuple

from ..errors import Corrupt
from ..limits import MAX_REMOTE_KEYS
from .names import PACKS, PackName, parse_pack
from .storages.storage import Stat, Storage


class Listed(NamedTuple):
    """A pack as a listing shows it.

    Attributes:
        pack: the pack itself; ``None`` if only its idx is there.
        idx: its idx; ``None`` if only the pack is there.
    """

    pack: Stat | None = None
    idx: Stat | None = None

    @property
    def is_whole(self) -> bool:
        """Whether both are there: else the pack is not there for anybody."""
        return self.pack is not None and self.idx is not None

    @property
    def size_bytes(self) -> int:
        """What both take."""
        return sum(stat.size_bytes for stat in self if stat is not None)

    @property
    def modified_ns(self) -> int:
        """When the later of both was written, by the remote's clock."""
        return max((stat.modified_ns for stat in self if stat is not None), default=0)


Listing = dict[PackName, Listed]
"""All packs of a remote, those of which a part is missing too."""


def listing(storage: Storage) -> Listing:
    """All packs. One request for each thousand keys.

    Raises:
        Corrupt: there are more keys than any remote has.
    """
    return sort_keys(all_keys(storage, PACKS, MAX_REMOTE_KEYS))[0]


def all_keys(storage: Storage, prefix: str, most: int) -> Iterator[Stat]:
    """Keys that begin with a prefix. Whoever lies about them need not come to an end.

    Args:
        storage: the remote.
        prefix: the prefix.
        most: how many such keys a remote may have; whoever needs more memory for each allows fewer.

    Raises:
        Corrupt: there are more.
    """
    for number, found in enumerate(storage.list(prefix)):
        if number >= most:
            raise Corrupt(
                f"{storage.url} lists more than {most:,} keys {prefix}… where no remote has as many; check the URL"
            )
        yield found


def sort_keys(keys: Iterable[Stat]) -> tuple[Listing, list[Stat]]:
    """Packs, and the keys that belong to none."""
    packs: Listing = {}
    others: list[Stat] = []
    for stat in keys:
        parsed = parse_pack(stat.key)
        if parsed is None:
            others.append(stat)
        else:
            name, is_idx = parsed
            known = packs.get(name, Listed())
            packs[name] = known._replace(idx=stat) if is_idx else known._replace(pack=stat)
    return packs, others
