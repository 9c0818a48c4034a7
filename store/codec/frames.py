"""Byte planes as zstd frames.

A frame carries its content size and nothing else that is optional: no checksum (the object has one), no dictionary.
Blobs, which are nothing but repeats, are compressed by :mod:`store.format.whole`.

Spec: docs/format.md §5.4.
"""

import threading
from typing import Final

import zstandard

from ..errors import Corrupt
from ..ids import Buffer
from ..kernels.framing import BLOCK_HEAD_BYTES, REPEATED_BLOCK
from ..kernels.mapping import Bytes

_FEW_REPEATS: Final = zstandard.ZstdCompressionParameters(
    strategy=zstandard.STRATEGY_FAST,
    min_match=7,
    hash_log=6,
    chain_log=6,
    search_log=1,
    window_log=17,
    target_length=0,
    write_content_size=1,
    write_checksum=0,
)
"""Planes that are mostly one byte: a token search finds the long repeats. Negative levels switch coding off."""


class _Contexts(threading.local):
    """A zstd context is not thread-safe and costs an allocation, and fresh memory page faults: one each per thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(compression_params=_FEW_REPEATS)
        self.decompressor = zstandard.ZstdDecompressor()


_contexts = _Contexts()


def match(data: Buffer) -> bytes:
    """Compress a plane with long repeats."""
    return _contexts.compressor.compress(data)


def restore(frame: memoryview, plane: Bytes) -> None:
    """Decompress a plane, whoever compressed it: :func:`match`, or a kernel that codes by how often bytes occur.

    Args:
        frame: one frame and nothing else; untrusted.
        plane: uint8[n], C-contiguous, fully overwritten; undefined after an error.

    Raises:
        Corrupt: not a zstd frame, or of other content size.
    """
    try:
        size_bytes, restored_bytes = zstandard.frame_content_size(frame), -1
        if size_bytes == plane.size and _frame_bytes(frame) == len(frame):
            restored_bytes = _contexts.decompressor.stream_reader(frame).readinto(plane)
    except zstandard.ZstdError as error:
        raise Corrupt(f"byte plane: {error}") from error
    if restored_bytes != plane.size:
        raise Corrupt(f"byte plane: {size_bytes} bytes in the frame where {plane.size} belong, or not one whole frame")


def _frame_bytes(frame: memoryview) -> int:
    """Where the last block ends, going by what blocks say of themselves: zstd itself ignores what comes behind."""
    at = zstandard.frame_header_size(frame)
    has_checksum = frame[4] >> 2 & 1
    while at + BLOCK_HEAD_BYTES <= len(frame):
        head = int.from_bytes(frame[at : at + BLOCK_HEAD_BYTES], "little")
        at += BLOCK_HEAD_BYTES + (1 if head >> 1 & 3 == REPEATED_BLOCK else head >> 3)
        if head & 1:
            return at + 4 * has_checksum
    return -1
