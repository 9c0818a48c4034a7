"""Garbage collection: what nothing leads to goes, and the space it took comes back.

1. *Mark* what roots reach (``store.upkeep.roots``): commits, their trees and chunks, and the bases of every copy of
   these.
2. *Record* that commits which nothing reaches lose what they hold, so that nobody counts on it any more.
3. *Sweep*: remove all other places from the index, a little at a time.
4. Remove packs of which no place is left, and those that writers left that died. Of packs of which little is needed,
   move that into new ones.

Savers and readers go on meanwhile. Whatever ends it leaves a store in which everything reachable can be read, and
another run completes it. Commits' own objects and rows stay for ever.

Spec: docs/format.md §8.7.
"""

import logging
import time
from collections.abc import Callable
from contextlib import ExitStack
from dataclasses import dataclass, field

from ..disk.ballastroom import Room
from ..errors import Busy
from ..ids import CommitId, PackId
from ..layout import check_format
from ..limits import GC_ATTEMPTS
from ..opening.indexes import rebuild_index
from ..repository import Repository
from ..saving.leftovers import remove_leftovers
from ..upkeep.absences import Absence, Why
from ..upkeep.gclock import collecting
from ..upkeep.rewriting import Replaced
from . import packing
from .foretelling import foretell
from .marking import Marks
from .packing import Emptying, Present
from .planning import Plan, plan, spare_after
from .survey import Survey
from .sweeping import Swept, sweep
from .watching import Watch

__all__ = ["Collected", "Progress", "collect"]

_log = logging.getLogger(__name__)

Progress = Callable[[str, int, int], None]
"""Told what is being done, how much of it is done, and how much there is to do. What it raises ends gc."""


@dataclass(slots=True)
class Collected:
    """What gc did, or would do.

    Attributes:
        is_dry_run: whether it only told.
        commit_count: commits that nothing reaches and that lose what they hold.
        object_count: stored objects that are gone, each copy counted.
        object_bytes: what they took.
        removed_count: packs that went since nothing of them is needed.
        compacted_count: packs that went since what is needed of them is in new ones, and
        made_count: how many these are.
        freed_bytes: lengths of the former less those of the latter.
        repack_bytes: what a repack that puts packs together takes out of packs most of which is needed.
        left: packs that could have gone and stay, in hex, and why.
    """

    is_dry_run: bool
    commit_count: int = 0
    object_count: int = 0
    object_bytes: int = 0
    removed_count: int = 0
    compacted_count: int = 0
    made_count: int = 0
    freed_bytes: int = 0
    repack_bytes: int = 0
    left: dict[str, str] = field(default_factory=dict)


def collect(repository: Repository, *, dry_run: bool = False, progress: Progress | None = None) -> Collected:
    """Remove what nothing leads to.

    Args:
        repository: the store.
        dry_run: change nothing, only tell.
        progress: told how far it is.

    Returns:
        What was done. With ``dry_run`` what would be, if nobody saves meanwhile and the disk has room.

    Raises:
        Busy: gc, repack or a check is at work.
        ReadOnly: the store cannot be written from here.
        Incompatible: it has something that this version must not collect.
        Corrupt: a root, commit or tree is damaged, so that what is needed is not known. Nothing was removed.
        OSError: the disk failed, or is full although the ballast was given up.

    Cost: 4 µs an object that stays and 20 one that goes; 100 bytes of memory for each; what is needed of sparse packs
    is read and written.
    """
    watched = progress or _nobody_watches
    if dry_run:
        root, files = repository.layout.root, repository.files
        check_format(root, files.read_bytes(repository.layout.format), "gc")
        return _Gc(repository, watched).foretell()
    room = Room(repository)
    with ExitStack() as locks:
        room.make(lambda: locks.enter_context(collecting(repository)))
        remove_leftovers(repository.layout, repository.files, is_thorough=True)
        done = _Gc(repository, watched).run(room)
        room.restore()
    return done


