"""The list of packs that are about to be deleted from a remote. Pure.

A JSON object, ``{"packs": {"<name>": <since_ns>}, "doomed": {"<name>": <since_ns>}, "written": "<32 hex digits>"}``,
times by the remote's clock. Whoever pushes counts such packs as absent, and looks at the list again once its refs are
in place. Those among them that are doomed are being deleted, which nothing takes back; they stay listed for a while
after that, so that nobody sends a pack of that name which a slow gc then deletes. ``written`` is another each time: no
list is mistaken for an earlier one that named the same packs.

Spec: docs/format.md, section on remotes.
"""

import json
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Final

from ..errors import Corrupt
from ..limits import MAX_CONDEMNED_PACKS
from .names import CONDEMNED, PackName, pack_name_in

_MAX_TIME_NS: Final = 1 << 63
_KEY: Final = "packs"
_DOOMED: Final = "doomed"
_MAX_MAPS: Final = 3


@dataclass(frozen=True, slots=True)
class Condemned:
    """The list, as it was read.

    Attributes:
        packs: names of packs, and since when, nanoseconds since the epoch, by the remote's clock.
        version: of what holds the list; ``None`` if there is none.
        doomed: those of them that are being or were deleted, and since when.
    """

    packs: Mapping[str, int] = field(default_factory=dict)
    version: str | None = None
    doomed: Mapping[str, int] = field(default_factory=dict)

    def names(self) -> set[PackName]:
        """The packs."""
        return {name for text in self.packs if (name := pack_name_in(text)) is not None}


def encode_condemned(packs: Mapping[str, int], doomed: Mapping[str, int] | None = None, written: str = "") -> bytes:
    """The list as it is stored.

    Args:
        packs: names of packs, and since when.
        doomed: those of them that are being deleted, and since when.
        written: what no other list says.
    """
    said = {_KEY: dict(sorted(packs.items())), _DOOMED: dict(sorted((doomed or {}).items())), "written": written}
    return (json.dumps(said, indent=1) + "\n").encode()


def decode_condemned(data: bytes, version: str) -> Condemned:
    """Inverse of :func:`encode_condemned`.

    Raises:
        Corrupt: it is no such list. What was about to be deleted is not known then.
    """
    _require_modest(data)
    try:
        said = json.loads(data)
        packs, doomed = said[_KEY], said.get(_DOOMED, {})
        named = [*packs.items(), *doomed.items()]
        is_list = doomed.keys() <= packs.keys() and all(pack_name_in(name) and _is_time(since) for name, since in named)
    except (ValueError, KeyError, TypeError, AttributeError, RecursionError) as error:
        raise Corrupt(f"{CONDEMNED} is damaged ({error}); delete it from the remote if no gc is at work") from error
    if not is_list:
        raise Corrupt(f"{CONDEMNED} names what is no pack; delete it from the remote if no gc is at work")
    return Condemned(packs, version, doomed)


def _require_modest(data: bytes) -> None:
    """See that reading it takes little memory: an empty list takes two bytes there and 60 in memory.

    Raises:
        Corrupt: it holds more than any list of condemned packs.
    """
    if b"[" in data or data.count(b"{") > _MAX_MAPS or data.count(b":") > 2 * MAX_CONDEMNED_PACKS + _MAX_MAPS:
        raise Corrupt(f"{CONDEMNED} holds what is no list of packs; delete it from the remote if no gc is at work")


def _is_time(value: object) -> bool:
    return type(value) is int and 0 <= value < _MAX_TIME_NS
