"""Byte planes as zstd frames.

A frame carries its content size and nothing else that is optional: no checksum (the object has one), no dictionary.
Blobs, which are nothing but repeats, are compressed by :mod:`store.whole`.

Spec: docs/format.md §5.4.
"""

import threading
from collections.abc import Sequence
from typing import Final

import zstandard

_ENTROPY_ONLY: Final = zstandard.ZstdCompressionParameters(
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
"""Byte planes of floats have skewed symbols but no repeats: a token search for matches, then Huffman coding.

Negative levels would search even less, but they switch Huffman coding off.
"""


class _Contexts(threading.local):
    """A zstd context is not thread-safe and costs an allocation: one per thread."""

    def __init__(self) -> None:
        self.compressor = zstandard.ZstdCompressor(compression_params=_ENTROPY_ONLY)


_contexts = _Contexts()


def compress(data: memoryview, block_ends: Sequence[int]) -> tuple[bytes, ...]:
    """Compress, mostly by entropy, with a code table of its own for each block.

    Args:
        data: one byte plane.
        block_ends: ascending offsets inside ``data`` where a block ends. Longer blocks are cut by zstd.

    Returns:
        One frame, in parts.
    """
    if not block_ends:
        return (_contexts.compressor.compress(data),)
    stream = _contexts.compressor.compressobj(size=len(data))
    parts: list[bytes] = []
    start = 0
    for end in block_ends:
        parts += (stream.compress(data[start:end]), stream.flush(zstandard.COMPRESSOBJ_FLUSH_BLOCK))
        start = end
    parts += (stream.compress(data[start:]), stream.flush())
    return tuple(part for part in parts if part)
