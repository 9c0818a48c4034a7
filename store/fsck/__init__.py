"""Checking a store: packs, index, refs, and that everything they promise is there.

Quick: the structure of every pack and the checksum of every stored object, index against packs both ways, and the
closure of everything that refs and reflogs name. Full: every object is also decoded and its BLAKE3 compared. Nothing
is altered.
"""

from ..repository import Repository
from .findings import Finding, Progress, Report
from .graph import check_graph, read_roots
from .packs import check_packs
from .placement import check_index, indexed_packs

__all__ = ["Finding", "Progress", "Report", "fsck"]


def fsck(repository: Repository, *, full: bool = False, progress: Progress | None = None) -> Report:
    """Check a store.

    Args:
        repository: the store.
        full: also decode every object and compare its BLAKE3.
        progress: told how far the reading is.

    Returns:
        What was looked at and what is wrong. Damage is reported, not raised.

    Cost: reads every pack once; ``full`` reads again and decodes every object and the bases of deltas.
    """
    report = Report(full=full)
    # In this order, so that what others save meanwhile is no fault: a ref's objects are indexed before the ref moves,
    # and a pack is there before it is indexed.
    roots = read_roots(repository, report)
    indexed = indexed_packs(repository, report)
    stock = check_packs(repository, report, full=full, progress=progress or _no_progress)
    check_index(repository, indexed, stock, report)
    check_graph(repository, roots, stock, report)
    return report


def _no_progress(done_bytes: int, total_bytes: int) -> None:
    """Nobody watches."""
