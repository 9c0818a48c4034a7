"""A store, opened: what it answers and what it refuses."""

from collections.abc import Iterator
from itertools import islice
from pathlib import Path

import pytest

from store.errors import Conflict, Corrupt, Incompatible, NotFound, ReadOnly, StoreNotFound
from store.fsck import fsck
from store.ids import CommitId, ObjectId
from store.naming.refnames import branch_name, tag_name
from store.opening.indexes import rebuild_index
from store.repository import Repository
from store.saving.inputs import ItemInput, ValueInput
from store.saving.leases import living_leases
from store.saving.saver import SaveRequest
from tests.arrays import Array, chunk_of, drifted, item, noise, read, require_whole, save

NOWHERE = CommitId(ObjectId(b"n" * 32))
STATE = {"w": noise("w", 3000), "b": noise("b", 7)}


def changed(number: int) -> dict[str, Array]:
    return {**STATE, "w": drifted(STATE["w"], number)}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


# --- making and opening ---------------------------------------------------------------------------------------------


def test_a_new_store_is_empty(repo: Repository) -> None:
    assert repo.refs.head() == "main"
    assert repo.refs.list() == {}
    assert not repo.read_only
    with pytest.raises(NotFound):
        repo.resolve("HEAD")
    assert fsck(repo, full=True).clean


def test_a_store_is_made_once(repo: Repository) -> None:
    with pytest.raises(Conflict):
        Repository.init(repo.layout.root)


def test_a_store_is_made_beside_other_files(tmp_path: Path) -> None:
    (tmp_path / "train.log").write_text("step 1")
    with Repository.init(tmp_path, branch="exp/lr3") as repo:
        assert repo.refs.head() == "exp/lr3"
    assert (tmp_path / "train.log").read_text() == "step 1"


def test_a_bad_branch_name_is_refused(tmp_path: Path) -> None:
    with pytest.raises(Incompatible):
        Repository.init(tmp_path / "store", branch="a..b")
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("path", ["nothing", "empty", "file"])
def test_where_there_is_no_store(tmp_path: Path, path: str) -> None:
    (tmp_path / "empty").mkdir()
    (tmp_path / "file").write_text("")
    with pytest.raises(StoreNotFound, match=r"moonclip .* init"):
        Repository.open(tmp_path / path)
    assert sorted(each.name for each in tmp_path.iterdir()) == ["empty", "file"]


@pytest.mark.parametrize("purpose", ["read", "write"])
def test_a14_a_store_of_a_newer_format_is_refused_by_name(repo: Repository, purpose: str) -> None:
    save(repo, STATE)
    repo.close()
    needs = {"read": '["moonclip-1"]', "write": '["moonclip-1"]', "gc": '["moonclip-1"]', purpose: '["moonclip-9"]'}
    text = "{" + ", ".join(f'"{name}": {features}' for name, features in needs.items()) + "}"
    repo.layout.format.write_text(text)
    with pytest.raises(Incompatible, match="moonclip-9"):
        Repository.open(repo.layout.root)
    if purpose == "write":
        Repository.open(repo.layout.root, read_only=True).close()
    assert repo.layout.format.read_text() == text


def test_closing_twice_is_fine(repo: Repository) -> None:
    save(repo, STATE)
    repo.close()
    repo.close()


def test_d14_a_store_opened_for_reading_only(repo: Repository) -> None:
    saved = save(repo, STATE)
    with Repository.open(repo.layout.root, read_only=True) as reader:
        assert read(reader, reader.resolve("main")) == STATE
        assert fsck(reader, full=True).clean
        assert reader.read_only
        with pytest.raises(ReadOnly):
            save(reader, changed(1))
        with pytest.raises(ReadOnly):
            reader.set_ref(tag_name("best"), None, saved.commit, "tag")
        with pytest.raises(ReadOnly):
            reader.delete_ref(branch_name("main"))


# --- saving ---------------------------------------------------------------------------------------------------------


def test_c5_all_items_are_one_commit(repo: Repository) -> None:
    items = [item(STATE, name) for name in ("model", "optimizer")] + [ItemInput("step", {"": ValueInput(0, 7)})]
    saved = repo.save(SaveRequest(items, branch="main", step=7, message="first", metadata={"loss": 0.5}))
    commit = repo.commit(saved.commit)
    assert list(commit.items) == ["model", "optimizer", "step"]
    assert (commit.step, commit.message, commit.branch, commit.parents) == (7, "first", "main", ())
    assert commit.metadata == {"loss": 0.5}
    assert repo.refs.list() == {"branches/main": saved.commit}


