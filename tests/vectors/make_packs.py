"""Makes golden packs, and the bad ones. Run once for each version of the format; what is there is never replaced.

    python tests/vectors/make_packs.py views bad
"""

import json
import sys
from collections.abc import Callable
from pathlib import Path

import numpy as np
from xxhash import xxh3_128_digest

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT))

from store import codec
from store.format import pack, whole  # noqa: E402
from store.codec import Transform  # noqa: E402
from store.codec.views import View, can_see, seen  # noqa: E402
from store.format.dtypes import Element  # noqa: E402
from store.ids import chunk_id, commit_id, tree_id  # noqa: E402
from store.format.entries import TensorEntry
from store.format.objects import Commit, Kind, TreeNode  # noqa: E402
from store.format.pack import ObjectHeader, Sealed  # noqa: E402
from tests import packing  # noqa: E402

FOLDER = Path(__file__).parent / "packs"


def encoded(raw: bytes, element: Element, base: bytes | None = None, view: View | None = None) -> Sealed:
    made = codec.encode(memoryview(raw), element, None if base is None else memoryview(base), None, view)
    base_id = chunk_id(base) if base is not None and made.uses_base else None
    codes = made.transform, made.grouped, element
    return pack.seal(ObjectHeader(Kind.CHUNK, *codes, len(raw), chunk_id(raw), base_id, made.viewed), made.payload)


def xor(base: bytes) -> Sealed:
    """The other byte of each word flipped: one plane of zeros, one of ones. The codec hardly ever chooses XOR."""
    raw = bytes(byte ^ (0xFF if at % 2 else 0) for at, byte in enumerate(base))
    constant = (1 << 3).to_bytes(4, "little")
    header = ObjectHeader(Kind.CHUNK, Transform.XOR, False, Element.INT16, len(raw), chunk_id(raw), chunk_id(base))
    return pack.seal(header, [constant, constant, b"\x00\xff"])


def blob(raw: bytes, kind: Kind) -> Sealed:
    frame = whole.compress(raw)
    transform, payload = (Transform.ZSTD, frame) if len(frame) < len(raw) else (Transform.RAW, raw)
    object_id = tree_id(raw) if kind is Kind.TREE else commit_id(raw)
    return pack.seal(ObjectHeader(kind, transform, False, Element.INT8, len(raw), object_id), [payload])


def floats(seed: int, count: int, scale: float = 1.0) -> np.ndarray:
    # Integer arithmetic only, so that these bytes are the same wherever this runs.
    state = (np.arange(count, dtype=np.uint64) + np.uint64(seed)) * np.uint64(0x9E3779B97F4A7C15)
    state ^= state >> np.uint64(29)
    state *= np.uint64(0xBF58476D1CE4E5B9)
    parts = [(state >> np.uint64(shift)) & np.uint64(0xFFFF) for shift in (0, 16, 32, 48)]
    return ((sum(part.astype(np.int64) for part in parts) - 131070).astype(np.float32) / np.float32(65536)) * np.float32(
        scale
    )


