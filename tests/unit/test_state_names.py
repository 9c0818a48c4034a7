"""Names and what patterns select."""

import pytest

from moonclip.state.names import join, key_of, last_segment, parent_of, segment, select
from store.errors import Corrupt, NotFound

NAMES = ["", "model", "model/layer.0.weight", "model/layer.1.weight", "optimizer", "optimizer/0", "optimizer/0/exp_avg"]


@pytest.mark.parametrize(
    ("key", "name"),
    [("a", "a"), ("a/b", "a~1b"), ("a~b", "a~0b"), ("", "~s"), ("0", "~s0"), ("-12", "~s-12"), (0, "0"), (-12, "-12"),
     ("0.weight", "0.weight"), ("~1", "~01"), ("~s0", "~0s0"), (10**30, None), (None, None), (True, None),
     ((1, "x"), None), ("\ud800", None), ("٣", "٣"), ("1\n", "1\n")],
)  # fmt: skip
def test_a_segment_has_one_key(key: object, name: str | None) -> None:
    made = segment(key)
    assert made == name if name is not None else made.startswith("~k")
    assert "/" not in made and key_of(made) == key and type(key_of(made)) is type(key)


@pytest.mark.parametrize("bad", ["~kxyz", "~k00ff", "~k"])
def test_a_segment_that_no_key_has(bad: str) -> None:
    with pytest.raises(Corrupt):
        key_of(bad)


def test_names_come_apart_as_they_were_joined() -> None:
    assert join("", "a") == "a" and join("a", "b") == "a/b" and join("", "~s") == "~s"
    assert (
        parent_of("a/b/c") == "a/b" and parent_of("a") == "" and last_segment("a/b") == "b" and last_segment("a") == "a"
    )


def test_a_selected_name_brings_what_is_above_and_below() -> None:
    assert select(NAMES, ["optimizer/0"]) == ["", "optimizer", "optimizer/0", "optimizer/0/exp_avg"]
    assert select(NAMES, ["*.0.weight"]) == ["", "model", "model/layer.0.weight"]
    assert select(NAMES, ["model/layer.?.weight", "*/exp_avg"]) == NAMES
    assert select(NAMES, [""]) == NAMES


def test_a_pattern_that_matches_nothing_is_an_error() -> None:
    with pytest.raises(NotFound, match="'Model'"):
        select(NAMES, ["model", "Model"])
