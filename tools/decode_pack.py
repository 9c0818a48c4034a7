"""Decode packs from the written format alone: nothing of the store is imported, and nothing is shared with it.

    python tools/decode_pack.py PACK...

Checks every rule of docs/format.md §5 and §6, decodes every object whose base lies in one of the packs given, compares
what came out with its id, and prints one JSON object a line. Exits with 1 at the first thing that is wrong.
"""

import json
import struct
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import numpy.typing as npt
import zstandard
from blake3 import blake3
from xxhash import xxh3_128_digest

HEADER_MAGIC = bytes.fromhex("89 4D 43 50 41 43 4B 0A")
FOOTER_MAGIC = bytes.fromhex("89 4D 43 54 41 49 4C 0A")
OBJECT_MAGIC = bytes.fromhex("4D 43 4F 31")
PACK_CONTEXT = "moonclip 2026-11 pack table v1"
ID_CONTEXTS = {2: "moonclip 2026-11 tree v1", 3: "moonclip 2026-11 commit v1"}

KINDS = {1: "chunk", 2: "tree", 3: "commit"}
MAX_RAW_BYTES = {1: 4_194_304, 2: 67_108_864, 3: 67_108_864}
TRANSFORMS = {0: "raw", 1: "planes", 2: "xor", 3: "diff", 4: "zstd"}
RAW, PLANES, XOR, DIFF, ZSTD = range(5)

WIDTHS = (1, 2, 4, 8, 1, 2, 2, 4, 8)
"""Bytes of a word, by element code."""
GROUP_BITS = {4: (0, 8), 5: (7, 8), 6: (10, 5), 7: (23, 8), 8: (52, 8)}
"""Lowest bit and number of bits of the group key in a word, by element code; what has none is no float."""
BF16, FP16, FP32 = FLOATS = (5, 6, 7)
"""Elements whose words can be cast into each other."""
CONSTANT, PLAIN, COMPRESSED = range(3)

Words = npt.NDArray[Any]


class BadPack(Exception):
    """A rule of the format is broken."""


@dataclass(frozen=True)
class Object:
    """One object of a pack, as its table describes it."""

    kind: int
    transform: int
    element: int
    flags: int
    raw_bytes: int
    stored_bytes: int
    offset: int
    id: bytes
    base: bytes
    checksum: bytes

    @property
    def has_base(self) -> bool:
        """Flag bit 0."""
        return bool(self.flags & 1)

    @property
    def is_grouped(self) -> bool:
        """Flag bit 1."""
        return bool(self.flags & 2)

    @property
    def is_viewed(self) -> bool:
        """Flag bit 3."""
        return bool(self.flags & 8)


@dataclass(frozen=True)
class Pack:
    """A pack whose structure and checksums are right."""

    id: bytes
    objects: tuple[Object, ...]
    payloads: tuple[bytes, ...]


def require(condition: object, why: str) -> None:
    """Raise BadPack unless a rule holds."""
    if not condition:
        raise BadPack(why)


# --- structure (§6) -------------------------------------------------------------------------------------------------


def read_pack(data: bytes) -> Pack:
    """Take a pack apart and check all of it but what its objects decode to."""
    require(len(data) >= 128, "too short for header and footer")
    frame(data[:64], HEADER_MAGIC, "header")
    require(data[12:48] == bytes(36), "header: bytes that must be zero are not")
    footer = data[-64:]
    frame(footer, FOOTER_MAGIC, "footer")
    require(footer[12:16] == bytes(4), "footer: bytes that must be zero are not")
    table_offset, entry_count, checksum = struct.unpack("<QQ16s", footer[16:48])
    require(table_offset >= 64, "table inside the header")
    require(table_offset + 100 * entry_count + 64 == len(data), "length is not what the footer says")
    table = data[table_offset:-64]
    require(xxh3_128_digest(table) == checksum, "table: wrong checksum")
    objects = tuple(Object(*fields) for fields in struct.iter_unpack("<BBBBIIQ32s32s16s", table))
    end = 64
    for each in objects:
        require(each.offset == end, f"a hole or an overlap at {min(each.offset, end)}")
        end += each.stored_bytes
    require(end == table_offset, "the table does not begin where the objects end")
    require(len({each.id for each in objects}) == len(objects), "an id occurs twice")
    pack_id = blake3(table, derive_key_context=PACK_CONTEXT).digest()
    return Pack(pack_id, objects, tuple(read_object(each, data) for each in objects))


