"""Where things lie inside a store's directory, and what its ``format`` file says.

Spec: docs/format.md §1.
"""

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Final

from .errors import Incompatible, StoreNotFound

PURPOSES: Final = ("read", "write", "gc")
"""What the lists of a ``format`` file are for."""

VIEWS: Final = "moonclip-views-1"
"""Deltas against a window of a base, or a cast of it."""

USUAL_NAME: Final = "checkpoints"
"""What a store is called where nobody says otherwise."""

_FEATURES_OF_NEW: Final = frozenset({"moonclip-1"})
FEATURES: Final = _FEATURES_OF_NEW | {VIEWS}
"""What this version reads, writes and collects. A change that an older version must not touch adds a name; those that
no new store needs are added to a store's ``format`` by whoever first makes use of them: ``store.features``."""


@dataclass(frozen=True, slots=True)
class Layout:
    """Paths of one store."""

    root: Path

    @property
    def format(self) -> Path:
        """Feature lists; the last file that making a store writes."""
        return self.root / "format"

    @property
    def config(self) -> Path:
        """Settings of this store, JSON."""
        return self.root / "config"

    @property
    def packs(self) -> Path:
        """Packs, and under ``tmp-`` names those in the making."""
        return self.root / "packs"

    @property
    def writers(self) -> Path:
        """Leases."""
        return self.root / "writers"

    @property
    def parts(self) -> Path:
        """What ranks have handed in of snapshots in the making, a directory for each."""
        return self.root / "parts"


def encode_format() -> bytes:
    """The ``format`` file of a new store."""
    return (json.dumps(dict.fromkeys(PURPOSES, sorted(_FEATURES_OF_NEW)), indent=2) + "\n").encode()


def check_format(root: Path, data: bytes, purpose: str) -> None:
    """Refuse a store that needs what this version lacks.

    Args:
        root: named in the error.
        data: content of the ``format`` file.
        purpose: one of ``PURPOSES``.

    Raises:
        Incompatible: the store needs unknown features, or the file is not a ``format`` file.
    """
    unknown = sorted(features_named(root, data, purpose) - FEATURES)
    if unknown:
        raise Incompatible(
            f"the store at {root} needs {', '.join(map(repr, unknown))} to {purpose}, which this version does not know;"
            f" nothing was changed; use a newer Moonclip",
            path=str(root),
            features=unknown,
        )


def features_named(root: Path, data: bytes, purpose: str) -> frozenset[str]:
    """What a ``format`` file says is needed for a purpose. Arguments as for :func:`check_format`.

    Raises:
        Incompatible: it is no such file.
    """
    try:
        return frozenset(map(str, json.loads(data)[purpose]))
    except (ValueError, KeyError, TypeError) as error:
        raise Incompatible(f"{root}/format is not a Moonclip format file ({error})", path=str(root)) from error


def is_store(directory: Path) -> bool:
    """Whether a directory is a store; one that cannot be looked into is none."""
    layout = Layout(directory)
    try:
        return layout.format.is_file() and layout.packs.is_dir()
    except OSError:
        return False


def not_a_store(root: Path) -> StoreNotFound:
    """The error for a path that holds no store. It names one directly below, if there is any: that may be meant."""
    below = store_below(root)
    hint = f"make one with `moonclip -C {root} init`" if below is None else f"there is one at {below}: name that"
    return StoreNotFound(f"no store at {root}; {hint}", path=str(root))


def store_below(root: Path) -> Path | None:
    """The store directly below a directory: the one that is called as is usual, or else the first by name."""
    try:
        found = [path for path in root.iterdir() if is_store(path)]
    except OSError:
        return None
    return min(found, key=lambda path: (path.name != USUAL_NAME, path.name), default=None)