def test_c5_an_item_that_cannot_be_stored_keeps_the_others_out(repo: Repository) -> None:
    first = save(repo, STATE)
    items = [item(changed(1)), ItemInput("extra", {"": ValueInput(0, object())})]
    with pytest.raises(Incompatible, match="extra"):
        repo.save(SaveRequest(items, branch="main", parent=first.commit))
    assert repo.refs.list() == {"branches/main": first.commit}
    require_whole(repo, {first.commit: STATE})


def test_a_save_leaves_no_lease_and_no_temporary(repo: Repository) -> None:
    save(repo, STATE)
    assert living_leases(repo.layout.root, repo.files) == []
    assert list(repo.layout.writers.iterdir()) == []
    assert [path.suffix for path in repo.layout.packs.iterdir()] == [".pack"]


ILLEGAL = {
    "branch": {"branch": "no..dots"},
    "step": {"step": 2**63},
    "message": {"message": "lone \ud800"},
    "metadata": {"metadata": {"x": object()}},
    "metadata key": {"metadata": {"\ud800": 1}},
    "item": {"items": [item(STATE, "\ud800")]},
    "items": {"items": [item(STATE, "model"), item(STATE, "model")]},
    "tie": {"items": [item(STATE, ties=[("w", "\ud800")])]},
    "entry": {"items": [item({"\ud800": STATE["w"]})]},
}


@pytest.mark.parametrize("what", ILLEGAL.values(), ids=ILLEGAL)
def test_a_request_that_could_not_be_read_back_is_refused_and_leaves_nothing(
    repo: Repository, what: dict[str, object]
) -> None:
    with pytest.raises(Incompatible):
        repo.save(SaveRequest(**{"items": [item(STATE)], "branch": "main", **what}))  # type: ignore[arg-type]
    assert repo.refs.list() == {}
    assert list(repo.layout.packs.iterdir()) == []
    assert list(repo.index.commits_since(0)) == []


def test_metadata_keeps_its_order(repo: Repository) -> None:
    metadata = {"z": 1, "a": [2, (3,)], "m": {"k": None}}
    saved = repo.save(SaveRequest([item(STATE)], branch="main", metadata=metadata))
    assert list(repo.commit(saved.commit).metadata.items()) == list(metadata.items())


def test_a_parent_that_does_not_exist_is_refused(repo: Repository) -> None:
    with pytest.raises(NotFound):
        repo.save(SaveRequest([item(STATE)], branch="main", parent=NOWHERE))
    assert repo.refs.list() == {}


def test_b8_an_earlier_step_can_follow_a_later_one(repo: Repository) -> None:
    later, earlier = save(repo, STATE, step=100), save(repo, changed(1), step=80)
    assert repo.resolve("main") == earlier.commit
    assert repo.resolve("step:100") == later.commit
    require_whole(repo, {later.commit: STATE, earlier.commit: changed(1)})


# --- tags and branches ----------------------------------------------------------------------------------------------


def test_refs_move_only_to_what_is_whole(repo: Repository) -> None:
    first, second = save(repo, STATE), save(repo, changed(1))
    repo.index.mark_bad(chunk_of(repo, first.commit, "w"), repo.index.packs()[0])
    with pytest.raises(Corrupt, match="lacks 1 object"):
        repo.set_ref(branch_name("old"), None, first.commit, "branch")
    with pytest.raises(NotFound):
        repo.set_ref(branch_name("old"), None, NOWHERE, "branch")
    assert repo.refs.list() == {"branches/main": second.commit}


def test_a_ref_is_moved_by_compare_and_swap(repo: Repository) -> None:
    first, second = save(repo, STATE), save(repo, changed(1))
    repo.set_ref(tag_name("best"), None, first.commit, "tag")
    with pytest.raises(Conflict):
        repo.set_ref(tag_name("best"), None, second.commit, "tag")
    repo.set_ref(tag_name("best"), first.commit, second.commit, "tag")
    assert repo.delete_ref(tag_name("best")) == second.commit
    with pytest.raises(NotFound):
        repo.delete_ref(tag_name("best"))


