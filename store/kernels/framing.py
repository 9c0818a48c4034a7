"""The twin of the kernel that compresses byte planes: zstd frames of prefix-coded bytes, without a search for repeats.

zstd's own fastest search finds repeats in planes by chance and takes most of its time for them. A frame of literals
alone is as small for planes, any zstd reads it, and blocks can end where groups end.

Spec: RFC 8878; docs/format.md §5.4.
"""

from collections.abc import Iterator
from typing import Any, Final

import numpy as np
import numpy.typing as npt

from . import prefixes
from .prefixes import MAX_DESCRIPTION_BYTES, SCRATCH_INTEGERS, SYMBOLS

BLOCK_BYTES: Final = 128 * 1024
"""The longest block zstd allows."""

MIN_CODED_BYTES: Final = 64
"""Shorter stretches stay as they are: four streams and their sizes take half of that."""

MIN_SAMPLED_BYTES: Final = 64 * 1024
"""From here on a quarter of a stretch is counted, which knows it well enough; codes come out 0.2 % longer."""

SLICE_BYTES: Final = 1024

FRAME_HEAD: Final = 0xA0FD2FB528
"""zstd's magic number, and that a content size of four bytes follows."""

FRAME_HEAD_BYTES: Final = 9
BLOCK_HEAD_BYTES: Final = 3
LITERALS_HEAD_BYTES: Final = 5
JUMP_BYTES: Final = 6
RAW_BLOCK, REPEATED_BLOCK, CODED_BLOCK = 0, 1, 2
DESCRIBED_LITERALS, TREELESS_LITERALS = 2 | 3 << 2, 3 | 3 << 2
"""Kinds of literals, in four streams, with sizes of 18 bits: with the code's description, or by the code before."""

Bytes = npt.NDArray[np.uint8]


class _Codes:
    """Codes of bytes, and of pairs of bytes: NumPy takes as long for one as for two.

    Args:
        entries: of every byte, as in :func:`store.kernels.prefixes.assign_codes`.
    """

    def __init__(self, entries: list[int]) -> None:
        self.entries = np.array(entries, np.uint64)
        values, lengths = (self.entries >> np.uint64(8)).astype(np.uint32), self.entries.astype(np.uint8)
        self.pair_values = (values | values[:, None] << lengths).ravel()
        self.pair_lengths = (lengths + lengths[:, None]).ravel()

    def of(self, data: Bytes) -> tuple[int, int]:
        """The codes of a few bytes, the first lowest, and a bit that marks the end; and how many bits that is."""
        value = length = 0
        for entry in self.entries[data].tolist():
            value |= entry >> 8 << length
            length += entry & 255
        return value | 1 << length, length + 1


def compress(plane: Bytes, ends: npt.NDArray[np.int64], out: Bytes) -> int:
    """Compress a byte plane into one zstd frame.

    Args:
        plane: uint8[n], n > 0.
        ends: where stretches with a code of their own end, ascending; the last is n. A few in each 16 KiB at most.
        out: uint8 of :func:`frame_room` bytes; the first are overwritten.

    Returns:
        Bytes of the frame. It may be a little longer than the plane, if nothing is gained.

    Cost: 0.9 ns a byte (compiled), no allocation, releases the GIL.
    """
    parts = [FRAME_HEAD.to_bytes(5, "little"), len(plane).to_bytes(4, "little")]
    start = 0
    for end in ends.tolist():
        parts += _stretch(plane[start:end], is_end=end == len(plane))
        start = end
    frame = b"".join(parts)
    out[: len(frame)] = np.frombuffer(frame, np.uint8)
    return len(frame)


def frame_room(plane_bytes: int) -> int:
    """Bytes that :func:`compress` may write to before it gives up on a block: codes have up to eleven bits."""
    return plane_bytes + plane_bytes // 2 + 1024


def _stretch(data: Bytes, *, is_end: bool) -> Iterator[bytes]:
    counts = np.bincount(data, minlength=SYMBOLS)
    codes, description = _codes_of_sample(data, counts)
    if codes is None:
        codes, description = _codes_of(counts.tolist())
    literals = DESCRIBED_LITERALS
    for start in range(0, len(data), BLOCK_BYTES):
        block = data[start : start + BLOCK_BYTES]
        is_last = is_end and start + len(block) == len(data)
        if np.count_nonzero(counts) == 1:
            yield _block_head(REPEATED_BLOCK, len(block), is_last=is_last) + bytes(block[:1])
            continue
        if description and len(block) >= MIN_CODED_BYTES:
            coded = _coded(block, codes, literals, description if literals == DESCRIBED_LITERALS else b"")
            if len(coded) < len(block):
                literals = TREELESS_LITERALS
                yield _block_head(CODED_BLOCK, len(coded), is_last=is_last) + coded
                continue
        yield _block_head(RAW_BLOCK, len(block), is_last=is_last) + bytes(block)


