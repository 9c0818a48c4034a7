"""A second decoder of codec payloads, written from docs/format.md alone: standard library and zstd, nothing of ours.

Slow and plain on purpose. What it decodes, any reader can.
"""

import struct
from collections.abc import Callable

import zstandard

WIDTH = {0: 1, 1: 2, 2: 4, 3: 8, 4: 1, 5: 2, 6: 2, 7: 4, 8: 8}
KEY_BITS = {4: (0, 8), 5: (7, 8), 6: (10, 5), 7: (23, 8), 8: (52, 8)}
RAW, PLANES, XOR, DIFF, ZSTD = range(5)


def decode(transform: int, grouped: bool, element: int, payload: bytes, raw_bytes: int, base: bytes | None) -> bytes:
    if transform == RAW:
        return payload
    if transform == ZSTD:
        return zstandard.ZstdDecompressor().decompress(payload)
    width = WIDTH[element]
    count = raw_bytes // width
    base_words = _words(base, width) if base is not None else [0] * count
    planes, columns, codes = _planes(payload, width, count, grouped and base is None)
    order = list(range(count))
    if grouped:
        if base is None:
            rows = -(-count // columns)
            keys = [(codes[i // columns] + codes[rows + i % columns]) >> 1 for i in range(count)]
        else:
            first, bits = KEY_BITS[element]
            keys = [word >> first & (1 << bits) - 1 for word in base_words]
        order.sort(key=keys.__getitem__)
    words = [0] * count
    for number, (is_grouped, content) in enumerate(planes):
        for place, byte in enumerate(content):
            words[order[place] if is_grouped else place] |= byte << 8 * number
    unmap = _inverse(transform, element >= 4, 8 * width)
    return b"".join(unmap(word, old).to_bytes(width, "little") for word, old in zip(words, base_words, strict=True))


def _words(data: bytes, width: int) -> list[int]:
    return [int.from_bytes(data[i : i + width], "little") for i in range(0, len(data), width)]


def _planes(payload: bytes, width: int, count: int, has_context: bool) -> tuple[list[tuple[bool, bytes]], int, bytes]:
    columns = struct.unpack_from("<I", payload)[0] if has_context else 0
    table = struct.unpack_from(f"<{width + has_context}I", payload, 4 * has_context)
    offset = 4 * (len(table) + has_context)
    planes = []
    for number, entry in enumerate(table):
        body = payload[offset : offset + (entry >> 3)]
        offset += entry >> 3
        size = count if number < width else -(-count // columns) + columns
        planes.append((bool(entry & 4), _content(entry & 3, body, size)))
    assert offset == len(payload)
    codes = planes.pop()[1] if has_context else b""
    return planes, columns, codes


def _content(coding: int, body: bytes, size: int) -> bytes:
    if coding == 2:
        body = zstandard.ZstdDecompressor().decompress(body)
    content = body * size if coding == 0 else body
    assert len(content) == size
    return content


def _inverse(transform: int, is_float: bool, bits: int) -> Callable[[int, int], int]:
    full, top = (1 << bits) - 1, bits - 1

    def ordered(word: int) -> int:
        return word ^ full if word >> top else word ^ 1 << top

    def pattern(integer: int) -> int:
        return integer ^ 1 << top if integer >> top else integer ^ full

    def unrotate(word: int, _: int) -> int:
        return (word >> 1 | word << top) & full

    def undiff(word: int, old: int) -> int:
        difference = word >> 1 ^ -(word & 1)
        return pattern((ordered(old) + difference) & full) if is_float else (old + difference) & full

    if transform == PLANES:
        return unrotate if is_float else lambda word, _: word
    return (lambda word, old: word ^ old) if transform == XOR else undiff