def frame(part: bytes, magic: bytes, name: str) -> None:
    """Check what header and footer have in common."""
    require(part[:8] == magic, f"{name}: wrong magic")
    require(xxh3_128_digest(part[:48]) == part[48:], f"{name}: wrong checksum")
    require(part[8:12] == b"\1\0\0\0", f"{name}: unknown version")


def read_object(entry: Object, data: bytes) -> bytes:
    """Check a stored object against its table entry, and return its payload."""
    check_rules(entry)
    stored = data[entry.offset : entry.offset + entry.stored_bytes]
    start = 96 if entry.has_base else 64
    magic, codes, raw_bytes, payload_bytes, object_id, checksum = struct.unpack("<4s4sII32s16s", stored[:64])
    require(magic == OBJECT_MAGIC, f"no object at {entry.offset}")
    require(xxh3_128_digest(stored[:48] + stored[64:]) == checksum, f"object at {entry.offset}: wrong checksum")
    said = (codes, raw_bytes, start + payload_bytes, object_id, stored[64:start] or bytes(32), checksum)
    codes_of_entry = bytes([entry.kind, entry.transform, entry.element, entry.flags])
    listed = (codes_of_entry, entry.raw_bytes, entry.stored_bytes, entry.id, entry.base, entry.checksum)
    require(said == listed, f"object at {entry.offset}: header and table differ")
    return stored[start:]


def check_rules(entry: Object) -> None:
    """§6.2, rules 1 to 5."""
    where = f"object at {entry.offset}: "
    payload_bytes = entry.stored_bytes - (96 if entry.has_base else 64)
    has_planes = entry.transform in (PLANES, XOR, DIFF)
    require(entry.kind in KINDS, where + "unknown kind")
    require(entry.transform in TRANSFORMS, where + "unknown transform")
    require(entry.element < len(WIDTHS), where + "unknown element")
    require(entry.flags & ~0b1011 == 0, where + "unknown flag")
    require(0 < entry.raw_bytes <= MAX_RAW_BYTES[entry.kind], where + "raw length")
    require(entry.raw_bytes % WIDTHS[entry.element] == 0, where + "part of a word")
    require((8 if entry.is_viewed else 0) < payload_bytes <= entry.raw_bytes, where + "payload length")
    require(entry.transform != RAW or payload_bytes == entry.raw_bytes, where + "raw payload length")
    require(entry.has_base == (entry.transform in (XOR, DIFF)), where + "base and transform")
    require(entry.has_base or entry.base == bytes(32), where + "base without a flag")
    require(not entry.has_base or entry.base != entry.id, where + "its own base")
    require(has_planes or not entry.is_grouped, where + "groups without planes")
    require(entry.has_base or not entry.is_viewed, where + "a view without a base")
    require(entry.kind == 1 or not (has_planes or entry.element), where + "tree or commit not stored as bytes")


# --- payloads (§5) --------------------------------------------------------------------------------------------------


def decode(entry: Object, payload: bytes, base: bytes | None) -> bytes:
    """What an object's payload decodes to."""
    if entry.transform == RAW:
        return payload
    if entry.transform == ZSTD:
        return inflate(payload, entry.raw_bytes)
    word = np.dtype(f"<u{WIDTHS[entry.element]}")
    count = entry.raw_bytes // word.itemsize
    if entry.is_viewed:
        assert base is not None
        base, payload = window(entry.element, count, payload[:8], base), payload[8:]
    has_context = entry.is_grouped and base is None
    require(not entry.is_grouped or entry.element in GROUP_BITS, "integers are never grouped")
    columns, planes = read_planes(payload, word.itemsize, count, has_context)
    base_words = None if base is None else np.frombuffer(base, word)
    require(base_words is None or len(base_words) == count, "base of another length")
    order = np.arange(count)
    if entry.is_grouped:
        codes = planes.pop()[1] if has_context else None
        order = np.argsort(group_keys(entry.element, base_words, codes, columns, count), kind="stable")
    words = np.zeros(count, word)
    for number, (is_grouped, content) in enumerate(planes):
        plane = np.empty(count, np.uint8)
        plane[order if is_grouped else slice(None)] = np.frombuffer(content, np.uint8)
        words |= plane.astype(word) << word.type(8 * number)
    return unmap(entry, words, base_words).tobytes()


