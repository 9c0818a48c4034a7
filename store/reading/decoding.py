"""From a stored chunk to its bytes: all that its header says is handed to the codec, in one place."""

from ..codec import decode
from ..format.pack import ObjectHeader


def decode_chunk(
    header: ObjectHeader, payload: memoryview, base: memoryview | None, out: memoryview, *, streamed: bool = False
) -> None:
    """Decode a chunk; see :func:`store.codec.decode`.

    Args:
        header: the chunk's.
        payload: the stored bytes, untrusted.
        base: all raw bytes of the base chunk, ``None`` if the header names none.
        out: as many bytes as the header says, aliases neither input.
        streamed: nobody reads ``out`` soon.

    Raises:
        Corrupt: the payload, or the base, does not fit.
    """
    transform, grouped, element, raw_bytes = header.transform, header.grouped, header.element, header.raw_bytes
    decode(transform, grouped, element, payload, raw_bytes, base, out, viewed=header.viewed, streamed=streamed)
