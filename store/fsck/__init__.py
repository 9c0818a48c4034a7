"""Checking a store, and mending it: packs, index, refs, and that everything they promise is there.

Quick: the structure of every pack and the checksum of every stored object, index against packs both ways, and the
closure of everything that refs, reflogs and pins name. Full: every object is also decoded and its BLAKE3 compared.
:func:`fsck` alters nothing; :func:`repair` does what can be done about what it finds.
"""

from ..repository import Repository
from .findings import Finding, Progress, Report
from .repair import Repair, repair
from .sources import Source, StoreSource
from .survey import survey_alone

__all__ = ["Finding", "Progress", "Repair", "Report", "Source", "StoreSource", "fsck", "repair"]


def fsck(repository: Repository, *, full: bool = False, progress: Progress | None = None) -> Report:
    """Check a store.

    Waits for a gc or repack that is under way, and keeps others away meanwhile.

    Args:
        repository: the store.
        full: also decode every object and compare its BLAKE3, and decode every value.
        progress: told how far the reading is.

    Returns:
        What was looked at and what is wrong. Damage is reported, not raised.

    Cost: reads every pack once; ``full`` reads again and decodes every object and the bases of deltas.
    """
    return survey_alone(repository, full=full, progress=progress).report