def test_a_branch_from_an_old_commit_shares_what_it_can(repo: Repository) -> None:
    first, second = save(repo, STATE), save(repo, changed(1))
    repo.set_ref(branch_name("exp/lr3"), None, first.commit, "branch")
    third = save(repo, STATE, branch="exp/lr3")
    assert third.counts.new_raw_bytes == 0
    assert repo.commit(third.commit).parents == (first.commit,)
    assert repo.resolve("main") == second.commit


# --- the branch moved meanwhile -------------------------------------------------------------------------------------


def lose(repo: Repository, branch: str, parent: CommitId | None) -> Conflict:
    with pytest.raises(Conflict) as caught:
        repo.save(SaveRequest([item(changed(7))], branch=branch, parent=parent))
    return caught.value


def test_who_loses_the_swap_keeps_the_commit(repo: Repository) -> None:
    first = save(repo, STATE)
    second = save(repo, changed(1))
    error = lose(repo, "main", first.commit)
    kept = error.details["kept"]
    commit = repo.resolve(kept)
    assert kept == f"main+{commit.hex()[:8]}"
    assert kept in str(error)
    assert repo.commit(commit).parents == (first.commit,)
    require_whole(repo, {first.commit: STATE, second.commit: changed(1), commit: changed(7)})


def test_a_branch_that_appeared_or_went_away_is_a_conflict(repo: Repository) -> None:
    first = save(repo, STATE)
    appeared = lose(repo, "main", None)
    repo.delete_ref(branch_name("main"))
    gone = lose(repo, "main", first.commit)
    for error in (appeared, gone):
        assert read(repo, repo.resolve(error.details["kept"])) == changed(7)


@pytest.mark.parametrize("length", [1, 39, 40, 150])
def test_a_commit_of_a_long_named_branch_is_kept(repo: Repository, length: int) -> None:
    branch = "🌙" * min(length, 45) + "/" + "x" * (length > 40)
    branch = branch.rstrip("/")
    save(repo, STATE, branch=branch)
    error = lose(repo, branch, None)
    assert read(repo, repo.resolve(error.details["kept"])) == changed(7)


def test_a_commit_is_kept_also_where_its_branch_can_not_be(repo: Repository) -> None:
    """A branch ``exp`` leaves no room for ``exp/lr3``, and none for ``exp/lr3+…`` either."""
    save(repo, STATE, branch="exp")
    error = lose(repo, "exp/lr3", None)
    kept = error.details["kept"]
    assert kept.startswith("exp-lr3+")
    assert read(repo, repo.resolve(kept)) == changed(7)


def test_a_commit_is_kept_where_its_branch_is_damaged(repo: Repository) -> None:
    first = save(repo, STATE)
    (repo.layout.root / "refs" / "branches" / "main").write_bytes(bytes(65))
    with pytest.raises(Corrupt, match="does not hold a commit's id") as caught:
        repo.save(SaveRequest([item(changed(7))], branch="main", parent=first.commit))
    kept = caught.value.details["kept"]
    assert kept in str(caught.value)
    assert repo.resolve(kept).hex() == caught.value.details["commit"]
    assert read(repo, repo.resolve(kept)) == changed(7)


# --- history --------------------------------------------------------------------------------------------------------


def test_log_is_newest_first_over_branches(repo: Repository) -> None:
    first, second = save(repo, STATE), save(repo, changed(1))
    repo.set_ref(branch_name("lr3"), None, first.commit, "branch")
    third = save(repo, changed(2), branch="lr3")
    rows = list(repo.log(repo.refs.list().values()))
    assert [row.id for row in rows] == [third.commit, second.commit, first.commit]
    assert [row.branch for row in rows] == ["lr3", "main", "main"]


def test_d13_a_paused_log_blocks_no_writer(repo: Repository) -> None:
    commits = [save(repo, changed(number)).commit for number in range(4)]
    log = repo.log([commits[-1]])
    seen = [row.id for row in islice(log, 2)]
    newer = save(repo, changed(9)).commit
    rebuild_index(repo.layout, repo.files, repo.packs)
    repo.set_ref(tag_name("t"), None, newer, "tag")
    assert seen + [row.id for row in log] == commits[::-1]
