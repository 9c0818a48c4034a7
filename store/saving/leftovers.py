"""Removing what writers that died left behind: temporaries of packs, parts of snapshots, and their leases.

Packs that have their name stay, also such as nothing refers to: whether one is garbage only gc can tell.

Whoever dies leaves a lease, so it is by leases that the dead are looked for: they are few, and a store may have very
many packs. Temporaries without a lease are rarer still: somebody emptied ``writers/``, or a power cut took one name and
not the other. They are looked for once a day; the file ``swept`` says when they last were.
"""

import logging
import re
import time
from collections.abc import Iterator, Sequence
from contextlib import ExitStack, suppress
from pathlib import Path

from ..disk.files import Files
from ..errors import Busy
from ..layout import Layout
from ..limits import SWEEP_NS
from .leases import lease_paths
from .partfiles import remove_parts, snapshot_directories

_TEMPORARY = re.compile(r"tmp-([0-9a-f]{32})-[0-9]+")

_log = logging.getLogger(__name__)


def remove_leftovers(layout: Layout, files: Files, *, is_thorough: bool = False) -> None:
    """Remove what dead writers left, as far as it can be removed. What living ones make is left alone.

    Raises nothing that the disk does: what stays is in nobody's way. Several processes may do this at once.

    Args:
        layout: where things lie.
        files: does the I/O.
        is_thorough: read the names of all packs in any case.

    Cost: the names of leases are read; those of all packs only after a writer died, and once a day.
    """
    try:
        with ExitStack() as locks:
            dead = _lock_dead(layout, files, locks)
            if dead or is_thorough or _is_due(layout, files):
                _sweep(layout, files, dead)
    except OSError as error:
        _log.info("what dead writers may have left in %s cannot be looked for: %s", layout.root, error)


def _lock_dead(layout: Layout, files: Files, locks: ExitStack) -> list[Path]:
    """Leases of the dead, locked: nobody makes another temporary in their name, and who else cleans up leaves them."""
    dead = []
    for path in lease_paths(layout.root, files):
        try:
            locks.enter_context(files.lock_exclusive(path, blocking=False, create=False))
        except (Busy, FileNotFoundError):
            continue  # it lives, or somebody else is at it or has been
        except OSError as error:  # perhaps another user's
            _log.info("whether the writer of %s lives cannot be told: %s", path, error)
        else:
            dead.append(path)
    return dead


def _sweep(layout: Layout, files: Files, dead: Sequence[Path]) -> None:
    left: dict[Path, list[Path]] = {lease: [] for lease in dead}
    for lease, temporary in temporary_packs(layout, files):
        # A writer has its lease before its first temporary: what was listed and has no lease now, nobody makes.
        if lease in left or not files.exists(lease):
            left.setdefault(lease, []).append(temporary)
    for parts in snapshot_directories(layout.root, files):
        lease = layout.writers / parts.name
        if not files.exists(lease):  # a snapshot too has its lease before its directory
            left.setdefault(lease, [])
    for lease, temporaries in left.items():
        try:
            remove_parts(layout.root, files, lease.name)
            _remove([*temporaries, lease], files)  # the lease last: while it is there, what is left has a name
        except OSError as error:
            _log.info("what a dead writer may have left stays: %s", error)
    files.write_atomic(_swept(layout), b"%d\n" % time.time_ns())


def temporary_packs(layout: Layout, files: Files) -> Iterator[tuple[Path, Path]]:
    """Temporaries of packs, each after the lease in whose name it was made."""
    for name in files.list_directory(layout.packs):
        if match := _TEMPORARY.fullmatch(name):
            yield layout.writers / match[1], layout.packs / name


def _remove(paths: Sequence[Path], files: Files) -> None:
    for path in paths:
        with suppress(FileNotFoundError):
            files.remove(path)


def _is_due(layout: Layout, files: Files) -> bool:
    """Whether it is long ago that the names of all packs were looked at. A time that is yet to come says nothing."""
    try:
        swept_ns = int(files.read_bytes(_swept(layout)))
    except (FileNotFoundError, ValueError):
        return True
    return not 0 <= time.time_ns() - swept_ns < SWEEP_NS


def _swept(layout: Layout) -> Path:
    return layout.root / "swept"