def window(element: int, count: int, view: bytes, base: bytes) -> bytes:
    """What a view shows of a base: its words from one on, as words of the object's element (§5.6)."""
    held, zeros, first = struct.unpack("<B3sI", view)
    require(zeros == bytes(3), "view: bytes that must be zero are not")
    require(held == element or (held in FLOATS and element in FLOATS), "view: words that cannot be cast")
    width = WIDTHS[held]
    require((first + count) * width <= len(base), "view: it ends behind the base")
    words = np.frombuffer(base, f"<u{width}", count, first * width)
    return words.tobytes() if held == element else cast(words, held, element).tobytes()


def cast(words: Words, held: int, element: int) -> Words:
    """Floats of one width as those of another, by way of fp32. NumPy rounds; what it makes of NaNs is not used."""
    wide = words if held == FP32 else np.zeros(len(words), "<u4")
    if held == BF16:
        wide = words.astype("<u4") << 16
    elif held == FP16:
        nan = (words & 0x8000).astype("<u4") << 16 | 0x7FC00000 | (words & 0x1FF).astype("<u4") << 13
        wide = np.where((words & 0x7FFF) > 0x7C00, nan, words.view("<f2").astype("<f4").view("<u4"))
    if element == FP32:
        return wide
    sign, magnitude = (wide >> 16) & 0x8000, wide & 0x7FFFFFFF
    if element == BF16:
        rounded, nan = (wide + 0x7FFF + ((wide >> 16) & 1)) >> 16, sign | 0x7FC0 | (magnitude >> 16) & 0x7F
    else:
        with np.errstate(over="ignore"):
            rounded = wide.view("<f4").astype("<f2").view("<u2").astype("<u4")
        nan = sign | 0x7E00 | (magnitude >> 13) & 0x3FF
    return np.where(magnitude > 0x7F800000, nan, rounded).astype("<u2")


def inflate(data: bytes, size_bytes: int) -> bytes:
    """The content of one zstd frame of known size."""
    try:
        require(zstandard.frame_content_size(data) == size_bytes, "zstd frame of another content size")
        return zstandard.ZstdDecompressor().decompress(data, max_output_size=size_bytes)
    except zstandard.ZstdError as error:
        raise BadPack(f"zstd: {error}") from error


