"""What ranks tell each other reaches all of them, whatever is in it and whoever fails."""

from typing import Any

import pytest

from moonclip.ranks.messages import error_of, told
from moonclip.ranks.talk import Talk
from store.errors import Incompatible, MoonclipError, NotFound
from tests.lines import talking

LONE = "a\udc80b"
"""What a path that is no UTF-8 looks like."""


def require_all(outcomes: list[Any], kind: type[MoonclipError], text: str) -> None:
    assert [type(each) for each in outcomes] == [kind] * len(outcomes), outcomes
    assert all(text in str(each) for each in outcomes), outcomes


class Mute(Exception):
    def __str__(self) -> str:
        raise ValueError


def test_an_answer_that_cannot_be_sent_ends_it_on_all_ranks() -> None:
    outcomes = talking(3, lambda talk: talk.decide(lambda: LONE))
    require_all(outcomes, Incompatible, "cannot be written as UTF-8")


def test_an_error_that_names_a_path_that_is_no_utf8_is_told() -> None:
    def choose() -> None:
        raise NotFound(f"no {LONE}")

    outcomes = talking(3, lambda talk: talk.decide(choose))
    assert str(outcomes[0]) == f"no {LONE}"
    require_all(outcomes[1:], NotFound, "rank 0: no a\\udc80b")


@pytest.mark.parametrize("at", [0, 1, 2])
def test_an_offer_that_cannot_be_sent_ends_it_on_all_ranks(at: int) -> None:
    def act(talk: Talk) -> Any:
        return talk.exchange(lambda: LONE if talk.group.rank == at else "fine", lambda said: [said] * 3)

    require_all(talking(3, act), Incompatible, "cannot be written as UTF-8")


def test_ranks_stay_in_step_after_it() -> None:
    def act(talk: Talk) -> Any:
        with pytest.raises(Incompatible):
            talk.exchange(lambda: LONE, lambda said: said)
        return talk.exchange(lambda: talk.group.rank, lambda said: [sum(said)] * 3)

    assert talking(3, act) == [3, 3, 3]


def test_what_is_too_long_is_refused_where_it_is_said(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("moonclip.ranks.messages.MAX_RANK_MESSAGE_BYTES", 1000)

    def act(talk: Talk) -> Any:
        return talk.exchange(lambda: b"x" * 1000 * talk.group.rank, lambda said: [None] * len(said))

    require_all(talking(2, act), Incompatible, "at most 1,000 bytes")
    require_all(talking(2, lambda talk: talk.decide(lambda: b"x" * 1000)), Incompatible, "at most 1,000 bytes")


def test_too_few_answers_are_an_error_of_all() -> None:
    outcomes = talking(2, lambda talk: talk.exchange(None, lambda _: [1]))
    assert isinstance(outcomes[0], IndexError)
    require_all(outcomes[1:], MoonclipError, "rank 0: IndexError")


def test_an_error_that_cannot_say_what_it_is_is_told_all_the_same() -> None:
    assert str(error_of(told(Mute(), 3))) == "rank 3: Mute"
