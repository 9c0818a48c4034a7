"""How far two lines of history have gone apart. Pure."""

import heapq
from typing import Final, NamedTuple

from ..ids import CommitId
from .walks import CommitSource, R

_OURS: Final = 1
_THEIRS: Final = 2
_BOTH: Final = _OURS | _THEIRS


class Distance(NamedTuple):
    """What each of two commits reaches that the other does not.

    Attributes:
        ahead_count: commits that only ours reaches.
        behind_count: commits that only theirs reaches.
    """

    ahead_count: int
    behind_count: int


def distance(source: CommitSource[R], ours: CommitId, theirs: CommitId) -> Distance:
    """Count what each reaches alone; commits that the source lacks end their line.

    Cost: one look-up for each commit that is counted, and for those of the shared past that have to be passed. A whole
    history is walked only if the two share none of it.
    """
    reached_by = {ours: _OURS}
    reached_by[theirs] = reached_by.get(theirs, 0) | _THEIRS
    waiting: list[tuple[int, CommitId, tuple[CommitId, ...]]] = []
    one_sided: set[CommitId] = set()
    counts = {_OURS: 0, _THEIRS: 0, _BOTH: 0}

    def enqueue(commit: CommitId) -> None:
        row = source.commit(commit)
        if row is not None:
            heapq.heappush(waiting, (-row.sequence, commit, row.parents))
            if reached_by[commit] != _BOTH:
                one_sided.add(commit)

    for tip in reached_by:
        enqueue(tip)
    while one_sided:
        # All children of a commit came here after it: when its turn comes, who reaches it is settled.
        _, commit, parents = heapq.heappop(waiting)
        sides = reached_by[commit]
        counts[sides] += 1
        one_sided.discard(commit)
        for parent in parents:
            known = reached_by.get(parent, 0)
            reached_by[parent] = known | sides
            if not known:
                enqueue(parent)
            elif reached_by[parent] == _BOTH:
                one_sided.discard(parent)
    return Distance(counts[_OURS], counts[_THEIRS])
