"""Walks over the graph of commits.

Every walk asks its source for one commit at a time and holds ids and rows only: a paused iterator keeps no
transaction and no file open, so it stands in no writer's way.

A commit that the source lacks (history that was fetched only so far back) ends its line; whoever needs it to be
there checks that itself.
"""

import heapq
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Generic, Protocol, TypeVar

from ..ids import CommitId


class Row(Protocol):
    """What walks read of a commit; the index's rows are such."""

    @property
    def id(self) -> CommitId:
        """The commit."""
        ...

    @property
    def parents(self) -> tuple[CommitId, ...]:
        """Its parents, the one that it was made on first."""
        ...

    @property
    def step(self) -> int | None:
        """Training step, or ``None``."""
        ...

    @property
    def sequence(self) -> int:
        """Place in the order of arrival here. A commit's is greater than its parents'."""
        ...


R = TypeVar("R", bound=Row)
R_co = TypeVar("R_co", bound=Row, covariant=True)


class CommitSource(Protocol[R_co]):
    """Where rows come from. A call leaves nothing open behind it."""

    def commit(self, commit_id: CommitId, /) -> R_co | None:
        """The row of a commit, or ``None`` if it is not here."""
        ...


@dataclass(frozen=True, slots=True)
class GraphRow(Generic[R]):
    """One commit of a drawn graph, with the lanes that pass it.

    A lane is a column in which a line runs down to the commit it holds; ``None`` is an empty column.

    Attributes:
        row: the commit.
        column: where it is drawn.
        before: lanes as they come in from above; all that hold ``row.id`` end here.
        after: lanes as they go on below; ``row``'s parents are among them.
    """

    row: R
    column: int
    before: tuple[CommitId | None, ...]
    after: tuple[CommitId | None, ...]


def first_parents(source: CommitSource[R], tip: CommitId) -> Iterator[R]:
    """``tip``, its first parent, that one's first parent, … One look-up a step."""
    following: CommitId | None = tip
    while following is not None:
        row = source.commit(following)
        if row is None:
            return
        yield row
        following = row.parents[0] if row.parents else None


def newest_first(source: CommitSource[R], tips: Iterable[CommitId]) -> Iterator[R]:
    """All that ``tips`` reach, each commit once and before its parents; between lines, the latest arrival first.

    Memory is the commits seen so far (their ids), plus a row for each line of history being followed.
    """
    seen: set[CommitId] = set()
    waiting: list[tuple[int, CommitId, R]] = []

    def enqueue(ids: Iterable[CommitId]) -> None:
        for commit in ids:
            if commit in seen:
                continue
            seen.add(commit)
            row = source.commit(commit)
            if row is not None:
                heapq.heappush(waiting, (-row.sequence, commit, row))

    enqueue(tips)
    while waiting:
        _, _, row = heapq.heappop(waiting)
        yield row
        enqueue(row.parents)


def reached_among(source: CommitSource[R], tips: Iterable[CommitId], wanted: Iterable[CommitId]) -> set[CommitId]:
    """Those of ``wanted`` that ``tips`` reach. Walks no further back than the oldest of them."""
    rows = [row for row in map(source.commit, wanted) if row is not None]
    missing = {row.id for row in rows}
    oldest = min((row.sequence for row in rows), default=0)
    found: set[CommitId] = set()
    for row in newest_first(source, tips):
        if not missing or row.sequence < oldest:
            break
        if row.id in missing:
            missing.remove(row.id)
            found.add(row.id)
    return found


def simplified(
    rows: Iterable[R], is_shown: Callable[[R], bool], with_parents: Callable[[R, tuple[CommitId, ...]], R]
) -> Iterator[R]:
    """Those rows that are shown, newest first, each with its nearest shown ancestors for parents.

    Args:
        rows: commits, each before its parents.
        is_shown: whether one is.
        with_parents: a row with other parents.

    Memory: the ids of all rows. A commit from which nothing shown is reached in two ways keeps each ancestor once.
    """
    listed = list(rows)
    stand_ins: dict[CommitId, tuple[CommitId, ...]] = {}
    shown: list[R] = []
    for row in reversed(listed):
        parents = tuple(dict.fromkeys(each for parent in row.parents for each in stand_ins.get(parent, ())))
        if is_shown(row):
            shown.append(with_parents(row, parents))
            stand_ins[row.id] = (row.id,)
        else:
            stand_ins[row.id] = parents
    return reversed(shown)


def graph(rows: Iterable[R]) -> Iterator[GraphRow[R]]:
    """Lay commits, each given before its parents, out in lanes. Keeps the lanes only."""
    before: tuple[CommitId | None, ...] = ()
    for row in rows:
        column = before.index(row.id) if row.id in before else _free_column(before)
        after = _lanes_below(before, column, row)
        yield GraphRow(row, column, before, after)
        before = after


def _lanes_below(before: Sequence[CommitId | None], column: int, row: Row) -> tuple[CommitId | None, ...]:
    lanes: list[CommitId | None] = [None if lane == row.id else lane for lane in before]
    for number, parent in enumerate(row.parents):
        if parent in lanes:
            if number > 0 or lanes.index(parent) < column:
                continue
            lanes[lanes.index(parent)] = None  # That line joins this one, so that first parents run straight down.
        place = column if number == 0 else _free_column(lanes)
        lanes.extend([None] * (place + 1 - len(lanes)))
        lanes[place] = parent
    while lanes and lanes[-1] is None:
        lanes.pop()
    return tuple(lanes)


def _free_column(lanes: Sequence[CommitId | None]) -> int:
    return lanes.index(None) if None in lanes else len(lanes)
