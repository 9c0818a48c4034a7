"""The kernel that restores byte planes from zstd frames, as numba compiles it: those that this program's kernels write.

Frames are untrusted: every length is checked before anything is read or written by it. Whatever our writer does not
make is refused, such as sequences and checksums; zstd itself then looks at it.

Spec: RFC 8878; docs/format.md §5.4.
"""

# Between kernels numba has words and pointers where mypy sees ``int`` and ``Any``.
# mypy: disable-error-code="arg-type,return-value,no-any-return,assignment"

import numpy as np

from .framing import (
    BLOCK_BYTES,
    BLOCK_HEAD_BYTES,
    CODED_BLOCK,
    DESCRIBED_LITERALS,
    FRAME_HEAD,
    FRAME_HEAD_BYTES,
    LITERALS_HEAD_BYTES,
    MIN_CODED_BYTES,
    RAW_BLOCK,
    REPEATED_BLOCK,
    TREELESS_LITERALS,
)
from .pointers import Pointer, copy, fill, inner, load_cell, load_word
from .source_decode_codes import read_description
from .source_decode_streams import read_streams

_SIZE_BITS = np.uint64((1 << 18) - 1)


@inner
def read_frame(source: Pointer, at: int, stop: int, plane: Pointer, plane_bytes: int, scratch: Pointer) -> bool:
    """Decode a frame into a plane.

    Args:
        source: what is read.
        at: where the frame begins.
        stop: where it must end.
        plane: gets the bytes; undefined if they are refused.
        plane_bytes: how many there must be.
        scratch: what kernels write to.

    Returns:
        Whether it is a frame of ours, and has just so many bytes.
    """
    if stop - at < FRAME_HEAD_BYTES + BLOCK_HEAD_BYTES:
        return False
    head = load_word(source, at) & np.uint64((1 << 40) - 1)
    if head != np.uint64(FRAME_HEAD) or np.int64(load_cell(source, at + 5)) != plane_bytes:
        return False
    at += FRAME_HEAD_BYTES
    done, code_count, is_last = 0, 0, False
    while not is_last:
        if stop - at < BLOCK_HEAD_BYTES + 1:
            return False
        block = np.int64(load_cell(source, at)) & 0xFFFFFF
        at += BLOCK_HEAD_BYTES
        is_last, kind, size = block & 1 == 1, (block >> 1) & 3, block >> 3
        body = 1 if kind == REPEATED_BLOCK else size
        most = min(BLOCK_BYTES, plane_bytes)
        if size == 0 or size > most or body > stop - at:
            return False
        if kind == CODED_BLOCK:
            size = _read_coded(source, at, at + body, plane, done, plane_bytes - done, code_count, scratch)
            if size == 0:
                return False
            code_count += 1
        elif size > plane_bytes - done:
            return False
        elif kind == REPEATED_BLOCK:
            fill(plane, done, size, source[at])
        elif kind == RAW_BLOCK:
            copy(source, at, size, plane, done)
        else:
            return False
        at += body
        done += size
    return at == stop and done == plane_bytes


@inner
def _read_coded(
    source: Pointer, at: int, stop: int, plane: Pointer, to: int, room: int, code_count: int, scratch: Pointer
) -> int:
    """Decode a block of literals without sequences; return how many bytes it has, 0 if it is refused."""
    if stop - at < LITERALS_HEAD_BYTES + 8:
        return 0
    head = load_word(source, at)
    kind, count = head & np.uint64(15), np.int64((head >> np.uint64(4)) & _SIZE_BITS)
    content = np.int64((head >> np.uint64(22)) & _SIZE_BITS)
    at += LITERALS_HEAD_BYTES
    if at + content + 1 != stop or source[stop - 1] != 0 or not MIN_CODED_BYTES <= count <= min(room, BLOCK_BYTES):
        return 0
    if kind == np.uint64(DESCRIBED_LITERALS):
        at = read_description(source, at, stop - 1, scratch)
        if at < 0:
            return 0
    elif kind != np.uint64(TREELESS_LITERALS) or code_count == 0:
        return 0
    return count if read_streams(source, at, stop - 1, plane, to, count, scratch) else 0
