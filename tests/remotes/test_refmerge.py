"""The refs of many stores, as one sees them."""

from store.ids import CommitId, ObjectId
from store.naming.refnames import RefName
from store.remotes.names import RefKey
from store.remotes.refmerge import is_of_one_store, merge, tracking_name

MAIN, BEST = RefName("branches/main"), RefName("tags/best")
OWN, OTHER, THIRD = "a" * 32, "b" * 32, "c" * 32


def name(number: int) -> CommitId:
    return CommitId(ObjectId(number.to_bytes(32, "big")))


def line(descendant: CommitId, ancestor: CommitId) -> bool:
    """Commits below 100 are a line, each made on the one before; others stand alone."""
    return descendant == ancestor or (ancestor < descendant < name(100))


def test_shared_refs_are_taken_as_they_are() -> None:
    merged = merge({RefKey(None, MAIN): name(1), RefKey(None, BEST): name(2)}, OWN, line)
    assert merged.tips == {MAIN: name(1), BEST: name(2)}
    assert not merged.others and not merged.gone and not merged.diverged


def test_what_all_stores_agree_on_is_it() -> None:
    assert merge({RefKey(OWN, MAIN): name(1), RefKey(OTHER, MAIN): name(1)}, OWN, line).tips == {MAIN: name(1)}


def test_the_one_that_contains_the_others_is_it_whoever_has_it() -> None:
    refs = {RefKey(OWN, MAIN): name(1), RefKey(OTHER, MAIN): name(3), RefKey(THIRD, MAIN): name(2)}
    for own in (OWN, OTHER, THIRD, "d" * 32):
        merged = merge(refs, own, line)
        assert merged.tips == {MAIN: name(3)}
        assert not merged.diverged


def test_stores_that_diverge_each_go_on_with_their_own() -> None:
    refs = {RefKey(OWN, MAIN): name(1), RefKey(OTHER, MAIN): name(200), RefKey(THIRD, MAIN): name(300)}
    merged = merge(refs, OWN, line)
    assert merged.tips == {MAIN: name(1)}
    assert merged.others == {("bbbbbbbb", MAIN): name(200), ("cccccccc", MAIN): name(300)}
    assert merged.diverged == ["main"]


def test_who_has_none_of_its_own_sees_each() -> None:
    merged = merge({RefKey(OTHER, MAIN): name(200), RefKey(THIRD, MAIN): name(300)}, OWN, line)
    assert merged.tips == {}
    assert set(merged.others.values()) == {name(200), name(300)}


def test_what_one_store_deleted_is_there_as_long_as_another_has_it() -> None:
    assert merge({RefKey(OWN, MAIN): None, RefKey(OTHER, MAIN): name(2)}, OWN, line).tips == {MAIN: name(2)}
    merged = merge({RefKey(OWN, MAIN): None, RefKey(OTHER, MAIN): None}, OWN, line)
    assert (merged.tips, merged.gone) == ({}, {MAIN})


def test_tracking_branches_are_called_by_remote_store_and_branch() -> None:
    assert tracking_name("origin", RefName("branches/exp/lr3")) == "remotes/origin/exp/lr3"
    assert tracking_name("origin", MAIN, "bbbbbbbb") == "remotes/origin/bbbbbbbb/main"
    assert tracking_name("origin", RefName(f"branches/{'x' * 198}")) is None
    assert tracking_name("origin", BEST) is None


def test_a_branch_of_one_store_is_told_by_its_digits() -> None:
    assert is_of_one_store("bbbbbbbb/main", ["main"])
    for name in ("bbbbbbbb/other", "exp/main", "main", "bbbbbbbbb/main", "bbbbbbbB/main"):
        assert not is_of_one_store(name, ["main"])
