"""The pack format: sealing, tables, and what is refused."""

import os
from pathlib import Path

import pytest
from xxhash import xxh3_128_digest

from store.codec import Transform
from store.errors import Corrupt, Incompatible
from store.format import pack
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, TableEntry
from store.ids import ObjectId, chunk_id
from store.limits import HELD_COPY_BYTES, MAX_CHUNK_BYTES, MAX_TREE_BYTES
from store.reading.packs import PackStore
from tests import packing

RAW = b"some raw bytes, forty of them, or so....".ljust(40)
HEADER = ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.INT8, len(RAW), chunk_id(RAW))
BASE = chunk_id(b"base")


def entry(**changes: object) -> TableEntry:
    """An entry for RAW right behind the pack's header."""
    return pack.table_entry(pack.seal(HEADER, [RAW]), pack.HEADER_BYTES)._replace(**changes)  # type: ignore[arg-type]


def decode(entries: list[TableEntry], table_offset: int | None = None) -> pack.PackTable:
    table = pack.encode_table(entries)
    end = entries[-1].end if table_offset is None else table_offset
    return pack.decode_table(table, pack.footer_of(table, end), "pack")


def resealed(data: bytes, start: int, new: bytes) -> bytes:
    """An object, header or footer with some bytes replaced and its checksum made right."""
    changed = bytearray(data)
    changed[start : start + len(new)] = new
    rest = changed[64:]
    changed[48:64] = xxh3_128_digest(bytes(changed[:48] + rest))
    return bytes(changed)


def stored(sealed: pack.Sealed) -> bytes:
    return b"".join(sealed.buffers)


def test_sizes_are_what_the_format_says() -> None:
    assert len(pack.encode_header()) == pack.HEADER_BYTES == 64
    assert len(pack.encode_footer(pack.footer_of(b"", 64))) == pack.FOOTER_BYTES == 64
    assert len(pack.encode_table([entry()])) == pack.ENTRY_BYTES == 100


def test_what_is_sealed_unseals() -> None:
    sealed = pack.seal(HEADER, [RAW[:7], memoryview(RAW)[7:]])
    assert sealed.stored_bytes == len(stored(sealed)) == len(RAW) + 64
    header, payload = pack.unseal(stored(sealed), "object")
    assert (header, payload) == (HEADER, RAW)


def test_a_base_costs_32_bytes() -> None:
    header = HEADER._replace(transform=Transform.DIFF, grouped=True, base=BASE)
    sealed = pack.seal(header, [b"payload"])
    assert sealed.stored_bytes == 64 + 32 + 7
    assert pack.unseal(stored(sealed), "object") == (header, b"payload")


def test_sealing_copies_no_long_payload() -> None:
    raw = bytearray(HELD_COPY_BYTES)
    assert pack.seal(HEADER._replace(raw_bytes=len(raw)), [raw]).buffers[1] is raw


@pytest.mark.parametrize("part_count", [1, 2, 5])
@pytest.mark.parametrize("base", [None, BASE])
def test_long_and_short_payloads_are_laid_out_alike(
    monkeypatch: pytest.MonkeyPatch, part_count: int, base: ObjectId | None
) -> None:
    """Short ones are joined."""
    header = HEADER._replace(transform=Transform.XOR if base else Transform.ZSTD, base=base)
    parts = [RAW[:20][number::part_count] for number in range(part_count)]
    joined = pack.seal(header, parts)
    monkeypatch.setattr(pack, "HELD_COPY_BYTES", 0)
    referred = pack.seal(header, parts)
    assert b"".join(referred.buffers) == b"".join(joined.buffers)
    assert referred._replace(buffers=joined.buffers) == joined


def test_a_payload_of_words_is_measured_in_bytes() -> None:
    words = memoryview(RAW).cast("Q")
    assert pack.seal(HEADER._replace(element=Element.INT64), [words]).stored_bytes == 64 + len(RAW)


IMPOSSIBLE = [
    (HEADER._replace(raw_bytes=0), b"x"),
    (HEADER._replace(raw_bytes=MAX_CHUNK_BYTES + 1, transform=Transform.ZSTD), b"x"),
    (HEADER._replace(kind=Kind.TREE, raw_bytes=MAX_TREE_BYTES + 1, transform=Transform.ZSTD), b"x"),
    (HEADER, RAW + b"!"),
    (HEADER, RAW[1:]),
    (HEADER._replace(transform=Transform.ZSTD), b""),
    (HEADER._replace(transform=Transform.PLANES), RAW + b"!"),
    (HEADER._replace(base=BASE), RAW),
    (HEADER._replace(transform=Transform.PLANES, base=BASE), b"x"),
    (HEADER._replace(transform=Transform.XOR), b"x"),
    (HEADER._replace(transform=Transform.XOR, base=HEADER.id), b"x"),
    (HEADER._replace(grouped=True), RAW),
    (HEADER._replace(transform=Transform.ZSTD, grouped=True), b"x"),
    (HEADER._replace(element=Element.FP32, raw_bytes=42, transform=Transform.PLANES), b"x"),
    (HEADER._replace(kind=Kind.TREE, element=Element.INT16), RAW),
    (HEADER._replace(kind=Kind.COMMIT, transform=Transform.PLANES), b"x"),
]


@pytest.mark.parametrize(("header", "payload"), IMPOSSIBLE)
def test_an_impossible_object_is_neither_sealed_nor_read(header: ObjectHeader, payload: bytes) -> None:
    with pytest.raises(ValueError, match=header.id.hex()):
        pack.seal(header, [payload])
    impossible = TableEntry(
        kind=header.kind,
        transform=header.transform,
        element=header.element,
        raw_bytes=header.raw_bytes,
        stored_bytes=64 + (32 if header.base else 0) + len(payload),
        offset=64,
        id=header.id,
        base=header.base,
        checksum=bytes(16),
        grouped=header.grouped,
    )
    with pytest.raises(Corrupt):
        decode([impossible])


