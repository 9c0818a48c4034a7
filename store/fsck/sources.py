"""Where lost objects may be had from: another copy of the store, or of any other that has them."""

from typing import Protocol

from ..errors import Corrupt, NotFound
from ..format.objects import Kind
from ..ids import ChunkId, ObjectId
from ..reading.reader import decode_small
from ..repository import Repository


class Source(Protocol):
    """Gives objects by id. What it gives is compared with the id: it need not be trusted."""

    def get(self, object_id: ObjectId, kind: Kind) -> bytes | bytearray | None:
        """Content of an object: a chunk's raw bytes, the canonical encoding of a tree or commit.

        Returns:
            ``None`` if it has none that is whole.

        Raises:
            OSError: it cannot be reached.
        """
        ...


class StoreSource:
    """Another store.

    Args:
        repository: the store; open as long as this is in use.
    """

    def __init__(self, repository: Repository) -> None:
        self._reader = repository.reader

    def get(self, object_id: ObjectId, kind: Kind) -> bytes | bytearray | None:
        """Content of an object, if the store has it whole."""
        try:
            if kind == Kind.CHUNK:
                return self._reader.chunk(ChunkId(object_id))
            return decode_small(*self._reader.stored(object_id, kind))
        except (NotFound, Corrupt):
            return None
