"""Who of the ranks writes what, and what they tell each other."""

from typing import Any

import pytest

from moonclip.ranks.messages import error_of, told
from moonclip.ranks.perrank import OwnState, is_per_rank, under_rank
from moonclip.ranks.plan import Offer, Share, digest, shares, to_put_together
from moonclip.ranks.replicas import copies_of, decode_copies, encode_copies, require_same
from moonclip.ranks.stages import Joined, ParameterGroup, joined
from moonclip.sharding.writers import Holding, Name
from moonclip.state.flattening import flatten
from moonclip.state.items import GENERATORS
from store.boxes import Box
from store.errors import Conflict, Incompatible, MoonclipError, PartsMissing
from store.format.canonical import decode, encode

W, LR = Name("model", "w"), Name("optimizer", "lr")


def groups(*names: str, settings: bytes = b"lr", is_named: bool = True) -> dict[str, tuple[ParameterGroup, ...]]:
    return {"optimizer": (ParameterGroup(names, is_named, settings),)}


def offer(*rows: int, others: tuple[Name, ...] = (LR,), together: Joined | None = None) -> Offer:
    start, stop = rows
    boxes = (Box((start, 0), (stop - start, 3)),)
    return Offer({W: Holding("float32", (4, 3), boxes)}, others, groups("w"), together or {})


def sent(node: Any) -> Any:
    return decode(encode(node))


def test_what_needs_a_scale_is_told_with_its_cast() -> None:
    given = offer(0, 4)
    assert not given.needs_scales
    cast = given._replace(holdings={W: given.holdings[W]._replace(stored="float8_e4m3fn", by_row=True)})
    assert Offer.decode(sent(cast.encode())) == cast
    assert cast.needs_scales
    with pytest.raises(
        Incompatible, match=r"rank 0 has float32 of shape \[4, 3\], stored as float8_e4m3fn by row, rank 1"
    ):
        shares([cast, given])


def test_copies_are_what_several_ranks_hold_and_differences_are_named() -> None:
    whole, half = offer(0, 4), offer(0, 2, others=())
    copies = copies_of([each.holdings for each in (whole, whole, half)], [each.others for each in (whole, whole, half)])
    assert copies == [{W: (Box((0, 0), (4, 3)),), LR: ()}, {W: (Box((0, 0), (4, 3)),), LR: ()}, {W: ()}]
    assert decode_copies(sent(encode_copies(copies[0]))) == copies[0]
    same = ["model", "w", "", b"1"]
    require_same([[same], [same], []])
    with pytest.raises(Incompatible, match=r"model::w \[0:2\] is not the same on ranks 0, 2 and 1") as refused:
        require_same([[same, ["model", "w", "[0:2]", rank]] for rank in (b"a", b"b", b"a")])
    assert refused.value.details["tensors"] == ["model::w"]


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


def test_parameters_of_stages_are_put_together_by_name() -> None:
    assert joined([groups("a", "b"), groups("a", "b"), {}]) == {}
    assert joined([groups("a", "b"), groups("b", "c"), {}]) == {"optimizer": [["a", "b", "c"]]}
    first = offer(0, 2)
    second = offer(2, 4)._replace(groups=groups("v"))
    together = to_put_together([first, second])
    assert together == {"optimizer": [["w", "v"]]}
    made = [each._replace(together=together) for each in (first, second)]
    assert to_put_together(made) is None
    assert to_put_together([made[0], made[0]]) == {}
    assert digest(made[0].encode()) != digest(first.encode())


@pytest.mark.parametrize(
    ("others", "told"),
    [
        (groups("0", is_named=False), "nothing says what those of rank 1 are called"),
        (groups("v", settings=b"other"), "differ in number or settings"),
        ({"optimizer": groups("v")["optimizer"] * 2}, "differ in number or settings"),
    ],
)
def test_stages_whose_parameters_cannot_be_put_together_are_refused(
    others: dict[str, tuple[ParameterGroup, ...]], told: str
) -> None:
    with pytest.raises(Incompatible, match=f"optimizer: ranks 0 and 1 have different parameters.*{told}"):
        joined([groups("w"), others])


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


def test_g5_what_only_some_ranks_saved_is_for_these() -> None:
    some = {"rank 0": {"at": 1}, "rank 3": {"at": 4}}
    for rank, expected in ((0, {"at": 1}), (3, {"at": 4})):
        kept = Kept()
        OwnState("loader", kept, rank, 4, strict=True).load_state_dict(some)
        assert kept.state == expected
    with pytest.raises(Incompatible, match="loader: rank 1 saved none; leave it out on rank 1"):
        OwnState("loader", Kept(), 1, 4, strict=True).load_state_dict(some)
    with pytest.raises(Incompatible, match="loader: 4 ranks saved one each, and 2 load it"):
        OwnState("loader", Kept(), 1, 2, strict=True).load_state_dict(some)
    with pytest.raises(Incompatible, match="loader: rank 0 saved none; leave it out on rank 1"):
        OwnState("loader", Kept(), 1, 2, strict=False).load_state_dict({"rank 3": {"at": 4}})


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
