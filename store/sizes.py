"""What tensors and values take in the store, from the index alone: nothing of them is read."""

from collections import Counter
from collections.abc import Collection, Iterable
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
        encodings: how many chunks are stored how: ``"delta"``, ``"compressed"``, ``"raw"``; ``"inline"`` is no chunk.
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
    """

    def __init__(self, reader: ObjectReader) -> None:
        self._reader = reader
        self._places: dict[ChunkId, Place] = {}

    def of(self, entry: Entry) -> Stored:
        """How a tensor or value is stored.

        Raises:
            NotFound: a chunk is missing.
            Corrupt: no copy of a chunk is good.
        """
        if isinstance(entry, ContainerEntry) or entry.inline is not None:
            return Stored(size_bytes_of(entry), {"inline": 1}, 0)
        places = [self._place(chunk) for chunk in entry.chunks]
        encodings = Counter(map(_encoding, places))
        depth = max((place.depth for place in places), default=0)
        return Stored(sum(place.stored_bytes for place in places), dict(encodings.most_common()), depth)

    def total_bytes(self, entries: Iterable[Entry], held: Collection[ChunkId] = frozenset()) -> int:
        """What entries take together, each chunk counted once and those in ``held`` not. Raises as :meth:`of` does."""
        listed = list(entries)
        inline_bytes = sum(size_bytes_of(entry) for entry in listed if not entry.chunks)
        chunks = {chunk for entry in listed for chunk in entry.chunks if chunk not in held}
        return inline_bytes + sum(self._place(chunk).stored_bytes for chunk in chunks)

    def _place(self, chunk: ChunkId) -> Place:
        if chunk not in self._places:
            self._places[chunk] = self._reader.place(chunk, Kind.CHUNK)
        return self._places[chunk]


def size_bytes_of(entry: Entry) -> int:
    """Raw bytes of a tensor or of a value's encoding."""
    return 0 if isinstance(entry, ContainerEntry) else entry.size_bytes


def _encoding(place: Place) -> str:
    if place.base is not None:
        return "delta"
    # A stored object has a header: bytes that did not shrink come out a little longer than they were.
    return "compressed" if place.stored_bytes < place.raw_bytes else "raw"
