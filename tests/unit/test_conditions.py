"""Which commits somebody wants to see."""

from datetime import datetime
from typing import Any

import pytest

from store.errors import Incompatible
from store.format.objects import Commit
from store.history.conditions import condition, moment_ns, number_of

DAY_NS = 86_400 * 1_000_000_000


def commit(**metadata: Any) -> Commit:
    return Commit(items={}, parents=(), step=50, time_ns=0, branch="exp", message="a try", metadata=metadata)


@pytest.mark.parametrize(
    ("text", "loss", "holds"),
    [
        ("loss<2.3", 2.2, True),
        ("loss<2.3", "2.2", True),
        ("loss<2.3", "2.30", False),
        ("loss <= 2.3", "2.30", True),
        ("loss>1e-3", 0.5, True),
        ("loss>=2", 2, True),
        ("loss=2", 2.0, True),
        ("loss==2.0", "2", True),
        ("loss!=2", 2, False),
        ("loss!=2", 3, True),
        ("loss<2", float("nan"), False),
        ("loss!=2", float("nan"), False),
        ("loss=high", "high", True),
        ("loss!=high", "low", True),
        ("loss<high", "abc", False),
        ("loss=True", True, True),
        ("loss>0", True, False),
        ("loss= high ", "high", True),
        ("lr<1", 0.5, False),
        ("step>=50", 0.5, True),
        ("step<50", 0.5, False),
        ("branch=exp", 0.5, True),
        ("message=a try", 0.5, True),
    ],
)
def test_conditions(text: str, loss: Any, holds: bool) -> None:
    assert condition(text).holds(commit(loss=loss)) is holds


def test_metadata_comes_before_what_every_commit_has() -> None:
    assert condition("step=7").holds(commit(step=7))


@pytest.mark.parametrize("text", ["", "loss", "<2", "loss~2", "!loss", "loss=<2", "loss = > 2", "loss<>2", "loss=!2"])
def test_what_is_no_condition_is_refused(text: str) -> None:
    with pytest.raises(Incompatible, match="no condition"):
        condition(text)


def test_moments() -> None:
    now_ns = 100 * DAY_NS
    assert moment_ns("2d", now_ns) == 98 * DAY_NS
    assert moment_ns("48h", now_ns) == 98 * DAY_NS
    assert moment_ns("2w", now_ns) == 86 * DAY_NS
    assert moment_ns("1970-01-02T00:00+00:00", now_ns) == DAY_NS
    assert moment_ns("2026-11-29", now_ns) == int(datetime(2026, 11, 29).timestamp()) * 1_000_000_000


@pytest.mark.parametrize("text", ["", "yesterday", "2x", "-2d", "2026-13-01", "99999999999d"])
def test_what_is_no_moment_is_refused(text: str) -> None:
    with pytest.raises(Incompatible, match="no time"):
        moment_ns(text, 0)


def test_numbers() -> None:
    assert [number_of(value) for value in (1, 1.5, "1.5", "x", True, None, [1])] == [
        1,
        1.5,
        1.5,
        None,
        None,
        None,
        None,
    ]
