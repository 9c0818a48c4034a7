r"""History drawn with characters, as ``git log --graph`` does: ``*`` a commit, ``|/`` joins, ``|\`` forks. Pure."""

from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass

from store.history.walks import GraphRow, R
from store.ids import CommitId

Lanes = Sequence[CommitId | None]


@dataclass(frozen=True, slots=True)
class Drawn:
    """What is drawn to the left of a commit's text.

    Attributes:
        above: lines before the commit's own, without text beside them.
        commit: the commit's line.
        below: lines after it, beside which text may go on.
        rest: what stands before any further text.
    """

    above: tuple[str, ...]
    commit: str
    below: tuple[str, ...]
    rest: str


def draw(rows: Iterable[GraphRow[R]]) -> Iterator[tuple[R, Drawn]]:
    """Draw a laid-out history, commit by commit."""
    ended_column: int | None = None
    for row in rows:
        above = tuple(_joins(row))
        if row.column == ended_column and row.row.id not in row.before:
            above = (_bars(_columns(row.before)), *above)  # or it would look like a child of what ended there
        yield row.row, Drawn(above, _commit_line(row), tuple(_edges_below(row)), _bars(_columns(row.after)))
        ended_column = None if row.row.parents else row.column


def beside(drawn: Drawn, text: Iterable[str]) -> Iterator[str]:
    """The lines of one commit: what is drawn, and the text."""
    lefts = iter((drawn.commit, *drawn.below))
    yield from drawn.above
    for line in text:
        yield f"{next(lefts, drawn.rest)} {line}".rstrip()
    yield from lefts


def _commit_line(row: GraphRow[R]) -> str:
    passing = [column for column, lane in enumerate(row.before) if lane not in (None, row.row.id)]
    line = list(_bars(passing).ljust(2 * row.column + 1))
    line[2 * row.column] = "*"
    return "".join(line)


def _joins(row: GraphRow[R]) -> Iterator[str]:
    """Other lanes that end at this commit, joined above it."""
    joining = [c for c, lane in enumerate(row.before) if lane == row.row.id and c != row.column]
    standing = {*_columns(row.before), row.column} - set(joining)
    return _moves(standing, [(column, row.column) for column in joining])


def _edges_below(row: GraphRow[R]) -> Iterator[str]:
    """How the lanes get from this commit to the next line of text."""
    passing = [(c, lane) for c, lane in enumerate(row.before) if lane not in (None, row.row.id)]
    edges = [(column, row.after.index(lane)) for column, lane in passing]
    edges += [(row.column, row.after.index(parent)) for parent in dict.fromkeys(row.row.parents)]
    standing = {start for start, end in edges if start == end}
    return _moves(standing, [edge for edge in edges if edge[0] != edge[1]])


def _moves(standing: set[int], edges: Sequence[tuple[int, int]]) -> Iterator[str]:
    """One line for each edge that changes its column."""
    for number, (start, end) in enumerate(edges):
        waiting = {source for source, _ in edges[number + 1 :]}
        arrived = {target for _, target in edges[:number]}
        yield _slanted(standing | waiting | arrived, start, end)


def _slanted(columns: set[int], start: int, end: int) -> str:
    line = list(_bars(columns).ljust(2 * max(start, end)))
    if end < start:
        line[2 * start - 1], level = "/", range(2 * end + 1, 2 * start - 1)
    else:
        line[2 * start + 1], level = "\\", range(2 * start + 2, 2 * end)
    for place in level:
        if line[place] == " ":
            line[place] = "_"
    return "".join(line).rstrip()


def _bars(columns: Iterable[int]) -> str:
    standing = set(columns)
    return "".join("| " if column in standing else "  " for column in range(max(standing, default=-1) + 1)).rstrip()


def _columns(lanes: Lanes) -> list[int]:
    return [column for column, lane in enumerate(lanes) if lane is not None]
