"""Who of the ranks writes what, and what they tell each other."""

from typing import Any

import pytest

from moonclip.items import GENERATORS
from moonclip.ranks.messages import error_of, told
from moonclip.ranks.perrank import OwnState, is_per_rank, under_rank
from moonclip.ranks.plan import Offer, Share, digest, shares
from moonclip.sharding.writers import Holding, Name
from moonclip.state import flatten
from store.boxes import Box
from store.errors import Conflict, Incompatible, MoonclipError, PartsMissing
from store.format.canonical import decode, encode

W, LR = Name("model", "w"), Name("optimizer", "lr")


def offer(*rows: int, others: tuple[Name, ...] = (LR,), parameters: tuple[str, ...] = ("w",)) -> Offer:
    start, stop = rows
    boxes = (Box((start, 0), (stop - start, 3)),)
    return Offer({W: Holding("float32", (4, 3), boxes)}, others, {"optimizer": list(parameters)})


def sent(node: Any) -> Any:
    return decode(encode(node))


def test_a_value_is_written_by_the_first_rank_that_has_it() -> None:
    only = Name("model", "only")
    first, second = shares([offer(0, 2), offer(2, 4, others=(LR, only))])
    assert first.others == {LR}
    assert second.others == {only}
    assert first.boxes == {W: (Box((0, 0), (2, 3)),)}
    assert second.boxes == {W: (Box((2, 0), (2, 3)),)}


def test_offers_and_shares_are_what_was_sent() -> None:
    given = offer(0, 4)
    assert Offer.decode(sent(given.encode())) == given
    share = Share({W: (Box((0, 0), (4, 3)),)}, frozenset({LR}))
    assert Share.decode(sent(share.encode())) == share
    assert digest(given.encode()) == digest(offer(0, 4).encode()) != digest(offer(0, 3).encode())


def test_stages_with_other_parameters_under_the_same_numbers_are_refused() -> None:
    with pytest.raises(Incompatible, match="ranks 0 and 1 have different parameters"):
        shares([offer(0, 2), offer(2, 4, parameters=("v",))])


def test_boxes_that_leave_a_hole_are_refused() -> None:
    with pytest.raises(Incompatible, match="model::w"):
        shares([offer(0, 2), offer(3, 4)])


@pytest.mark.parametrize("error", [Conflict("taken"), PartsMissing("gone", ranks=[1]), OSError(28, "full")])
def test_an_error_says_whose_it_is_however_often_it_is_told(error: Exception) -> None:
    found = error_of(sent(told(error, 3)))
    again = error_of(sent(told(found, 0)))
    assert str(again) == str(found)
    assert str(found).startswith("rank 3: ")
    assert again.details["failed_rank"] == 3
    assert type(again) is (type(error) if isinstance(error, MoonclipError) else MoonclipError)


class Kept:
    """Takes a state."""

    def __init__(self) -> None:
        self.state: Any = None

    def state_dict(self) -> Any:
        return self.state

    def load_state_dict(self, state: Any) -> None:
        self.state = state


def own(item: str, rank: int, world_size: int, *, strict: bool = True, ranks: int = 2) -> Any:
    kept = Kept()
    target = OwnState(item, kept, rank, world_size, strict=strict)
    target.load_state_dict({f"rank {each}": each for each in range(ranks)})
    assert target.state_dict() == kept.state
    return kept.state


def test_g5_each_rank_takes_its_own_if_there_are_as_many_as_saved() -> None:
    assert [own("loader", rank, 2) for rank in range(2)] == [0, 1]
    assert [own(GENERATORS, rank, 4) for rank in range(4)] == [0, 0, 0, 0]
    with pytest.raises(Incompatible, match="2 ranks saved one each, and 3 load it"):
        own("loader", 2, 3)
    assert own("loader", 2, 3, strict=False) == 0


def test_what_one_process_saved_is_for_all() -> None:
    kept = Kept()
    OwnState("loader", kept, 1, 2, strict=True).load_state_dict({"at": 3})
    assert kept.state == {"at": 3}
    assert not is_per_rank({})
    assert not is_per_rank([1])


def test_a_ranks_own_lies_below_its_rank() -> None:
    state = under_rank(flatten({"a": 1, "b": [2]}), 5)
    assert list(state.entries) == ["", "rank 5"]
    assert state.entries["rank 5"].position == 5