def words_pack() -> list[Sealed]:
    """Every element, alone and against a base that is close."""
    sealed = []
    for element in Element:
        values = floats(element, 16_000 // element.width_bytes)
        moved = values + floats(100 + element, len(values), 2**-9)
        base, raw = as_bytes(values, element), as_bytes(moved, element)
        sealed += [encoded(base, element), encoded(raw, element, base)]
    return sealed


def as_bytes(values: np.ndarray, element: Element) -> bytes:
    width = element.width_bytes
    if element is Element.FP64:
        return values.astype("<f8").tobytes()
    if element is Element.FP16:
        return values.astype("<f2").tobytes()
    if element.is_float:
        return (values.view("<u4") >> (32 - 8 * width)).astype(f"<u{width}").tobytes()
    return (values * 512).astype(np.int64).astype(f"<i{width}").tobytes()


def planes_pack() -> list[Sealed]:
    """A matrix whose rows and columns differ in magnitude, without and with a base: the codec grouped both at the time."""
    rows, columns = 128, 256
    matrix = floats(7, rows * columns).reshape(rows, columns)
    matrix = matrix * np.exp2(np.arange(rows) % 13)[:, None] * np.exp2(-(np.arange(columns) % 7))[None, :]
    base = matrix.astype("<f4").tobytes()
    raw = (matrix.astype("<f4") + floats(8, rows * columns, 2**-6).reshape(rows, columns)).astype("<f4").tobytes()
    return [encoded(base, Element.FP32), encoded(raw, Element.FP32, base)]


def views_pack() -> list[Sealed]:
    """Every element against a window of its own, floats against every other that can be cast; once in groups.

    Among the floats are all exponents, and NaNs of both kinds.
    """
    sealed = [encoded(each, element) for element, each in ((each, held_words(each)) for each in Element)]
    for held in Element:
        for element in (each for each in Element if can_see(held, each)):
            view = View(held, 3 + 5 * element)
            raw = moved(bytes(seen(memoryview(held_words(held)), view, element, 1024 * element.width_bytes)), element)
            sealed.append(encoded(raw, element, held_words(held), view))
    values = floats(20, 40_000) * np.exp2(-(np.arange(40_000) % 9)).astype(np.float32)
    wide, view = as_bytes(values, Element.FP32), View(Element.FP32, 7)
    drifted = as_bytes(values[7:33_007] + floats(21, 33_000, 2**-9), Element.BF16)
    return [*sealed, encoded(wide, Element.FP32), encoded(drifted, Element.BF16, wide, view)]


def held_words(element: Element) -> bytes:
    """Words whose top bits, in floats the exponent, run through all there are, with whatever below."""
    width, count = element.width_bytes, 1500
    ramp = (np.arange(count, dtype=np.uint64) * np.uint64(44)) << np.uint64(48)
    low = (np.arange(count, dtype=np.uint64) + np.uint64(element)) * np.uint64(0x9E3779B97F4A7C15) >> np.uint64(16)
    words = (ramp ^ low) >> np.uint64(64 - 8 * width)
    return (words ^ np.uint64(element)).astype(f"<u{width}").tobytes()


def moved(raw: bytes, element: Element) -> bytes:
    words = np.frombuffer(raw, f"<u{element.width_bytes}")
    return (words + (np.arange(len(words)) % 3).astype(words.dtype)).tobytes()


def history_pack() -> list[Sealed]:
    """A commit, its tree, and raw, constant and text-like chunks."""
    entries = tuple((f"layer{n:03}", TensorEntry(n, "float32", (2,), inline=bytes(8))) for n in range(50))
    tree = TreeNode(entries=entries)
    commit = Commit(items={"model": tree_id(tree.encode())}, step=7, branch="main", message="golden", metadata={"a": 1})
    text = b"the quick brown fox jumps over the lazy dog. " * 40
    zstd_text = codec.encode_blob(text)
    header = ObjectHeader(Kind.CHUNK, zstd_text.transform, False, Element.INT8, len(text), chunk_id(text))
    return [
        packing.chunk(bytes(range(256)) * 3),
        encoded(bytes(4096), Element.FP32),
        pack.seal(header, zstd_text.payload),
        xor(bytes(range(256)) * 3),
        blob(tree.encode(), Kind.TREE),
        blob(commit.encode(), Kind.COMMIT),
    ]


def with_right_checksum(data: bytes, start: int, at: int, new: bytes) -> bytes:
    """Replace bytes of the header or footer that begins at ``start``, and make its checksum right."""
    changed = bytearray(data)
    changed[start + at : start + at + len(new)] = new
    changed[start + 48 : start + 64] = xxh3_128_digest(changed[start : start + 48])
    return bytes(changed)


def with_table(data: bytes, change: Callable[[bytearray], None], table_offset_change: int = 0) -> bytes:
    """Change the table, and make its checksum and the footer right."""
    footer = pack.decode_footer(data[-64:], len(data), "pack")
    table = bytearray(data[footer.table_offset : -64])
    change(table)
    right = pack.footer_of(table, footer.table_offset + table_offset_change)
    return data[: footer.table_offset] + bytes(table) + pack.encode_footer(right)


def put(table: bytearray, at: int, new: bytes) -> None:
    table[at : at + len(new)] = new


def add(table: bytearray, at: int, size: int, amount: int) -> None:
    put(table, at, (int.from_bytes(table[at : at + size], "little") + amount).to_bytes(size, "little"))


def bad_packs() -> dict[str, tuple[str, str, bytes]]:
    """Name → (kind of error, words in its message, bytes)."""
    first, second = packing.chunk(b"first chunk!"), packing.delta(b"second chunk" * 4, b"first chunk!", b"xx")
    good = packing.join([first, second])
    middle = 64 + first.stored_bytes
    one = packing.join([first])
    foreign = bytearray(good)
    foreign[64:middle] = b"".join(packing.chunk(b"other chunk!").buffers)
    return {
        "empty-file": ("corrupt", "too few", b""),
        "header-only": ("corrupt", "too few", good[:64]),
        "truncated": ("corrupt", "footer", good[:-1]),
        "trailing-byte": ("corrupt", "footer", good + b"\0"),
        "trailing-page": ("corrupt", "footer", good + bytes(4096 - len(good) % 4096)),
        "bytes-before-footer": ("corrupt", "long", good[:-64] + b"\0" + good[-64:]),
        "leading-byte": ("corrupt", "header", b"\0" + good),
        "magic": ("corrupt", "header", b"XX" + good[2:]),
        "header-flip": ("corrupt", "header", good[:20] + b"\1" + good[21:]),
        "header-not-zero": ("corrupt", "zero", with_right_checksum(good, 0, 20, b"\1")),
        "version-2": ("incompatible", "version 2", with_right_checksum(good, 0, 8, b"\2")),
        "footer-version-2": ("incompatible", "version 2", with_right_checksum(good, len(good) - 64, 8, b"\2")),
        "footer-not-zero": ("corrupt", "zero", with_right_checksum(good, len(good) - 64, 13, b"\1")),
        "footer-huge-count": ("corrupt", "long", with_right_checksum(good, len(good) - 64, 24, b"\xff" * 8)),
        "footer-table-in-header": (
            "corrupt",
            "inside",
            good[:64] + bytes(64) + pack.encode_footer(pack.Footer(28, 1, xxh3_128_digest(bytes(100)))),
        ),
        "table-flip": ("corrupt", "checksum", good[:-70] + b"\xee" + good[-69:]),
        "table-other": ("corrupt", "it is pack", with_table(good, lambda t: put(t, 84, bytes(16)))),
        "hole": ("corrupt", "should begin", with_table(good, lambda t: add(t, 112, 8, 1))),
        "overlap": ("corrupt", "should begin", with_table(good, lambda t: add(t, 112, 8, -1))),
        "starts-late": ("corrupt", "should begin", with_table(good, lambda t: add(t, 12, 8, 1))),
        "same-id-twice": ("corrupt", "twice", packing.join([first, first])),
        "unknown-kind": ("incompatible", "newer", with_table(good, lambda t: put(t, 0, b"\4"))),
        "unknown-transform": ("incompatible", "newer", with_table(good, lambda t: put(t, 1, b"\5"))),
        "unknown-element": ("incompatible", "newer", with_table(good, lambda t: put(t, 2, b"\x09"))),
        "unknown-flag": ("incompatible", "newer", with_table(good, lambda t: put(t, 3, b"\4"))),
        "raw-length-zero": ("corrupt", "raw length", with_table(one, lambda t: put(t, 4, bytes(4)))),
        "raw-length-huge": ("corrupt", "raw length", with_table(good, lambda t: put(t, 104, b"\xff" * 4))),
        "raw-length-mismatch": ("corrupt", "raw payload", with_table(one, lambda t: add(t, 4, 4, 1))),
        "stored-longer-than-raw": ("corrupt", "stored length", with_table(good, lambda t: put(t, 104, b"\1\0\0\0"))),
        "base-without-flag": ("corrupt", "flag", with_table(good, lambda t: put(t, 52, b"\1"))),
        "delta-without-base": ("corrupt", "delta", with_table(good, lambda t: put(t, 103, b"\0" + t[104:152] + bytes(32)))),
        "base-without-delta": ("corrupt", "delta", with_table(good, lambda t: put(t, 101, b"\1"))),
        "own-base": ("corrupt", "own base", with_table(good, lambda t: put(t, 152, bytes(t[120:152])))),
        "groups-without-planes": ("corrupt", "groups", with_table(good, lambda t: put(t, 3, b"\2"))),
        "tree-of-words": ("corrupt", "tree", with_table(good, lambda t: put(t, 0, b"\2\0\7"))),
        "object-magic": ("corrupt", "no object", good[:64] + b"X" + good[65:]),
        "object-flip": ("corrupt", "checksum", good[: middle - 1] + b"?" + good[middle:]),
        "object-exchanged": ("corrupt", "instead", bytes(foreign)),
        "view-without-base": ("corrupt", "view", with_table(good, lambda t: put(t, 3, b"\x08"))),
        "view-without-planes": ("corrupt", "stored length", view_alone()),
        "header-and-table-differ": ("corrupt", "differs", with_table(good, lambda t: put(t, 103, b"\3"))),
    }


def view_alone() -> bytes:
    """A payload that ends where its view does."""
    first = packing.chunk(b"first chunk!")
    data = bytearray(packing.join([first, packing.delta(b"second chunk" * 4, b"first chunk!", bytes(8))]))
    at = 64 + first.stored_bytes
    data[at + 7] = 9
    data[at + 48 : at + 64] = checksum = xxh3_128_digest(data[at : at + 48] + data[at + 64 : at + 104])

    def change(table: bytearray) -> None:
        put(table, 103, b"\x09")
        put(table, 184, checksum)

    return with_table(bytes(data), change)


def write(path: Path, data: bytes) -> None:
    if path.exists() and path.read_bytes() != data:
        sys.exit(f"{path} exists and differs: golden files are never replaced")
    path.write_bytes(data)


def main() -> None:
    (FOLDER / "bad").mkdir(parents=True, exist_ok=True)
    makers = {"words": words_pack, "planes": planes_pack, "history": history_pack, "views": views_pack}
    for name in (each for each in sys.argv[1:] if each in makers):
        sealed = makers[name]()
        data = packing.join(sealed)
        objects = [
            {"id": each.header.id.hex(), "transform": each.header.transform.name, "grouped": each.header.grouped,
             "element": each.header.element.name, "kind": each.header.kind.name, "viewed": each.header.viewed}
            for each in sealed
        ]
        write(FOLDER / f"{name}.pack", data)
        listing = {"pack": packing.id_of(data).hex(), "objects": objects}
        write(FOLDER / f"{name}.json", (json.dumps(listing, indent=1) + "\n").encode())
        print(name, len(data), sorted({(o["transform"], o["grouped"], o["viewed"]) for o in objects}))
    if "bad" not in sys.argv[1:]:
        return
    expected = {name: {"error": kind, "message": words} for name, (kind, words, _) in bad_packs().items()}
    for name, (_, _, data) in bad_packs().items():
        write(FOLDER / "bad" / f"{name}.pack", data)
    (FOLDER / "bad" / "expected.json").write_bytes((json.dumps(expected, indent=1) + "\n").encode())


if __name__ == "__main__":
    main()
