"""What policies keep of lines of history."""

from collections.abc import Sequence
from datetime import timedelta
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from store.errors import Incompatible
from store.format.values import Plain
from store.ids import CommitId, ObjectId
from store.index import CommitRow
from store.upkeep.retention import Keep, dropped, kept, older

NOW_NS = 10**18
HOUR_NS = 3600 * 10**9


def commit_id(number: int) -> CommitId:
    return CommitId(ObjectId(number.to_bytes(32, "big")))


def row(number: int, step: int | None = None) -> CommitRow:
    """Commit ``number``, saved at step ``10 * number`` and ``number`` hours after the first hundred ago."""
    time_ns = NOW_NS - (100 - number) * HOUR_NS
    return CommitRow(commit_id(number), (), 10 * number if step is None else step, time_ns, "main", number + 1)


LINE = [row(number) for number in range(20)][::-1]
LOSSES: dict[int, Plain] = {
    3: 0.5,
    4: "0.25",
    5: float("nan"),
    6: "nan",
    7: "low",
    8: 0.5,
    9: True,
    10: None,
    11: 4,
    12: "inf",
}


def said(commit: CommitId, key: str) -> Plain:
    return LOSSES.get(int.from_bytes(commit, "big")) if key == "loss" else None


def numbers(commits: set[CommitId]) -> list[int]:
    return sorted(int.from_bytes(commit, "big") for commit in commits)


def chosen(keep: Keep, line: Sequence[CommitRow] = LINE) -> list[int]:
    return numbers(kept(line, keep, said, NOW_NS))


def test_the_last() -> None:
    assert chosen(Keep(last=3)) == [17, 18, 19]
    assert chosen(Keep(last=100)) == list(range(20))


def test_the_first_of_each_run_of_steps() -> None:
    assert chosen(Keep(every=50)) == [0, 5, 10, 15]
    assert chosen(Keep(every=45)) == [0, 5, 9, 14, 18]
    assert chosen(Keep(every=50), LINE[3:-3]) == [3, 5, 10, 15]
    assert chosen(Keep(every=7), [CommitRow(commit_id(1), (), None, 0, "main", 1)]) == []


def test_steps_that_went_back() -> None:
    line = [row(0, 0), row(1, 100), row(2, 0), row(3, 100), row(4, -3)][::-1]
    assert chosen(Keep(every=50), line) == [0, 1, 4]


def test_the_best() -> None:
    """By numbers, also such as are text; what is none, or not finite, never is best; of equals the older one."""
    assert chosen(Keep(best=("loss", "min", 1))) == [4]
    assert chosen(Keep(best=("loss", "min", 2))) == [3, 4]
    assert chosen(Keep(best=("loss", "max", 1))) == [11]
    assert chosen(Keep(best=("loss", "max", 9))) == [3, 4, 8, 11]


def test_where_nothing_can_be_best_everything_stays() -> None:
    """A misspelt key must not cost a run."""
    assert chosen(Keep(best=("lss", "min", 1))) == list(range(20))


def test_what_is_no_older() -> None:
    assert chosen(Keep(within=timedelta(hours=82))) == [18, 19]
    assert chosen(Keep(within=timedelta(hours=82, microseconds=-1))) == [19]


@pytest.mark.parametrize(
    "parts",
    [
        {},
        {"last": 0},
        {"last": True},
        {"last": 1.5},
        {"every": -1},
        {"best": ("loss", "least", 1)},
        {"best": ("loss", "min", 0)},
        {"best": ("loss", "min")},
        {"within": timedelta(seconds=-1)},
    ],
)
def test_policies_that_make_no_sense(parts: dict[str, Any]) -> None:
    with pytest.raises(Incompatible):
        Keep(**parts)


def test_older_items() -> None:
    other = [*LINE[:2], row(30)]  # on another line the two are among its newest
    assert [one.sequence - 1 for one in older([LINE], 18, NOW_NS)] == [0, 1]
    assert [one.sequence - 1 for one in older([LINE], 18, NOW_NS)] == [0, 1]
    assert [one.sequence - 1 for one in older([LINE[:4], other], 2, NOW_NS)] == [16, 17, 30]
    assert [one.sequence - 1 for one in older([LINE], timedelta(hours=98), NOW_NS)] == [0, 1]


PARTS = st.fixed_dictionaries(
    {},
    optional={
        "last": st.integers(1, 30),
        "every": st.integers(1, 120),
        "best": st.tuples(st.just("loss"), st.sampled_from(["min", "max"]), st.integers(1, 5)),
        "within": st.timedeltas(timedelta(), timedelta(hours=110)),
    },
).filter(bool)
LINES = st.lists(
    st.lists(st.sampled_from(LINE), unique=True).map(lambda rows: sorted(rows, key=LINE.index)), max_size=3
)


@given(PARTS, LINES)
def test_parts_and_lines_add_up(parts: dict[str, Any], lines: list[list[CommitRow]]) -> None:
    keep = Keep(**parts)
    alone = [Keep(**{name: part}) for name, part in parts.items()]
    for line in lines:
        assert kept(line, keep, said, NOW_NS) == set().union(*(kept(line, each, said, NOW_NS) for each in alone))
    staying = set().union(*(kept(line, keep, said, NOW_NS) for line in lines))
    going = dropped(lines, keep, said, NOW_NS)
    assert {one.id for one in going} == {one.id for line in lines for one in line} - staying
    assert [one.sequence for one in going] == sorted({one.sequence for one in going})


@given(PARTS, LINES)
def test_a_second_time_drops_nothing(parts: dict[str, Any], lines: list[list[CommitRow]]) -> None:
    keep = Keep(**parts)
    gone = {one.id for one in dropped(lines, keep, said, NOW_NS)}
    left = [[one for one in line if one.id not in gone] for line in lines]
    again = [one.id for one in dropped(left, keep, said, NOW_NS)]
    # A commit that one line keeps lies on another, whose choice then has one rival less: it may only keep more.
    assert not again
