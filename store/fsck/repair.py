"""Mending a store.

1. What is whole in damaged packs, and what was fetched, goes into new packs, durable under their names.
2. The index is made anew from all packs but the damaged ones.
3. The damaged packs are moved into ``quarantine/``, each by a rename. (One that a new one of the same id replaces is
   copied there before step 1 is done.)
4. ``format`` comes to name what packs need. Refs, reflogs, ``HEAD``, pins and absence records are mended, each replaced
   whole after a copy of it was kept.

At any moment no less can be read than before, and a repair that is begun again completes. Nothing is deleted.

Spec: docs/format.md, section on the quarantine.
"""

from contextlib import ExitStack
from dataclasses import dataclass, field
from functools import partial
from itertools import chain
from pathlib import Path

from ..disk.files import Files
from ..ids import PackId
from ..layout import Layout
from ..opening.indexes import rebuild_index
from ..reading.packs import pack_path
from ..repository import Repository
from ..saving.leases import Lease, acquire_lease, living_leases
from ..saving.packseries import PackSeries
from ..upkeep.gclock import collecting
from ..upkeep.quarantine import keep_copy, set_aside
from ..upkeep.retiring import move_away
from .features import mended_features
from .findings import Finding, Progress, Report
from .mending import mends
from .placement import read_index
from .salvage import fetch, rescue, rescued
from .sources import Source
from .survey import Survey, survey, survey_alone


@dataclass(slots=True)
class Repair:
    """What became of a repair.

    Attributes:
        before: what was wrong.
        steps: what was done about it, or would be.
        after: what is still wrong; ``None`` if nothing was done.
    """

    before: Report
    steps: list[str] = field(default_factory=list)
    after: Report | None = None


def repair(
    root: Path,
    *,
    full: bool = False,
    source: Source | None = None,
    dry_run: bool = False,
    progress: Progress | None = None,
    files: Files | None = None,
) -> Repair:
    """Check a store and do what can be done about what is wrong.

    Waits for nobody: savers and readers go on.

    Args:
        root: the store.
        full: as for a check.
        source: where lost objects may be had from.
        dry_run: only say what would be done.
        progress: told how far the reading is, of each of the two checks.
        files: does the I/O; the local file system unless a test says otherwise.

    Raises:
        StoreNotFound: there is none. Incompatible: it needs a newer version.
        Busy: gc or repack is at work.
        ReadOnly: the store cannot be written from here.
        OSError: the disk is full or failed, or the source cannot be reached. What could be read still can be.

    Cost: that of a check, twice; the space of what is whole in damaged packs.
    """
    layout = Layout(root)
    if layout.format.exists() and not dry_run:
        (files or Files()).make_directory(layout.packs)  # with all packs their directory may be gone
    index = _look_at_index(root)
    with Repository.open(root, read_only=dry_run, files=files) as repository, ExitStack() as stack:
        if not dry_run:
            stack.enter_context(collecting(repository))
        seen = (survey_alone if dry_run else survey)(repository, full=full, progress=progress)
        _add_missing(seen.report, index.findings)
        done = Repair(seen.report)
        if seen.report.clean and not any(mends(repository, seen.graph)):
            done.after = None if dry_run else seen.report
            return done
        _Repairing(repository, seen, source, done, dry_run=dry_run).run()
        if not dry_run:
            done.after = survey(repository, full=full, progress=progress).report
        return done


def _look_at_index(root: Path) -> Report:
    """Whoever opens a store to write mends a broken index by the way: so it is looked at before."""
    report = Report(full=False)
    with Repository.open(root, read_only=True) as repository:
        read_index(repository, report)
    return report


def _add_missing(report: Report, findings: list[Finding]) -> None:
    known = {finding.message for finding in report.findings}
    report.findings += [finding for finding in findings if finding.message not in known]


class _Repairing:
    def __init__(
        self, repository: Repository, seen: Survey, source: Source | None, done: Repair, *, dry_run: bool
    ) -> None:
        self._repo = repository
        self._seen = seen
        self._source = source
        self._graph = seen.graph
        self._steps = done.steps
        self._dry_run = dry_run

    def run(self) -> None:
        """All steps, in order."""
        leased = {pack for lease in living_leases(self._repo.layout.root, self._repo.files) for pack in lease.packs}
        stock = self._seen.stock
        doomed = sorted((stock.broken | stock.hurt) - stock.unreadable - leased)
        if self._dry_run:
            self._fill(doomed, None)
            self._renew_index(doomed, has_new=False)
            self._steps += [_quarantining(pack) for pack in doomed]
        else:
            with acquire_lease(self._repo.layout.root, self._repo.files) as lease:
                made = self._replace(doomed, lease)
                left = [pack for pack in doomed if pack not in made]
                self._renew_index(left, has_new=bool(made))
                for pack in left:
                    self._put_aside(pack, lease)
        for mend in chain(mended_features(self._repo, self._seen.stock), mends(self._repo, self._graph)):
            if not self._dry_run:
                mend.do()
            self._steps.append(mend.message)

    # --- packs ------------------------------------------------------------------------------------------------------

    def _replace(self, doomed: list[PackId], lease: Lease) -> set[PackId]:
        """Make the new packs, and say which they are.

        Where all of a damaged pack is whole but its structure, the new one has the same id, and takes its place.
        """
        layout, files = self._repo.layout, self._repo.files

        def announce(pack: PackId) -> None:
            lease.add_pack(pack)
            if pack in doomed:
                keep_copy(layout.root, files, pack_path(layout.packs, pack))
                self._steps.append(_quarantining(pack))

        series = PackSeries(files, layout.packs, lease.name, announce)
        try:
            self._fill(doomed, series)
            made = {table.id for table in series.publish()}
        finally:
            series.abandon()
        for pack in made:
            self._repo.packs.forget(pack)
        return made

    def _fill(self, doomed: list[PackId], series: PackSeries | None) -> None:
        copies = list(rescued(self._seen.stock, doomed))
        if copies:
            size_bytes = sum(entry.stored_bytes for _, entry in copies)
            self._steps.append(f"{len(copies)} objects ({size_bytes} bytes) of damaged packs: kept, in a new pack")
            if series is not None:
                rescue(self._repo, copies, series)
        if self._source is not None:
            fetched, self._graph = fetch(self._repo, self._seen, self._source, series)
            if fetched.object_ids:
                what = f"{len(fetched.object_ids)} lost objects ({fetched.raw_bytes} bytes)"
                self._steps.append(f"{what}: fetched from the other copy")

    def _renew_index(self, doomed: list[PackId], *, has_new: bool) -> None:
        is_wrong = any(finding.kind == "index" for finding in self._seen.report.findings)
        if is_wrong or doomed or has_new:
            self._steps.append("the index: made anew from the packs")
            if not self._dry_run:
                rebuild_index(self._repo.layout, self._repo.files, self._repo.packs, without=doomed)

    def _put_aside(self, pack: PackId, lease: Lease) -> None:
        """Move a pack into quarantine, unless a writer has just made one of that name."""
        layout, files, index = self._repo.layout, self._repo.files, self._repo.index
        object_ids = [entry.id for entry in self._seen.stock.tables.get(pack, ())]
        if move_away(index, layout, files, lease, pack, object_ids, partial(set_aside, layout.root, files)):
            self._repo.packs.forget(pack)
            self._steps.append(_quarantining(pack))


def _quarantining(pack: PackId) -> str:
    return f"pack {pack.hex()}: moved into quarantine"
