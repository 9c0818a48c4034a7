"""Removing from the index what nothing needs, a little at a time.

Each transaction first looks for roots and commits that have come to be since everything was marked, and marks what they
need. A save that counts on what one of them removes notices: either its commit was in the index before, or it looks for
all it needs after, within the transaction that adds it.
"""

import time
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial

from ..batches import batches
from ..disk.ballastroom import Room
from ..ids import PackId
from ..index import IndexWriter
from ..limits import SWEEP_KEYS, SWEEP_PAUSE_SECONDS
from ..repository import Repository
from .marking import Marks
from .survey import Doomed, Survey
from .watching import Watch


@dataclass(slots=True)
class Swept:
    """What was removed from the index.

    Attributes:
        counts: copies, by pack.
        stored_bytes: what they take, by pack.
    """

    counts: Counter[PackId] = field(default_factory=Counter)
    stored_bytes: Counter[PackId] = field(default_factory=Counter)

    def add(self, gone: Sequence[Doomed]) -> None:
        """Count some more."""
        for each in gone:
            self.counts[each.copy.pack] += 1
            self.stored_bytes[each.copy.pack] += each.stored_bytes


def sweep(
    repository: Repository,
    watch: Watch,
    marks: Marks,
    survey: Survey,
    room: Room,
    advance: Callable[[int], None],
) -> Swept:
    """Remove the places of everything that is not marked, but for what is in packs that living writers name.

    Args:
        repository: the store, whose ``gc.lock`` the caller holds.
        watch: tells what has become a root; begun before anything was marked.
        marks: what stays; grows.
        survey: what there is.
        room: makes some on a full disk.
        advance: told how many places were dealt with.

    Raises:
        Corrupt: what is needed is not known any more. What was removed nothing needed.
        OSError: the disk failed; likewise.

    Cost: 15 µs a place; savers wait for a transaction at a time.
    """
    swept = Swept()
    stuck: list[Doomed] = []
    for batch in batches(survey.doomed(), SWEEP_KEYS):
        stuck += _remove(repository, watch, marks, batch, room, swept)
        advance(len(batch))
    # A copy may have to wait for one that is stored against its object, if a bad copy had made that look shallower.
    while stuck and len(again := _remove(repository, watch, marks, stuck, room, swept)) < len(stuck):
        stuck = again
    return swept


def _remove(
    repository: Repository, watch: Watch, marks: Marks, batch: Sequence[Doomed], room: Room, swept: Swept
) -> list[Doomed]:
    """Remove some; returns those on which something depends that stays."""
    marks.add_whole(watch.news())  # most of it here, where nobody waits
    gone, stuck = room.make(lambda: repository.index.write(partial(_within, watch, marks, batch)))
    swept.add(gone)
    time.sleep(SWEEP_PAUSE_SECONDS)
    return stuck


def _within(
    watch: Watch, marks: Marks, batch: Sequence[Doomed], writer: IndexWriter
) -> tuple[list[Doomed], list[Doomed]]:
    marks.add_whole(watch.news())
    leased = watch.leased_packs()  # a fetch indexes what it got long before a commit needs it
    going = [each for each in batch if each.copy.id not in marks.objects and each.copy.pack not in leased]
    refused = {each.copy for each in writer.remove_places([each.copy for each in going], spare_last=False)}
    return [each for each in going if each.copy not in refused], [each for each in going if each.copy in refused]
