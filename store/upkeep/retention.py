"""Which commits a policy keeps. Pure.

A policy is applied to each branch's line by itself: the tip, its first parent, that one's first parent, … What any
part of the policy keeps on any line is kept; the rest of the lines may be dropped. Of commits that lie on no line,
such as those that only a tag or a merge's other side reaches, a policy says nothing: they stay.

Applying a policy again drops nothing more until there are new commits: what it kept is what it keeps.
"""

import math
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from datetime import timedelta
from typing import Final, Literal

from ..errors import Incompatible
from ..format.values import Plain
from ..history.conditions import number_of
from ..ids import CommitId
from ..index import CommitRow

Line = Sequence[CommitRow]
"""Commits of a branch that still have content, newest first."""

Said = Callable[[CommitId, str], Plain]
"""What a commit's metadata hold under a key; ``None`` if nothing."""

_MODES: Final = ("min", "max")


@dataclass(frozen=True, slots=True)
class Keep:
    """A policy: a commit is kept if any part of it says so.

        Keep(last=3, every=1000, best=("loss", "min", 2), within=timedelta(days=2))

    The tips of all branches, commits with a tag or a pin, and what reflogs alone still name are kept in any case.

    Attributes:
        last: so many newest commits of each branch.
        every: of each run of so many steps (0 to 999, 1000 to 1999, …) the first commit of each branch.
        best: a key of the metadata, ``"min"`` or ``"max"``, and how many commits of each branch. A commit that has no
            such number never is best, nor one whose number is not finite; of equals the older is better. As long as no
            commit of a branch has one, all of them stay: a misspelt key must not cost a run.
        within: what is no older, by the clock of whoever saved it.

    Raises:
        Incompatible: it says nothing, or a part of it makes no sense.
    """

    last: int | None = None
    every: int | None = None
    best: tuple[str, Literal["min", "max"], int] | None = None
    within: timedelta | None = None

    def __post_init__(self) -> None:
        if (self.last, self.every, self.best, self.within) == (None, None, None, None):
            raise Incompatible("a policy has to say what to keep: last, every, best or within")
        best: Sequence[object] | None = self.best
        if best is not None and len(best) != 3:
            raise Incompatible(f"best takes a key of the metadata, 'min' or 'max', and how many; not {best!r}")
        counts = {"last": self.last, "every": self.every, "best": self.best and self.best[2]}
        for name, count in counts.items():
            if count is not None and (type(count) is not int or count < 1):
                raise Incompatible(f"{name} takes a whole number of at least 1, not {count!r}")
        if self.best is not None and self.best[1] not in _MODES:
            raise Incompatible(f"best is 'min' or 'max' of something, not {self.best[1]!r}")
        if self.within is not None and self.within < timedelta():
            raise Incompatible(f"within takes a span of time that is not negative, not {self.within}")


def kept(line: Line, keep: Keep, said: Said, now_ns: int) -> set[CommitId]:
    """What a policy keeps of one line.

    Args:
        line: the line.
        keep: the policy.
        said: asked only if the policy is about the best.
        now_ns: nanoseconds since the epoch.
    """
    chosen = {row.id for row in line[: keep.last or 0]}
    if keep.every is not None:
        chosen.update(_first_of_each_run(line, keep.every))
    if keep.best is not None:
        chosen.update(_best(line, *keep.best, said))
    if keep.within is not None:
        since_ns = now_ns - keep.within // timedelta(microseconds=1) * 1_000
        chosen.update(row.id for row in line if row.time_ns >= since_ns)
    return chosen


def dropped(lines: Sequence[Line], keep: Keep, said: Said, now_ns: int) -> list[CommitRow]:
    """What a policy drops of several lines, the earliest arrival first. Arguments as for :func:`kept`."""
    staying = set[CommitId]().union(*(kept(line, keep, said, now_ns) for line in lines))
    going = {row.id: row for line in lines for row in line if row.id not in staying}
    return _by_arrival(going)


def older(lines: Sequence[Line], than: int | timedelta, now_ns: int) -> list[CommitRow]:
    """What lies further back on every line it is on, the earliest arrival first.

    Args:
        lines: the lines.
        than: so many of the newest commits of each, or what is no older than that.
        now_ns: nanoseconds since the epoch.
    """
    limit = Keep(last=max(than, 1)) if isinstance(than, int) else Keep(within=than)  # tips keep theirs in any case
    return dropped(lines, limit, _nothing, now_ns)


def _first_of_each_run(line: Line, length: int) -> Iterator[CommitId]:
    first = {row.step // length: row.id for row in line if row.step is not None}  # of each, the last one met stays
    yield from first.values()


def _best(line: Line, key: str, mode: str, count: int, said: Said) -> Iterator[CommitId]:
    sign = 1 if mode == "min" else -1
    found = []
    for row in line:
        number = number_of(said(row.id, key))
        if number is not None and math.isfinite(number):
            found.append((sign * number, row.sequence, row.id))
    if not found:
        yield from (row.id for row in line)
    yield from (commit for _, _, commit in sorted(found)[:count])


def _by_arrival(rows: dict[CommitId, CommitRow]) -> list[CommitRow]:
    return sorted(rows.values(), key=lambda row: row.sequence)


def _nothing(_: CommitId, __: str) -> Plain:
    return None
