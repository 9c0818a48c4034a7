"""What a ref of a remote holds: a commit's id and a newline, or zeros if it was deleted. Pure.

Spec: docs/format.md, section on remotes.
"""

import re
from typing import Final

from ..errors import Corrupt
from ..ids import CommitId, from_hex
from ..naming.reflog import NO_COMMIT

_REF: Final = re.compile(rb"([0-9a-f]{64})\n")


def encode_ref(commit: CommitId | None) -> bytes:
    """A ref that names a commit, or one that was deleted."""
    return f"{NO_COMMIT if commit is None else commit.hex()}\n".encode()


def decode_ref(data: bytes, key: str) -> CommitId | None:
    """Inverse of :func:`encode_ref`.

    Args:
        data: what was read.
        key: where, for errors.

    Raises:
        Corrupt: it is no ref.
    """
    match = _REF.fullmatch(data)
    if match is None:
        raise Corrupt(
            f"the remote's {key} does not hold a commit's id; push it again with force, or delete it", key=key
        )
    digits = match[1].decode()
    return None if digits == NO_COMMIT else CommitId(from_hex(digits))
