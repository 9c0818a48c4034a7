"""What stored objects decode to, compared with the hashes that they are named by."""

from collections.abc import Set as AbstractSet

from ..errors import Corrupt
from ..format.objects import Kind
from ..format.pack import ObjectHeader, TableEntry
from ..ids import ChunkId, ObjectId, PackId, chunk_id, commit_id, tree_id
from ..index import Place
from ..reading.chains import Kept
from ..reading.decoding import decode_chunk
from ..reading.packs import PackStore
from ..reading.reader import ObjectReader, decode_small


class Verifier:
    """Decodes objects and compares their hashes. Thread-safe.

    Args:
        reader: reads the bases of deltas.
        packs: reads stored objects.
        shared: chunks that are worth keeping for a while once they are decoded, since others are deltas against them.
    """

    def __init__(self, reader: ObjectReader, packs: PackStore, shared: AbstractSet[ObjectId] = frozenset()) -> None:
        self._reader = reader
        self._packs = packs
        self._kept = Kept(shared)

    def chunk(self, object_id: ObjectId, raw_bytes: int | None) -> memoryview:
        """A chunk's raw bytes, not to be altered, whose hash was compared.

        Args:
            object_id: the chunk.
            raw_bytes: its length; ``None`` for whatever it has.

        Raises:
            NotFound: it, or a delta base of it, is nowhere.
            Corrupt: no intact copy, or content of another hash or length.
        """
        raw = self._kept.get(object_id)
        if raw is None:
            if raw_bytes is None:
                raw_bytes = self._reader.place(object_id, Kind.CHUNK).raw_bytes
            raw = memoryview(bytearray(raw_bytes))
            self._reader.chunk_into(ChunkId(object_id), raw, verify_hash=True, kept=self._kept)
        return raw

    def require(self, pack: PackId, entry: TableEntry) -> None:
        """See that a pack holds what its table says, and that this decodes to what it is named by.

        Raises:
            NotFound: there is no such pack, or the base of the delta is nowhere.
            Corrupt: the object is damaged, or its content has another hash.
            Incompatible: a newer version wrote it.
            OSError: the pack cannot be read.
        """
        self._require(*self._packs.read_entry(pack, entry), pack, entry.offset)

    def require_place(self, object_id: ObjectId, place: Place) -> None:
        """The same for a copy that the index tells of."""
        stored = self._packs.read(place.pack, place.offset, place.stored_bytes, object_id)
        self._require(*stored, place.pack, place.offset)

    def _require(self, header: ObjectHeader, payload: memoryview, pack: PackId, offset: int) -> None:
        if self._id_of(header, payload) != header.id:
            raise Corrupt(
                f"pack {pack.hex()} at offset {offset}: {header.kind.name.lower()} {header.id.hex()}: content does not"
                f" match its id",
                pack=pack.hex(),
                offset=offset,
                object=header.id.hex(),
            )

    def _id_of(self, header: ObjectHeader, payload: memoryview) -> ObjectId:
        if header.kind != Kind.CHUNK:
            raw = decode_small(header, payload)
            return tree_id(raw) if header.kind == Kind.TREE else commit_id(raw)
        base = None if header.base is None else self.chunk(header.base, None if header.viewed else header.raw_bytes)
        out = memoryview(bytearray(header.raw_bytes))
        decode_chunk(header, payload, base, out)
        found = chunk_id(out)
        if found == header.id and self._kept.wants(header.id):
            self._kept.put(header.id, out)
        return found
