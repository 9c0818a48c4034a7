"""Whole-payload zstd: how trees and commits are stored, and chunks of text-like data.

Kept apart from the codec, which needs NumPy: commands that only read history need neither. Contexts are one a thread,
since a zstd context must not be shared.

Spec: docs/format.md §5.
"""

import threading

import zstandard

from ..errors import Corrupt
from ..ids import Buffer

_LEVEL = 3

_contexts = threading.local()


def compress(raw: Buffer) -> bytes:
    """Compress ``raw`` into one zstd frame. Releases the GIL."""
    compressor: zstandard.ZstdCompressor | None = getattr(_contexts, "compressor", None)
    if compressor is None:
        compressor = _contexts.compressor = zstandard.ZstdCompressor(level=_LEVEL)
    return compressor.compress(raw)


def decompress(payload: Buffer, raw_bytes: int, what: str) -> bytes:
    """Inverse of :func:`compress`.

    Args:
        payload: one zstd frame.
        raw_bytes: exact size of the content; the caller has bounded it.
        what: named in the error.

    Raises:
        Corrupt: not a zstd frame, or of other content size.

    Cost: allocates ``raw_bytes``, whatever the frame claims.
    """
    decompressor: zstandard.ZstdDecompressor | None = getattr(_contexts, "decompressor", None)
    if decompressor is None:
        decompressor = _contexts.decompressor = zstandard.ZstdDecompressor()
    try:
        size_bytes = zstandard.frame_content_size(payload)
        raw = None
        if size_bytes == raw_bytes:
            raw = decompressor.decompress(payload, max_output_size=raw_bytes, allow_extra_data=False)
    except zstandard.ZstdError as error:
        raise Corrupt(f"{what}: {error}") from error
    if raw is None or len(raw) != raw_bytes:
        raise Corrupt(f"{what}: {size_bytes} bytes in the frame where {raw_bytes} belong")
    return raw