def read_planes(payload: bytes, width: int, count: int, has_context: bool) -> tuple[int, list[tuple[bool, bytes]]]:  # noqa: FBT001
    """Columns of the context, if there is one, and the planes: whether each is in group order, and its bytes."""
    table_words = width + 2 * has_context
    offset = 4 * table_words
    require(len(payload) >= offset, "payload shorter than its table")
    table = struct.unpack(f"<{table_words}I", payload[:offset])
    columns, descriptions = (table[0], table[1:]) if has_context else (0, table)
    require(not has_context or 2 <= columns <= count, "columns of the context")
    planes = []
    for number, description in enumerate(descriptions):
        body = payload[offset : offset + (description >> 3)]
        offset += description >> 3
        size_bytes = count if number < width else -(-count // columns) + columns
        planes.append((bool(description & 4), read_plane(description & 3, body, size_bytes)))
    require(offset == len(payload), "planes do not fill the payload")
    return columns, planes


def read_plane(coding: int, body: bytes, size_bytes: int) -> bytes:
    """One plane's bytes."""
    if coding == CONSTANT:
        require(len(body) == 1, "constant plane of more than a byte")
        return body * size_bytes
    if coding == PLAIN:
        require(len(body) == size_bytes, "raw plane of another length")
        return body
    require(coding == COMPRESSED, "unknown coding of a plane")
    return inflate(body, size_bytes)


def group_keys(element: int, base: Words | None, codes: bytes | None, columns: int, count: int) -> Words:
    """The key of each word: from the base's exponent, or else from the codes of its row and column."""
    if base is not None:
        first_bit, bits = GROUP_BITS[element]
        return np.asarray((base >> base.dtype.type(first_bit)) & base.dtype.type((1 << bits) - 1))
    rows = -(-count // columns)
    every = np.frombuffer(codes or b"", np.uint8).astype(np.uint16)
    at = np.arange(count)
    return (every[at // columns] + every[rows + at % columns]) >> 1


def unmap(entry: Object, words: Words, base: Words | None) -> Words:
    """Undo the mapping of words."""
    one = words.dtype.type(1)
    top = words.dtype.type(8 * words.itemsize - 1)
    is_float = entry.element in GROUP_BITS
    if entry.transform == PLANES:
        return (words >> one) | (words << top) if is_float else words
    assert base is not None
    if entry.transform == XOR:
        return words ^ base
    difference = (words >> one) ^ (~(words & one) + one)
    return flip_back(flip(base, top) + difference, top) if is_float else base + difference


def flip(words: Words, top: Any) -> Words:
    """Float patterns to integers in the order of the floats."""
    sign = words.dtype.type(1) << top
    return np.where(words >> top, ~words, words ^ sign)


def flip_back(integers: Words, top: Any) -> Words:
    """Inverse of ``flip``."""
    sign = integers.dtype.type(1) << top
    return np.where(integers >> top, integers ^ sign, ~integers)


# --- all together ---------------------------------------------------------------------------------------------------


def decode_all(packs: list[Pack]) -> dict[bytes, bytes]:
    """Content by id of all objects of some packs, checked against the ids; deltas without a base here are left out."""
    waiting = [pair for pack in packs for pair in zip(pack.objects, pack.payloads, strict=True)]
    contents: dict[bytes, bytes] = {}
    waiting_before = -1
    while len(waiting) != waiting_before:
        waiting_before = len(waiting)
        waiting = [pair for pair in waiting if not decode_one(*pair, contents)]
    return contents


def decode_one(entry: Object, payload: bytes, contents: dict[bytes, bytes]) -> bool:
    """Decode an object into ``contents``, unless its base is not there yet; say whether."""
    if entry.has_base and entry.base not in contents:
        return False
    content = decode(entry, payload, contents[entry.base] if entry.has_base else None)
    require(len(content) == entry.raw_bytes, f"object {entry.id.hex()}: another length than it says")
    context = ID_CONTEXTS.get(entry.kind)
    hashed = blake3(content, derive_key_context=context) if context else blake3(content)
    require(hashed.digest() == entry.id, f"object {entry.id.hex()}: content does not match its id")
    contents[entry.id] = content
    return True


def lines(packs: list[Pack]) -> Iterator[str]:
    """One JSON object for each object."""
    contents = decode_all(packs)
    for pack in packs:
        for each in pack.objects:
            yield json.dumps(
                {
                    "pack": pack.id.hex(),
                    "kind": KINDS[each.kind],
                    "id": each.id.hex(),
                    "offset": each.offset,
                    "stored_bytes": each.stored_bytes,
                    "raw_bytes": each.raw_bytes,
                    "transform": TRANSFORMS[each.transform],
                    "grouped": each.is_grouped,
                    "viewed": each.is_viewed,
                    "base": each.base.hex() if each.has_base else None,
                    "decoded": each.id in contents,
                }
            )


def main(arguments: list[str]) -> int:
    """Decode the packs named, and return the exit code."""
    try:
        packs = [read_pack(Path(name).read_bytes()) for name in arguments]
        for line in lines(packs):
            print(line)
    except BadPack as error:
        print(f"bad pack: {error}", file=sys.stderr)
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main(sys.argv[1:]))