def test_an_impossible_object_with_a_right_checksum_is_refused() -> None:
    good = stored(pack.seal(HEADER, [RAW]))
    with pytest.raises(Corrupt, match="raw payload"):
        pack.unseal(resealed(good, 8, (41).to_bytes(4, "little")), "object")


@pytest.mark.parametrize(("at", "code"), [(4, 9), (5, 77), (6, 9), (7, 4)])
def test_unknown_codes_are_newer_not_damaged(at: int, code: int) -> None:
    good = stored(pack.seal(HEADER, [RAW]))
    with pytest.raises(Incompatible, match="newer version"):
        pack.unseal(resealed(good, at, bytes([code])), "object")


def test_an_object_longer_or_shorter_than_it_says_is_refused() -> None:
    good = stored(pack.seal(HEADER, [RAW]))
    for data in (good + b"\0", good[:-1], good[:63], b""):
        with pytest.raises(Corrupt):
            pack.unseal(data, "object")


def test_a_table_comes_back_as_it_was() -> None:
    sealed = [
        pack.seal(HEADER, [RAW]),
        pack.seal(HEADER._replace(id=BASE, transform=Transform.XOR, base=HEADER.id, grouped=True), [b"abc"]),
        pack.seal(ObjectHeader(Kind.TREE, Transform.ZSTD, False, Element.INT8, 100, chunk_id(b"t")), [b"z" * 50]),
    ]
    entries, offset = [], 64
    for each in sealed:
        entries.append(pack.table_entry(each, offset))
        offset += each.stored_bytes
    table = decode(entries)
    assert table.entries == tuple(entries)
    assert [each.header for each in table.entries] == [each.header for each in sealed]


def test_an_empty_pack_is_a_pack() -> None:
    assert pack.decode_table(b"", pack.footer_of(b"", 64), "pack").entries == ()


def test_the_id_commits_to_content() -> None:
    assert decode([entry()]).id != decode([entry(checksum=bytes(16))]).id


@pytest.mark.parametrize(
    ("entries", "table_offset", "why"),
    [
        ([entry(offset=65)], None, "offset 65 where one should begin at 64"),
        ([entry(offset=63)], None, "offset 63 where one should begin at 64"),
        ([entry(), entry(offset=entry().end + 1, id=BASE)], None, "should begin"),
        ([entry(), entry(offset=entry().end - 1, id=BASE)], None, "should begin"),
        ([entry()], entry().end + 1, "table begins"),
        ([entry()], entry().end - 1, "table begins"),
        ([entry(), entry(offset=entry().end)], None, "twice"),
    ],
)
def test_holes_overlaps_and_doubles_are_refused(entries: list[TableEntry], table_offset: int | None, why: str) -> None:
    with pytest.raises(Corrupt, match=why):
        decode(entries, table_offset)


def test_a_base_without_its_flag_is_refused() -> None:
    table = bytearray(pack.encode_table([entry()]))
    table[52] = 1
    with pytest.raises(Corrupt, match="flag"):
        pack.decode_table(bytes(table), pack.footer_of(table, entry().end), "pack")


def test_another_version_is_incompatible() -> None:
    with pytest.raises(Incompatible, match="version 2"):
        pack.check_header(resealed(pack.encode_header(), 8, b"\2"), "pack")
    footer = pack.encode_footer(pack.footer_of(b"", 64))
    with pytest.raises(Incompatible, match="version 2"):
        pack.decode_footer(resealed(footer, 8, b"\2"), 128, "pack")


def test_bytes_that_must_be_zero_are_checked() -> None:
    with pytest.raises(Corrupt, match="zero"):
        pack.check_header(resealed(pack.encode_header(), 40, b"\1"), "pack")
    footer = pack.encode_footer(pack.footer_of(b"", 64))
    with pytest.raises(Corrupt, match="zero"):
        pack.decode_footer(resealed(footer, 12, b"\1"), 128, "pack")


@pytest.mark.parametrize(("table_offset", "entry_count"), [(64, 2**63), (2**64 - 1, 0), (0, 0), (64, 1)])
def test_a_footer_that_lies_about_lengths_allocates_nothing(table_offset: int, entry_count: int) -> None:
    footer = pack.encode_footer(pack.Footer(table_offset, entry_count, bytes(16)))
    with pytest.raises(Corrupt):
        pack.decode_footer(footer, 128, "pack")


@pytest.mark.parametrize("mask", [0x01, 0x80, 0xFF])
def test_every_flipped_byte_of_a_pack_is_noticed(tmp_path: Path, mask: int) -> None:
    data = packing.join([packing.chunk(b"first"), packing.delta(b"second", b"first", b"xy"), packing.chunk(b"third")])
    pack_id = packing.id_of(data)
    for at in range(len(data)):
        changed = bytearray(data)
        changed[at] ^= mask
        packing.place(tmp_path, bytes(changed), pack_id)
        with pytest.raises((Corrupt, Incompatible), match=pack_id.hex()):
            packing.verified(PackStore(packing.Files(), tmp_path), pack_id)


def test_every_truncation_and_extension_of_a_pack_is_noticed(tmp_path: Path) -> None:
    data = packing.join([packing.chunk(b"first"), packing.chunk(b"second")])
    pack_id = packing.id_of(data)
    others = [data[:length] for length in range(len(data))] + [data + b"\0", data + os.urandom(64), b"\0" + data]
    for other in others:
        packing.place(tmp_path, other, pack_id)
        with pytest.raises(Corrupt, match=pack_id.hex()):
            PackStore(packing.Files(), tmp_path).table(pack_id)
