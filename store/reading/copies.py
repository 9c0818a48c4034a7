"""What a plan to read is made of: bytes of a chunk, and where in memory they belong."""

from typing import TYPE_CHECKING, NamedTuple

from ..ids import ChunkId
from ..strided import Moves, move

if TYPE_CHECKING:
    from ..codec.casting import Casting


class ChunkCopy(NamedTuple):
    """Bytes ``start`` to ``start + len(out)`` of a chunk belong in ``out``.

    Attributes:
        chunk: the chunk.
        chunk_bytes: its length.
        start: first byte wanted.
        out: where they go.
    """

    chunk: ChunkId
    chunk_bytes: int
    start: int
    out: memoryview

    @property
    def is_whole(self) -> bool:
        """Whether a chunk can be decoded straight into ``out``."""
        return self.start == 0 and len(self.out) == self.chunk_bytes

    def put(self, raw: memoryview) -> None:
        """Copy from the decoded chunk."""
        self.out[:] = raw[self.start : self.start + len(self.out)]


class StridedCopy(NamedTuple):
    """Bytes of a chunk that lie apart, or belong apart: the part of a column that a chunk of rows holds.

    Attributes:
        chunk: the chunk.
        chunk_bytes: its length.
        start: first byte wanted.
        out: memory from where that one goes; bytes between those that are wanted are left as they are.
        moves: which bytes they are.
    """

    chunk: ChunkId
    chunk_bytes: int
    start: int
    out: memoryview
    moves: Moves

    @property
    def is_whole(self) -> bool:
        """Never: there are others between its bytes."""
        return False

    def put(self, raw: memoryview) -> None:
        """Copy from the decoded chunk."""
        move(self.moves, raw, self.start, self.out, 0)


class CastCopy(NamedTuple):
    """Bytes of a chunk that are elements of another dtype than they will be.

    Attributes:
        chunk: the chunk.
        chunk_bytes: its length.
        copy: what is wanted of the chunk once it is cast.
        casting: how it is cast.
        first: which element of its tensor the chunk's first is, as ``casting`` counts them.
    """

    chunk: ChunkId
    chunk_bytes: int
    copy: ChunkCopy | StridedCopy
    casting: "Casting"
    first: int

    @property
    def is_whole(self) -> bool:
        """Never: a chunk is decoded elsewhere, and cast from there."""
        return False

    def put(self, raw: memoryview) -> None:
        """Cast the decoded chunk, straight into its place if that is one run of elements."""
        copy, casting, item_bytes = self.copy, self.casting, self.casting.target_bytes
        if isinstance(copy, ChunkCopy) and copy.start % item_bytes == 0 and len(copy.out) % item_bytes == 0:
            start, count = copy.start // item_bytes, len(copy.out) // item_bytes
            wanted = raw[start * casting.source_bytes : (start + count) * casting.source_bytes]
            casting.into(wanted, self.first + start, copy.out)
        else:
            copy.put(casting.new(raw, self.first))


Copy = ChunkCopy | StridedCopy | CastCopy
