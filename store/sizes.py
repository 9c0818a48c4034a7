"""What tensors and values take in the store, from the index alone: nothing of them is read."""

from collections import Counter
from collections.abc import Callable, Collection, Iterable
from dataclasses import dataclass

from .format.entries import ContainerEntry, Entry
from .format.objects import Kind
from .ids import ChunkId
from .index import Place
from .reading.reader import ObjectReader


@dataclass(frozen=True, slots=True)
class Stored:
    """How something is stored.

    Attributes:
        stored_bytes: what its chunks take in packs. Chunks that others share count in full, bases of deltas not.
        encodings: how many chunks are stored how: ``"delta"``, ``"compressed"``, ``"raw"``; ``"inline"`` is no chunk,
            and what is ``"absent"`` takes nothing until it is read, and fetched for that.
        depth: objects below the deepest of its deltas.
    """

    stored_bytes: int
    encodings: dict[str, int]
    depth: int

    @property
    def text(self) -> str:
        """``"delta"``, or ``"3 delta, 1 raw"``."""
        if len(self.encodings) == 1:
            return next(iter(self.encodings))
        return ", ".join(f"{count} {encoding}" for encoding, count in self.encodings.items())


class Sizes:
    """Looks chunks up, each once.

    Args:
        reader: finds their places.
        is_awaited: whether a chunk is not here, and comes when it is read.
    """

    def __init__(self, reader: ObjectReader, is_awaited: Callable[[ChunkId], bool]) -> None:
        self._reader = reader
        self._is_awaited = is_awaited
        self._places: dict[ChunkId, Place | None] = {}

    def of(self, entry: Entry) -> Stored:
        """How a tensor or value is stored.

        Raises:
            NotFound: a chunk is missing.
            Corrupt: no copy of a chunk is good.
        """
        if isinstance(entry, ContainerEntry) or entry.inline is not None:
            return Stored(_inline_bytes(entry), {"inline": 1}, 0)
        found = [self._place(chunk) for chunk in entry.chunks]
        encodings = Counter(map(_encoding, found))
        places = [place for place in found if place is not None]
        depth = max((place.depth for place in places), default=0)
        return Stored(sum(place.stored_bytes for place in places), dict(encodings.most_common()), depth)

    def total_bytes(self, entries: Iterable[Entry], held: Collection[ChunkId] = frozenset()) -> int:
        """What entries take together, each chunk counted once and those in ``held`` not. Raises as :meth:`of` does."""
        listed = list(entries)
        inline_bytes = sum(map(_inline_bytes, listed))
        chunks = {chunk for entry in listed for chunk in entry.chunks if chunk not in held}
        return inline_bytes + sum(place.stored_bytes for place in map(self._place, chunks) if place is not None)

    def _place(self, chunk: ChunkId) -> Place | None:
        if chunk not in self._places:
            self._places[chunk] = None if self._is_awaited(chunk) else self._reader.place(chunk, Kind.CHUNK)
        return self._places[chunk]


def size_bytes_of(entry: Entry) -> int:
    """Raw bytes of a tensor or of a value's encoding."""
    return 0 if isinstance(entry, ContainerEntry) else entry.size_bytes


def _inline_bytes(entry: Entry) -> int:
    """What sits in the tree: less than the raw bytes if it was cast."""
    return 0 if isinstance(entry, ContainerEntry) or entry.inline is None else len(entry.inline)


def _encoding(place: Place | None) -> str:
    if place is None:
        return "absent"
    if place.base is not None:
        return "delta"
    # A stored object has a header: bytes that did not shrink come out a little longer than they were.
    return "compressed" if place.stored_bytes < place.raw_bytes else "raw"
