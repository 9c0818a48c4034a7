"""The layout of a payload of planes, as the kernels write it: one entry a plane, then the planes' bodies without gaps.

Spec: docs/format.md §5.2.
"""

from typing import Final

ENTRY_BYTES: Final = 4

CONSTANT_BODY, RAW_BODY, CODED_BODY = 0, 1, 2
"""How a body holds its plane: the format's codes."""

IS_GROUPED: Final = 4

REFUSED, DECODED, UNKNOWN = 0, 1, 2
"""What a kernel makes of a payload: nothing, words, or nothing as long as one plane is as it is, whose number is added
to the latter. It knows the bodies that kernels write."""


def entry_of(coding: int, grouped: int, body_bytes: int) -> int:
    """A plane's entry.

    Args:
        coding: how its body holds it.
        grouped: ``IS_GROUPED`` if it is in group order, else 0.
        body_bytes: length of the body.
    """
    return coding | grouped | body_bytes << 3


def payload_room(raw_bytes: int) -> int:
    """Bytes that a payload may take while it is being written: codes have up to eleven bits."""
    return raw_bytes + raw_bytes // 2 + 2048