class _Gc:
    """One run.

    Args:
        repository: the store.
        progress: told how far it is.
    """

    def __init__(self, repository: Repository, progress: Progress) -> None:
        self._repo = repository
        self._progress = progress
        self._watch = Watch(repository)
        self._marks = Marks(repository, {})
        self._survey = Survey(self._marks)

    def foretell(self) -> Collected:
        """Look only."""
        present = packing.present(self._repo)
        self._look()
        told = Collected(is_dry_run=True, commit_count=len(self._unreached()))
        tallies = self._survey.packs.values()
        told.object_count = sum(tally.doomed_count for tally in tallies)
        told.object_bytes = sum(tally.doomed_bytes for tally in tallies)
        planned = self._plan(present, told)
        emptied = packing.remove_empty(self._repo, self._empty(planned, present), self._marks, None, _nobody_counts)
        self._add(told, emptied, foretell(self._repo, planned.sparse, self._marks))
        return told

    def run(self, room: Room) -> Collected:
        """Look, then remove."""
        room.make(self._repo.absences.settle)
        present = self._look_soundly()
        done = Collected(is_dry_run=False, commit_count=room.make(self._record))
        swept = sweep(self._repo, self._watch, self._marks, self._survey, room, self._stage("sweeping", self._doomed()))
        done.object_count, done.object_bytes = swept.counts.total(), swept.stored_bytes.total()
        self._settle(swept)
        planned = self._plan(present, done)
        empty = self._empty(planned, present)
        emptied = packing.remove_empty(self._repo, empty, self._marks, room, self._stage("removing packs", len(empty)))
        sizes = packing.sizes_of(self._repo, planned.moved)
        advance = self._stage("compacting packs", sum(sizes.values()))
        self._add(done, emptied, packing.compact(self._repo, planned.sparse, self._marks, room, advance))
        return done

    # --- looking ----------------------------------------------------------------------------------------------------

    def _look_soundly(self) -> Present:
        """Look until the index knows all that is needed, as far as packs hold it."""
        for _ in range(GC_ATTEMPTS):
            present = packing.present(self._repo)
            self._look()
            lacking, bad = self._survey.lacking, self._survey.bad
            if present.lost or packing.held_in(self._repo, present.indexed, lacking - bad):
                _log.warning("the index does not know where everything is that is needed; it is rebuilt from the packs")
                rebuild_index(self._repo.layout, self._repo.files, self._repo.packs)
            elif packing.held_in(self._repo, present.strays, lacking):
                packing.adopt(self._repo, sorted(present.strays))
            else:
                lost = lacking - packing.held_in(self._repo, present.leased, lacking)  # a writer is about to index them
                if lost:
                    _log.warning("%d objects that are needed are nowhere; run `moonclip fsck`", len(lost))
                return present
        raise Busy("the index does not get to know where everything is that is needed; run `moonclip fsck`")

    def _look(self) -> None:
        self._watch = Watch(self._repo)
        roots = self._watch.begin()
        self._marks = Marks(self._repo, self._watch.parents)
        count = len(self._watch.parents)
        self._marks.add(roots, self._stage("marking", count))
        self._progress("marking", count, count)  # also those that nothing reaches
        self._survey = Survey(self._marks)
        self._survey.take(self._repo, lambda: self._progress("marking", count, count))

    def _unreached(self) -> list[CommitId]:
        absences = self._repo.absences
        return [
            each for each in self._watch.parents if each not in self._marks.commits and absences.reason(each) is None
        ]

    # --- removing ---------------------------------------------------------------------------------------------------

    def _record(self) -> int:
        """Say of commits that nothing reaches that they lose what they hold; from then on nobody can name them."""
        if not self._unreached():
            return 0
        with self._repo.absences.adding() as add:
            self._marks.add_whole(self._watch.news())
            unreached, now_ns = self._unreached(), time.time_ns()
            add(Absence.of(commit, None, Why.COLLECTED, now_ns) for commit in unreached)
        return len(unreached)

    def _settle(self, swept: Swept) -> None:
        """What was to go and has not, stays."""
        for pack, tally in self._survey.packs.items():
            tally.doomed_count, tally.doomed_bytes = swept.counts[pack], swept.stored_bytes[pack]

    def _doomed(self) -> int:
        return sum(tally.doomed_count for tally in self._survey.packs.values())

    def _plan(self, present: Present, done: Collected) -> Plan:
        sizes = packing.sizes_of(self._repo, present.indexed - self._watch.leased_packs())
        planned = plan(self._survey.packs, sizes)
        done.repack_bytes = spare_after(planned, self._survey.packs, sizes, self._repo.index.packs())
        return planned

    def _empty(self, planned: Plan, present: Present) -> list[PackId]:
        return [*planned.empty, *sorted(present.strays)]

    def _add(self, done: Collected, emptied: Emptying, replaced: Replaced) -> None:
        done.removed_count = len(emptied.removed)
        done.compacted_count, done.made_count = len(replaced.removed), len(replaced.made)
        done.freed_bytes = emptied.removed_bytes + replaced.removed_bytes - replaced.made_bytes
        done.left = {pack.hex(): why for pack, why in (emptied.left | replaced.left).items()}

    def _stage(self, name: str, total: int) -> Callable[[int], None]:
        done = 0

        def advance(count: int) -> None:
            nonlocal done
            done += count
            self._progress(name, done, total)

        self._progress(name, 0, total)
        return advance


def _nobody_watches(_name: str, _done: int, _total: int) -> None:
    """Nobody asked to be told."""


def _nobody_counts(_: int) -> None:
    """Nobody asked to be told."""
