"""The ``format`` of a remote: what it takes to use it, and how its refs are kept. Pure.

Spec: docs/format.md, section on remotes.
"""

import json
from typing import Any, Final, Literal, NamedTuple

from ..errors import Corrupt, Incompatible
from .names import FORMAT

FEATURES: Final = frozenset({"moonclip-remote-1"})
"""What this version reads and writes of remotes."""

Mode = Literal["shared", "by-store"]
"""How refs are kept: all stores move the same ones by compare-and-swap, or each has its own."""


class RemoteFormat(NamedTuple):
    """What a remote's ``format`` says.

    Attributes:
        refs: how refs are kept.
    """

    refs: Mode


def encode_format(mode: Mode) -> bytes:
    """The ``format`` of a new remote."""
    return (json.dumps({"needs": sorted(FEATURES), "refs": mode}, indent=2) + "\n").encode()


def decode_format(data: bytes, url: str) -> RemoteFormat:
    """Inverse of :func:`encode_format`.

    Args:
        data: what was read.
        url: the remote's, for errors.

    Raises:
        Corrupt: it is no such file.
        Incompatible: it is a store's; or the remote needs features that this version lacks.
    """
    try:
        said = json.loads(data)
    except (ValueError, RecursionError) as error:
        raise Corrupt(f"{url}/{FORMAT} is not that of a Moonclip remote ({error})", url=url) from error
    _require_no_store(said, url)
    try:
        needed, mode = set(said["needs"]), said["refs"]
    except (KeyError, TypeError) as error:
        raise Corrupt(f"{url}/{FORMAT} is not that of a Moonclip remote ({error})", url=url) from error
    unknown = sorted(map(str, needed - FEATURES))
    if unknown:
        raise Incompatible(
            f"the remote {url} needs {', '.join(map(repr, unknown))}, which this version does not know; use a newer"
            " Moonclip",
            url=url,
            features=unknown,
        )
    if mode not in ("shared", "by-store"):
        raise Corrupt(f"{url}/{FORMAT} does not say how refs are kept", url=url)
    return RemoteFormat(mode)


def _require_no_store(said: Any, url: str) -> None:
    """See that it is not the ``format`` of a store, whose refs lie where a remote's would, so that it looks like one.

    Raises:
        Incompatible: it is.
    """
    if isinstance(said, dict) and "needs" not in said and {"read", "write", "gc"} <= said.keys():
        raise Incompatible(
            f"{url} is a store, and no remote of one; give the two a directory or bucket to meet in: in that store,"
            " `moonclip remote add origin URL`, then `moonclip push`",
            url=url,
        )
