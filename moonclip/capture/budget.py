"""How much host memory saving may take, and whether a state fits."""

import re
from typing import Final

from store.errors import Incompatible, NoRoom
from store.limits import WORKER_BYTES

_UNITS: Final = (
    {"": 1}
    | {
        f"{letter}{ending}": base**power
        for power, letter in enumerate("kmgt", start=1)
        for ending, base in (("", 1000), ("b", 1000), ("ib", 1024))
    }
    | {"b": 1}
)
_SIZE: Final = re.compile(r"\s*([0-9]+(?:\.[0-9]+)?)\s*([a-z]*)\s*", re.IGNORECASE)


def parse_bytes(size: int | str) -> int:
    """Bytes in a size such as ``12_000_000_000``, ``"12GB"`` or ``"12 GiB"``.

    Raises:
        Incompatible: it is no size.
    """
    match = _SIZE.fullmatch(str(size))
    unit = _UNITS.get(match[2].lower()) if match else None
    if match is None or unit is None:
        raise Incompatible(f"{size!r} is no size; give bytes, or text as in '12GB' or '12GiB'", size=size)
    return int(float(match[1]) * unit)


def fits_beside(last_bytes: int, size_bytes: int, max_bytes: int | None) -> bool:
    """Whether a state's copy fits while the last one's is kept; if not, the next save has to do without that.

    Args:
        last_bytes: what the last one takes.
        size_bytes: what the next one takes.
        max_bytes: for both and the worker together; no bound if ``None``.

    Raises:
        NoRoom: it does not fit by itself.
    """
    if max_bytes is None:
        return True
    needed_bytes = size_bytes + WORKER_BYTES
    if needed_bytes > max_bytes:
        raise NoRoom(
            f"a save takes {size_bytes:,} bytes of host memory for its copy of the state and {WORKER_BYTES:,} for"
            f" storing it, but max_host_memory is {max_bytes:,}; raise it to {needed_bytes:,} at least"
            f" ({needed_bytes + size_bytes:,} keep the last save at hand as well), or save less at once",
            needed_bytes=needed_bytes,
            max_bytes=max_bytes,
        )
    return last_bytes + needed_bytes <= max_bytes
