"""Whatever bytes a pack decoder is given: Corrupt or Incompatible, or what re-encodes to the same bytes."""

from contextlib import suppress

from hypothesis import example, given
from hypothesis import strategies as st
from xxhash import xxh3_128_digest

from store.codec import Transform
from store.codec.views import VIEW_BYTES
from store.errors import Corrupt, Incompatible
from store.format import pack
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, TableEntry
from store.ids import ObjectId
from store.limits import MAX_CHUNK_BYTES

IDS = st.binary(min_size=32, max_size=32).map(ObjectId)
CODES = st.one_of(st.integers(0, 9), st.integers(0, 255))
LENGTHS = st.one_of(st.integers(0, 300), st.sampled_from([MAX_CHUNK_BYTES, MAX_CHUNK_BYTES + 1, 2**32 - 1]))

_OBJECT_FIELDS = st.tuples(CODES, CODES, CODES, CODES, LENGTHS, LENGTHS, IDS, st.binary(max_size=120))


@st.composite
def possible_headers(draw: st.DrawFn) -> tuple[ObjectHeader, bytes]:
    """A header that the format allows, and a payload for it."""
    transform = draw(st.sampled_from(Transform))
    has_planes = transform not in (Transform.RAW, Transform.ZSTD)
    kind = Kind.CHUNK if has_planes else draw(st.sampled_from(Kind))
    element = draw(st.sampled_from(Element)) if kind is Kind.CHUNK else Element.INT8
    raw_bytes = draw(st.integers(1, 40)) * element.width_bytes
    viewed = transform.needs_base and raw_bytes > VIEW_BYTES and draw(st.booleans())
    least_bytes = raw_bytes if transform is Transform.RAW else VIEW_BYTES + 1 if viewed else 1
    payload_bytes = draw(st.integers(least_bytes, raw_bytes))
    object_id, base_id = draw(st.lists(IDS, min_size=2, max_size=2, unique=True))
    base = base_id if transform.needs_base else None
    grouped = has_planes and draw(st.booleans())
    payload = draw(st.binary(min_size=payload_bytes, max_size=payload_bytes))
    return ObjectHeader(kind, transform, grouped, element, raw_bytes, object_id, base, viewed), payload


@given(possible_headers(), st.data())
def test_sealing_round_trips_however_the_payload_is_cut(
    possible: tuple[ObjectHeader, bytes], data: st.DataObject
) -> None:
    header, payload = possible
    cut = data.draw(st.integers(0, len(payload)))
    sealed = pack.seal(header, [payload[:cut], payload[cut:]])
    stored = b"".join(sealed.buffers)
    assert len(stored) == sealed.stored_bytes <= header.raw_bytes + 64 + (32 if header.base else 0)
    assert pack.unseal(stored, "object") == (header, payload)
    assert pack.seal(header, [payload]).checksum == sealed.checksum


@given(st.lists(possible_headers(), max_size=6, unique_by=lambda possible: possible[0].id))
def test_tables_round_trip(possible: list[tuple[ObjectHeader, bytes]]) -> None:
    entries: list[TableEntry] = []
    for header, payload in possible:
        offset = entries[-1].end if entries else pack.HEADER_BYTES
        entries.append(pack.table_entry(pack.seal(header, [payload]), offset))
    table = pack.encode_table(entries)
    footer = pack.footer_of(table, entries[-1].end if entries else pack.HEADER_BYTES)
    pack_bytes = footer.table_offset + len(table) + pack.FOOTER_BYTES
    assert pack.decode_footer(pack.encode_footer(footer), pack_bytes, "pack") == footer
    assert pack.decode_table(table, footer, "pack").entries == tuple(entries)


@given(possible_headers(), st.integers(0), st.integers(1, 255))
def test_a_flipped_byte_of_an_object_is_noticed(possible: tuple[ObjectHeader, bytes], at: int, mask: int) -> None:
    header, payload = possible
    stored = bytearray(b"".join(pack.seal(header, [payload]).buffers))
    stored[at % len(stored)] ^= mask
    try:
        pack.unseal(stored, "object")
    except Corrupt:
        return
    raise AssertionError("unnoticed")


@given(st.binary(max_size=300))
@example(b"")
@example(pack.encode_header())
def test_arbitrary_bytes(data: bytes) -> None:
    for decode in (
        lambda: pack.unseal(data, "object"),
        lambda: pack.check_header(data, "pack"),
        lambda: pack.decode_footer(data, len(data), "pack"),
        lambda: pack.decode_table(data, pack.footer_of(data, 64), "pack"),
    ):
        with suppress(Corrupt, Incompatible):
            decode()


@given(_OBJECT_FIELDS)
def test_hostile_objects_with_right_checksums(fields: tuple[int, int, int, int, int, int, bytes, bytes]) -> None:
    kind, transform, element, flags, raw_bytes, payload_bytes, object_id, rest = fields
    lengths = raw_bytes.to_bytes(4, "little") + payload_bytes.to_bytes(4, "little")
    head = pack.OBJECT_MAGIC + bytes([kind, transform, element, flags]) + lengths + object_id
    data = head + xxh3_128_digest(head + rest) + rest
    try:
        header, payload = pack.unseal(data, "object")
    except (Corrupt, Incompatible):
        return
    assert b"".join(pack.seal(header, [payload]).buffers) == data


@given(st.lists(st.tuples(CODES, CODES, CODES, CODES, LENGTHS, LENGTHS, IDS, IDS), max_size=3), st.booleans())
def test_hostile_tables_with_right_checksums(
    rows: list[tuple[int, int, int, int, int, int, bytes, bytes]], tiles: bool
) -> None:
    table, offset = b"", 64
    for kind, transform, element, flags, raw_bytes, stored_bytes, object_id, base in rows:
        lengths = raw_bytes.to_bytes(4, "little") + stored_bytes.to_bytes(4, "little")
        base_field = base if flags & 1 else bytes(32)
        table += bytes([kind, transform, element, flags]) + lengths + offset.to_bytes(8, "little")
        table += object_id + base_field + bytes(16)
        offset += stored_bytes if tiles else stored_bytes // 2
    try:
        decoded = pack.decode_table(table, pack.footer_of(table, offset), "pack")
    except (Corrupt, Incompatible):
        return
    assert pack.encode_table(decoded.entries) == table
