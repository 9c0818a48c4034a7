"""Which items a fetch wants, and what records say of the others."""

from store.format.objects import Commit
from store.ids import CommitId, ObjectId, TreeId
from store.remotes.fetching.contents import Wish, changes, content_of
from store.upkeep.absences import Absence, Why

ID = CommitId(ObjectId(b"\x01" * 32))
COMMIT = Commit({item: TreeId(ObjectId(item.encode() * 32)) for item in ("m", "o")})


def record(item: str | None, why: Why, origin: str = "") -> Absence:
    return Absence.of(ID, item, why, 5, origin)


def test_all_of_a_new_commit_is_wanted() -> None:
    content = content_of(ID, COMMIT, (), Wish("origin"), is_new=True)
    assert content.trees == COMMIT.items
    assert content.records == []


def test_items_that_are_not_named_are_partial() -> None:
    content = content_of(ID, COMMIT, (), Wish("origin", items=frozenset("m"), time_ns=7), is_new=True)
    assert list(content.trees) == ["m"]
    assert content.records == [Absence.of(ID, "o", Why.PARTIAL, 7, "origin")]


def test_what_is_beyond_the_depth_is_shallow_as_a_whole() -> None:
    content = content_of(ID, COMMIT, (), Wish("origin", within=(), time_ns=7), is_new=True)
    assert content.records == [Absence.of(ID, None, Why.SHALLOW, 7, "origin")]


def test_what_a_ref_is_about_to_name_is_never_said_to_be_absent_as_a_whole() -> None:
    """Nobody may name such a commit."""
    wish = Wish("origin", within=(), tips=frozenset([ID]), time_ns=7)
    assert [each.item for each in content_of(ID, COMMIT, (), wish, is_new=True).records] == ["m", "o"]
    known = (record(None, Why.SHALLOW, "origin"),)
    assert [each.item for each in content_of(ID, COMMIT, known, wish, is_new=False).records] == ["m", "o"]


def test_lazily_nothing_is_wanted_and_every_item_is_partial() -> None:
    content = content_of(ID, COMMIT, (), Wish("origin", items=frozenset()), is_new=True)
    assert content.trees == {}
    assert [(each.item, each.why) for each in content.records] == [("m", Why.PARTIAL), ("o", Why.PARTIAL)]


def test_what_was_left_out_comes_with_the_next_full_fetch() -> None:
    for why in (Why.SHALLOW, Why.PARTIAL, Why.COLLECTED):
        content = content_of(ID, COMMIT, (record(None, why),), Wish("origin"), is_new=False)
        assert content.trees == COMMIT.items
        assert content.records == []


def test_what_was_pruned_does_not_come_unless_it_is_named() -> None:
    for known in ((record(None, Why.PRUNED),), (record("m", Why.PRUNED), record("o", Why.PRUNED))):
        content = content_of(ID, COMMIT, known, Wish("origin"), is_new=False)
        assert content.trees == {}
        assert not changes({ID: content}, {ID: known})
        assert content_of(ID, COMMIT, known, Wish("origin", named=frozenset([ID])), is_new=False).trees == COMMIT.items


def test_an_item_of_a_commit_that_was_absent_as_a_whole_leaves_the_others_absent() -> None:
    known = (record(None, Why.SHALLOW, "origin"),)
    content = content_of(ID, COMMIT, known, Wish("origin", items=frozenset("m")), is_new=False)
    assert list(content.trees) == ["m"]
    assert content.records == [record("o", Why.SHALLOW, "origin")]
    assert changes({ID: content}, {ID: known}) == {ID}


def test_a_fetch_that_leaves_out_what_is_here_does_not_drop_it() -> None:
    known = (record("m", Why.PARTIAL, "origin"),)
    content = content_of(ID, COMMIT, known, Wish("origin", items=frozenset()), is_new=False)
    assert list(content.trees) == ["o"]
    assert not changes({ID: content}, {ID: known})


def test_what_was_collected_and_is_left_out_can_be_fetched_later() -> None:
    known = (record(None, Why.COLLECTED),)
    content = content_of(ID, COMMIT, known, Wish("origin", items=frozenset(), time_ns=7), is_new=False)
    assert {(each.why, each.origin) for each in content.records} == {(Why.PARTIAL, "origin")}