def _codes_of_sample(data: Bytes, counts: npt.NDArray[np.int64]) -> tuple[_Codes | None, bytes]:
    """Codes from a quarter of the bytes; ``None`` where they do not do."""
    if len(data) < MIN_SAMPLED_BYTES:
        return None, b""
    starts = np.arange(0, len(data), SLICE_BYTES * prefixes.SAMPLED_SHARE)
    slices = [data[start : start + SLICE_BYTES] for start in starts]
    guessed = np.bincount(np.concatenate(slices), minlength=SYMBOLS).tolist()
    if prefixes.guess_rest(guessed, int(data.min()), int(data.max()), [0] * SCRATCH_INTEGERS) < 2:
        return None, b""
    codes, description = _codes_of(guessed)
    short_bytes = len(data) % BLOCK_BYTES
    if 0 < short_bytes < MIN_CODED_BYTES:
        counts = counts - np.bincount(data[-short_bytes:], minlength=SYMBOLS)  # which are not coded anyway
    return (
        (None, b"") if description and (codes.entries[counts > 0] >= prefixes.NO_CODE).any() else (codes, description)
    )


def _codes_of(counts: list[int]) -> tuple[_Codes, bytes]:
    """Codes of all bytes, and their description; none if nothing is gained."""
    keys = sorted(count * SYMBOLS + symbol for symbol, count in enumerate(counts) if count)  # as sort_symbols does
    codes = [0] * SYMBOLS
    description = _described(keys, codes, sum(counts)) if len(keys) > 1 else b""
    return _Codes(codes), description


def _described(keys: list[int], codes: list[int], total: int) -> bytes:
    used, depths = len(keys), [0] * SYMBOLS
    scratch, description = [0] * SCRATCH_INTEGERS, [0] * MAX_DESCRIPTION_BYTES
    prefixes.tree_depths(keys, used, 0, depths)
    if depths[0] > prefixes.MAX_BITS:
        prefixes.tree_depths(keys, used, total >> prefixes.MAX_BITS, depths)
    longest = prefixes.limit_depths(used, depths)
    if not longest or prefixes.assign_codes(keys, used, depths, longest, codes, scratch) >= 8 * total:
        return b""
    last = prefixes.weigh(codes, longest, scratch)
    greatest = prefixes.share_states(last, scratch)
    if greatest == 0:
        return bytes(description[: prefixes.describe_plainly(last, scratch, description)])
    at = prefixes.write_shares(greatest, scratch, description)
    prefixes.deal_states(greatest, scratch)
    return bytes(description[: prefixes.write_weights(last, at, scratch, description)])


def _block_head(kind: int, size_bytes: int, *, is_last: bool) -> bytes:
    return (is_last | kind << 1 | size_bytes << 3).to_bytes(BLOCK_HEAD_BYTES, "little")


def _coded(block: Bytes, codes: _Codes, literals: int, description: bytes) -> bytes:
    quarter = (len(block) + 3) // 4
    streams = [_stream(block[i * quarter : (i + 1) * quarter][::-1], codes) for i in range(4)]
    jumps = b"".join(len(stream).to_bytes(2, "little") for stream in streams[:3])
    content = b"".join((description, jumps, *streams))
    head = (literals | len(block) << 4 | len(content) << 22).to_bytes(LITERALS_HEAD_BYTES, "little")
    return head + content + b"\0"  # and no sequences


def _stream(data: Bytes, codes: _Codes) -> bytes:
    """Codes as bits. Four at a time go into words, since NumPy takes long for one."""
    whole = len(data) & ~3
    pairs = np.ascontiguousarray(data[:whole]).view("<u2")
    values, lengths = (table[pairs].reshape(-1, 2) for table in (codes.pair_values, codes.pair_lengths))
    merged = values[:, 0] | values[:, 1].astype(np.uint64) << lengths[:, 0]
    last_value, last_length = codes.of(data[whole:])
    merged = np.append(merged, np.uint64(last_value))
    begins = np.zeros(len(merged), np.int64)
    np.cumsum(lengths.sum(1), out=begins[1:])
    places, within = begins >> 6, (begins & 63).astype(np.uint64)
    firsts = np.flatnonzero(np.diff(places, prepend=-1))
    words: npt.NDArray[Any] = np.zeros(places[-1] + 2, "<u8")
    words[places[firsts]] = np.bitwise_or.reduceat(merged << within, firsts)
    words[places[firsts] + 1] |= np.bitwise_or.reduceat(merged >> np.uint64(1) >> (np.uint64(63) - within), firsts)
    return words.tobytes()[: (int(begins[-1]) + last_length + 7) // 8]
