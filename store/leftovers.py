"""Removing what writers that died left behind: temporaries of packs, and their leases.

Packs that have their name stay, also such as nothing refers to: whether one is garbage only gc can tell.
"""

import logging
import re
from collections.abc import Sequence
from contextlib import nullcontext, suppress
from pathlib import Path

from .errors import Busy
from .files import Files
from .layout import Layout
from .leases import lease_paths

_TEMPORARY = re.compile(r"tmp-([0-9a-f]{32})-[0-9]+")

_log = logging.getLogger(__name__)


def remove_leftovers(layout: Layout, files: Files) -> None:
    """Remove what dead writers left, as far as it can be removed. What living ones make is left alone.

    Raises nothing that the disk does: what stays is in nobody's way. Several processes may do this at once.

    Cost: the names of all packs are read.
    """
    try:
        left = _by_lease(layout, files)
    except OSError as error:
        _log.info("what dead writers may have left in %s cannot be looked for: %s", layout.root, error)
        return
    for lease, temporaries in left.items():
        try:
            _remove_if_dead(lease, temporaries, files)
        except OSError as error:  # perhaps another user's
            _log.info("what a dead writer may have left stays: %s", error)


def _by_lease(layout: Layout, files: Files) -> dict[Path, list[Path]]:
    """Temporaries of each writer, and those that have none; also where the lease itself is gone.

    A writer has its lease before its first temporary, so the temporaries must be listed before leases are looked at.
    """
    left: dict[Path, list[Path]] = {}
    for name in files.list_directory(layout.packs):
        if match := _TEMPORARY.fullmatch(name):
            left.setdefault(layout.writers / match[1], []).append(layout.packs / name)
    for path in lease_paths(layout.root, files):
        left.setdefault(path, [])
    return left


def _remove_if_dead(lease: Path, temporaries: Sequence[Path], files: Files) -> None:
    try:
        lock = files.lock_exclusive(lease, blocking=False, create=False)
    except Busy:
        return  # it lives, or somebody else is at it
    except FileNotFoundError:
        lock = None
    with lock or nullcontext():
        for path in [*temporaries, lease]:  # the lease last: while it is there, what is left has a name
            with suppress(FileNotFoundError):
                files.remove(path)
