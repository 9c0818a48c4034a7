"""Objects that are stored more than once, for tests."""

from store.codec import Transform, encode
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, Sealed, seal
from store.gc.packing import adopt
from store.ids import ObjectId, PackId, chunk_id
from store.repository import Repository
from tests.packing import write


def index_pack(repo: Repository, sealed: list[Sealed]) -> PackId:
    """Publish a pack, and tell the index of it."""
    table = write(repo.layout.packs, sealed)
    adopt(repo, [table.id])
    return table.id


def copied(repo: Repository, object_id: ObjectId) -> Sealed:
    """A chunk just as it is stored."""
    header, payload = repo.reader.stored(object_id, Kind.CHUNK)
    return seal(header, [payload])


def against(base: bytes, raw: bytes) -> Sealed:
    """A chunk of float32 as a delta."""
    encoded = encode(memoryview(raw), Element.FP32, memoryview(base))
    assert encoded.uses_base
    header = ObjectHeader(
        Kind.CHUNK, encoded.transform, encoded.grouped, Element.FP32, len(raw), chunk_id(raw), chunk_id(base)
    )
    return seal(header, encoded.payload)


def lying(raw: bytes) -> Sealed:
    """A chunk of float32 in full that decodes to something else, although its checksum fits."""
    other = bytes([raw[0] ^ 1]) + raw[1:]
    return seal(ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.FP32, len(raw), chunk_id(raw)), [other])
