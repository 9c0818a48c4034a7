"""What scripts say to a manager that were written for the Rust engine, in our words. Pure, but for what is logged.

Such a script runs as it stands: what means something here is translated, what means nothing is passed over, and said.
"""

import logging
from collections.abc import Collection, Mapping
from difflib import get_close_matches
from pathlib import Path
from typing import Any, Final, NamedTuple

from store.errors import Incompatible
from store.upkeep.retention import Keep

from .remoteargs import S3Arguments

_log = logging.getLogger("moonclip")

DEFAULT_ROOT: Final = "./checkpoints"


class MoreArguments(S3Arguments, total=False):
    """Keywords of the Rust engine, for :class:`~moonclip.CheckpointManager`. Those that only tune it are passed over.

    Attributes:
        storage_root: another name of ``root``.
        max_total_snapshots: ``keep=Keep(last=…)``; 0 is taken for 1. Without it, where one of the next two is given,
            their product: ``max_full_snapshots * (1 + max_deltas_per_full)``.
        max_full_snapshots: see there; 5 if only the other is given.
        max_deltas_per_full: see there; 10 if only the other is given.
        rollback_interval_steps: ``every`` of that policy: the first commit of each run of so many steps stays.
        max_rollback_snapshots: 0 for no such commits; else all of them stay.
        compression_level: passed over; how a chunk is compressed is chosen by what it holds.
        full_every_steps: passed over; chains of deltas are short, whatever the step.
        delta_max_ratio: passed over; a delta is stored where it is worth it.
        keep_base_in_memory: passed over; ``max_host_memory`` says how much memory saving may take.
        pin_device_copies: passed over; they are.
        merge_stride: passed over; there is nothing to merge: see :meth:`CheckpointManager.repack`.
        merge_max_chain: likewise.
    """

    storage_root: str | Path
    max_total_snapshots: int | None
    max_full_snapshots: int
    max_deltas_per_full: int
    rollback_interval_steps: int
    max_rollback_snapshots: int
    compression_level: int
    full_every_steps: int
    delta_max_ratio: float
    keep_base_in_memory: bool
    pin_device_copies: bool
    merge_stride: int
    merge_max_chain: int


class Said(NamedTuple):
    """A constructor's arguments in our words.

    Attributes:
        root: directory of the store.
        keep: what to keep of all commits; ``None`` for everything.
        save_dtype: what floats are stored as.
        s3: keywords for a bucket.
    """

    root: Path
    keep: Keep | None
    save_dtype: str | Mapping[str, str] | None
    s3: Mapping[str, Any]


def understood(
    root: str | Path | None,
    keep: Keep | None,
    save_dtype: str | Mapping[str, str] | None,
    more: Mapping[str, Any],
    own: Collection[str] = (),
) -> Said:
    """Translate a constructor's arguments, and tell of those that mean nothing here.

    Args:
        root: as it was given; :data:`DEFAULT_ROOT` if nobody says where.
        keep: likewise.
        save_dtype: likewise.
        more: keywords that are none of ours, :class:`MoreArguments` and others.
        own: names of ours.

    Raises:
        Incompatible: two of them say the same thing, or one makes no sense.
        TypeError: there is no such keyword.
    """
    unknown = sorted(more.keys() - MoreArguments.__annotations__.keys())
    if unknown:
        near = get_close_matches(unknown[0], [*own, *MoreArguments.__annotations__], 1)
        raise TypeError(f"CheckpointManager has no keyword {unknown[0]!r}{f'; was it {near[0]!r}?' if near else ''}")
    place = more.get("storage_root")
    if root is not None and place is not None:
        raise Incompatible("root and storage_root say the same thing; give one of them")
    place = place if root is None else root
    if place == "":
        raise Incompatible("root is empty, as a variable that is not set; give a directory, '.' for the working one")
    policy = _policy(more)
    if keep is not None and policy is not None:
        raise Incompatible("keep and max_…_snapshots say the same thing; give one of them")
    for name in sorted(_PASSED_OVER.keys() & more.keys()):
        _log.warning("%s is passed over: %s", name, _PASSED_OVER[name])
    s3 = {name: value for name, value in more.items() if name in S3Arguments.__annotations__}
    return Said(Path(DEFAULT_ROOT if place is None else place), keep or policy, _respelled(save_dtype), s3)


# --- how ------------------------------------------------------------------------------------------------------------

_PASSED_OVER: Final = {
    "compression_level": "how a chunk is compressed is chosen by what it holds",
    "full_every_steps": "chains of deltas are short here, whatever the step",
    "delta_max_ratio": "a delta is stored where it is worth it",
    "keep_base_in_memory": "max_host_memory says how much memory saving may take",
    "pin_device_copies": "copies from devices go through pinned memory where there are some",
    "merge_stride": "there is nothing to merge; mgr.repack() puts small packs together",
    "merge_max_chain": "there is nothing to merge; mgr.repack() puts small packs together",
}
_COUNTS: Final = (
    "max_total_snapshots",
    "max_full_snapshots",
    "max_deltas_per_full",
    "rollback_interval_steps",
    "max_rollback_snapshots",
)
_MAX_FULL: Final = 5
_MAX_DELTAS: Final = 10
"""What that engine takes if only one of two numbers is given."""


def _policy(more: Mapping[str, Any]) -> Keep | None:
    total, full, deltas, every, protected = (_count(more, name) for name in _COUNTS)
    if (total, full, deltas, every) == (None, None, None, None):
        return None
    if total is None:
        total = (_MAX_FULL if full is None else full) * (1 + (_MAX_DELTAS if deltas is None else deltas))
    return Keep(last=max(total, 1), every=every if every and protected != 0 else None)


def _count(more: Mapping[str, Any], name: str) -> int | None:
    count = more.get(name)
    if count is not None and (type(count) is not int or count < 0):  # elsewhere -1 is "all": nothing may be dropped
        raise Incompatible(f"{name} takes a whole number, not {count!r}; to keep everything, leave it out")
    return count


def _respelled(save_dtype: str | Mapping[str, str] | None) -> str | Mapping[str, str] | None:
    if isinstance(save_dtype, Mapping):
        return {pattern: "fp8_e4m3" if name == "fp8" else name for pattern, name in save_dtype.items()}
    return "fp8_e4m3" if save_dtype == "fp8" else save_dtype
