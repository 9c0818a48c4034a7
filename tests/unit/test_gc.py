"""What nothing leads to goes; everything else stays, whatever happens meanwhile."""

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Busy, Corrupt, Incompatible, NotFound, Pruned, ReadOnly
from store.fsck import fsck
from store.gc import Collected, collect
from store.ids import CommitId
from store.index import IndexWriter
from store.index.transaction import OBJECTS, Transaction
from store.limits import SAVE_CHAIN_DEPTH
from store.naming.refnames import branch_name, tag_name
from store.opening.indexes import rebuild_index
from store.reading.packs import pack_path
from store.repository import Repository
from store.saving.leases import acquire_lease
from store.upkeep.gclock import collecting
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep
from tests.arrays import State, chunk_of, damage, depths, item, noise, read, require_whole, save
from tests.collecting import content_of, expire_reflogs, forget_branch, line, pack_bytes
from tests.packing import chunk, write

NOTHING = Collected(is_dry_run=False)


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def prune_to(repo: Repository, count: int) -> set[CommitId]:
    pruner = Pruner(repo)
    return {drop.row.id for drop in pruner.apply(pruner.by_policy(Keep(last=count)))}


def without(made: dict[CommitId, State], gone: set[CommitId]) -> dict[CommitId, State]:
    return {commit: state for commit, state in made.items() if commit not in gone}


def stored(repo: Repository) -> set[bytes]:
    return {entry.id for pack in repo.packs.pack_ids() for entry in repo.packs.table(pack).entries}


def indexed(repo: Repository) -> set[bytes]:
    return {place[0] for page in repo.index.places_by_id() for place in page}


# --- what stays -----------------------------------------------------------------------------------------------------


def test_d8_what_branches_tags_pins_and_reflogs_lead_to_stays(repo: Repository) -> None:
    made = line(repo, "main", 4)
    tagged = line(repo, "tagged", 2, "tagged")
    repo.set_ref(tag_name("best"), None, list(tagged)[-1], "tag")
    pinned = line(repo, "pinned", 2, "pinned")
    repo.pin(list(pinned)[-1])
    forget_branch(repo, "tagged")
    forget_branch(repo, "pinned")
    logged = line(repo, "logged", 2, "logged")
    repo.delete_ref(branch_name("logged"))
    before = stored(repo)
    assert collect(repo) == NOTHING
    assert stored(repo) == before
    require_whole(repo, {**made, **tagged, **pinned, **logged})


def test_what_nothing_leads_to_goes_and_its_history_stays(repo: Repository) -> None:
    made, gone = line(repo, "main", 2), line(repo, "exp", 5, "exp")
    rows = list(repo.index.commits_since(1))
    before_bytes = pack_bytes(repo)
    forget_branch(repo, "exp")
    done = collect(repo)
    assert (done.commit_count, done.left) == (5, {})
    assert done.freed_bytes == before_bytes - pack_bytes(repo) > 0
    assert stored(repo) == indexed(repo)
    assert not {chunk_of_state for commit in gone for chunk_of_state in _trees(repo, commit)} & stored(repo)
    assert list(repo.index.commits_since(1)) == rows
    assert [repo.commit(commit).step for commit in gone] == list(range(5))
    require_whole(repo, made)
    assert collect(repo) == NOTHING


def _trees(repo: Repository, commit: CommitId) -> set[bytes]:
    return set(repo.commit(commit).items.values())


def test_what_was_collected_cannot_be_named_again(repo: Repository) -> None:
    line(repo, "main", 1)
    gone = list(line(repo, "exp", 2, "exp"))[-1]
    forget_branch(repo, "exp")
    collect(repo)
    for attempt in (
        lambda: repo.set_ref(branch_name("again"), None, gone, "branch"),
        lambda: repo.pin(gone),
        lambda: repo.tree(repo.commit(gone), "model"),
    ):
        with pytest.raises(Pruned, match=r"nothing led to commit .* collected by gc; pick another"):
            attempt()
    assert fsck(repo, full=True).findings == []


def test_a_reflog_counts_until_it_expires(repo: Repository) -> None:
    made = line(repo, "exp", 3)
    repo.delete_ref(branch_name("exp"))
    assert collect(repo) == NOTHING
    require_whole(repo, made)
    expire_reflogs(repo)
    assert collect(repo).commit_count == 3


def test_pruned_commits_lose_what_they_hold_and_descendants_stay(repo: Repository) -> None:
    """Their chunks are what later ones are stored against."""
    made = line(repo, "main", 12)
    dropped = prune_to(repo, 2)
    assert len(dropped) == 10
    before_bytes = pack_bytes(repo)
    done = collect(repo)
    assert done.commit_count == 0
    assert done.freed_bytes == before_bytes - pack_bytes(repo) > before_bytes / 4
    left = without(made, dropped)
    require_whole(repo, left)
    assert max(depth for commit in left for depth in depths(repo, commit)) > 0
    assert indexed(repo) >= {chunk_of(repo, commit, name) for commit in left for name in ("drifts", "stays", "new")}
    with pytest.raises(Pruned):
        read(repo, next(iter(dropped)))


def test_items_that_were_pruned_go(repo: Repository) -> None:
    from store.saving.saver import SaveRequest

    states = [{"w": noise(step, 500)} for step in range(3)]
    commits = []
    for step, state in enumerate(states):
        parent = repo.refs.read("branches/main")
        items = [item(state), item({"m": noise(("moment", step), 900)}, "optimizer")]
        commits.append(repo.save(SaveRequest(items, "main", parent, step=step)).commit)
    pruner = Pruner(repo)
    pruner.apply(pruner.items(["optimizer"], 1))
    done = collect(repo)
    assert done.object_count == 4  # a chunk and a tree of each of two
    require_whole(repo, dict(zip(commits, states, strict=True)))
    assert repo.tree(repo.commit(commits[2]), "optimizer")["m"]
    with pytest.raises(Pruned):
        repo.tree(repo.commit(commits[1]), "optimizer")


def test_a_chunk_that_two_lines_share_stays(repo: Repository) -> None:
    kept = save(repo, {"a": noise("shared", 900), "b": noise("kept", 900)}).commit
    save(repo, {"a": noise("shared", 900), "c": noise("gone", 900)}, branch="exp")
    forget_branch(repo, "exp")
    assert collect(repo).object_count == 2
    require_whole(repo, {kept: {"a": noise("shared", 900), "b": noise("kept", 900)}})


def test_what_a_living_writer_is_about_to_name_stays(repo: Repository) -> None:
    line(repo, "main", 1)
    made = line(repo, "exp", 2, "exp")
    forget_branch(repo, "exp")
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_commit(list(made)[-1])
        assert collect(repo) == NOTHING
        repo.set_ref(branch_name("again"), None, list(made)[-1], "branch")
    require_whole(repo, made)


# --- packs ----------------------------------------------------------------------------------------------------------


def test_packs_of_which_little_is_needed_are_written_anew(repo: Repository) -> None:
    shared = noise("shared", 300)
    kept = save(repo, {"a": shared, "b": noise("b", 9000)}, branch="exp").commit
    state = {"a": shared}
    tip = save(repo, state).commit
    (old,) = {place.pack for place in repo.index.places(chunk_of(repo, kept, "a"))}
    forget_branch(repo, "exp")
    done = collect(repo)
    assert (done.compacted_count, done.made_count) == (1, 1)
    assert not pack_path(repo.layout.packs, old).exists()
    require_whole(repo, {tip: state})


def test_what_is_read_in_full_stays_so_beside_a_delta_in_a_pack_that_stays(repo: Repository) -> None:
    made = line(repo, "main", 2)
    tip, state = list(made.items())[-1]
    write(repo.layout.packs, [chunk(state["drifts"].data), chunk(noise("garbage", 9000).data)])
    rebuild_index(repo.layout, repo.files, repo.packs)
    before = depths(repo, tip)
    assert len(repo.index.places(chunk_of(repo, tip, "drifts"))) == 2
    told = collect(repo, dry_run=True)
    done = collect(repo)
    assert done.compacted_count == 1
    assert (told.made_count, told.freed_bytes) == (done.made_count, done.freed_bytes) != (0, 0)
    assert depths(repo, tip) == before
    require_whole(repo, made)


def test_packs_of_which_half_is_needed_stay(repo: Repository) -> None:
    shared = noise("shared", 9000)
    save(repo, {"a": shared, "b": noise("b", 3000)}, branch="exp")
    state = {"a": shared}
    tip = save(repo, state).commit
    forget_branch(repo, "exp")
    done = collect(repo)
    assert (done.removed_count, done.compacted_count, done.freed_bytes) == (0, 0, 0)
    assert done.object_count == 2
    require_whole(repo, {tip: state})
    rebuild_index(repo.layout, repo.files, repo.packs)  # which brings back places of what still lies in packs
    require_whole(repo, {tip: state})
    assert collect(repo).object_count == 2


def test_what_dead_writers_left_goes_and_what_living_ones_make_stays(repo: Repository) -> None:
    made = line(repo, "main", 2)
    dead = write(repo.layout.packs, [chunk(b"dead" * 500)]).id
    living = write(repo.layout.packs, [chunk(b"living" * 500)]).id
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_pack(living)
        done = collect(repo)
        assert (done.removed_count, done.object_count, done.left) == (1, 0, {})
        assert not pack_path(repo.layout.packs, dead).exists()
        assert pack_path(repo.layout.packs, living).exists()
    assert collect(repo).removed_count == 1
    require_whole(repo, made)


def test_packs_that_a_living_writer_names_are_spared(repo: Repository) -> None:
    """It may be about to write one of just the same content, or to commit what it holds."""
    line(repo, "main", 1)
    save(repo, {"gone": noise("gone", 900)}, branch="exp")
    pack = repo.index.places(repo.resolve("exp"))[0].pack
    forget_branch(repo, "exp")
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_pack(pack)
        done = collect(repo)
        assert (done.object_count, done.compacted_count, done.left) == (0, 0, {})
        assert pack_path(repo.layout.packs, pack).exists()
    assert collect(repo).compacted_count == 1
    assert not pack_path(repo.layout.packs, pack).exists()


def test_a_pack_that_holds_what_the_index_has_just_lost_stays(repo: Repository) -> None:
    raw = noise("a", 300).data
    made = {save(repo, {"a": noise("a", 300)}).commit: {"a": noise("a", 300)}}
    stray = write(repo.layout.packs, [chunk(raw)]).id
    lost = chunk_of(repo, next(iter(made)), "a")
    assert chunk(raw).header.id == lost

    def lose(what: str, _done: int, _total: int) -> None:
        if what == "sweeping":
            lose_place(repo, lost)

    done = collect(repo, progress=lose)
    assert list(done.left) == [stray.hex()]
    assert "run `moonclip fsck`" in done.left[stray.hex()]
    collect(repo)
    require_whole(repo, made)


def test_a_pack_that_the_index_has_not_read_is_adopted_if_it_is_needed(repo: Repository) -> None:
    made = line(repo, "main", 6)
    aside = {path: path.read_bytes() for path in repo.layout.packs.iterdir()}
    needed = repo.index.places(chunk_of(repo, list(made)[-1], "new"))[0].pack
    path = pack_path(repo.layout.packs, needed)
    path.unlink()
    rebuild_index(repo.layout, repo.files, repo.packs)
    path.write_bytes(aside[path])
    assert needed not in repo.index.packs()
    assert collect(repo) == NOTHING
    assert needed in repo.index.packs()
    require_whole(repo, made)


def test_an_index_that_has_lost_a_place_costs_nothing(repo: Repository, caplog: pytest.LogCaptureFixture) -> None:
    """All else in its pack goes, and the pack would."""
    state = {"a": noise("a", 100), "b": noise("b", 9000)}
    save(repo, state, branch="exp")
    tip = save(repo, {"a": noise("a", 100)}).commit
    lose_place(repo, chunk_of(repo, tip, "a"))
    forget_branch(repo, "exp")
    collect(repo)
    assert "does not know where everything is" in caplog.text
    require_whole(repo, {tip: {"a": noise("a", 100)}})


def lose_place(repo: Repository, object_id: bytes) -> None:
    def lose(writer: IndexWriter) -> None:
        transaction: Transaction = writer._transaction
        for key, _ in transaction.prefixed(OBJECTS, object_id):
            transaction.delete(OBJECTS, key)

    repo.index.write(lose)


def test_an_index_that_names_a_pack_which_is_gone_is_rebuilt(
    repo: Repository, caplog: pytest.LogCaptureFixture
) -> None:
    made = line(repo, "main", 3)
    extra = write(repo.layout.packs, [chunk(b"extra" * 500)]).id
    rebuild_index(repo.layout, repo.files, repo.packs)
    pack_path(repo.layout.packs, extra).unlink()
    assert extra in repo.index.packs()
    collect(repo)
    assert extra not in repo.index.packs()
    require_whole(repo, made)


def test_a_damaged_pack_is_left_alone(repo: Repository) -> None:
    """Of what the index cannot read it knows nothing; somebody may mend it."""
    made = line(repo, "main", 2)
    stray = write(repo.layout.packs, [chunk(b"stray" * 500)]).id
    path = pack_path(repo.layout.packs, stray)
    path.write_bytes(path.read_bytes()[:-1])
    done = collect(repo)
    assert list(done.left) == [stray.hex()]
    assert path.exists()
    assert all(read(repo, commit) == state for commit, state in made.items())


def test_the_only_copy_of_something_needed_is_not_removed_for_being_damaged(repo: Repository) -> None:
    save(repo, {"a": noise("a", 100), "b": noise("b", 9000)}, branch="exp")
    tip = save(repo, {"a": noise("a", 100)}).commit
    pack = damage(repo, chunk_of(repo, tip, "a"))
    with pytest.raises(Corrupt):
        read(repo, tip)
    forget_branch(repo, "exp")
    done = collect(repo)
    assert list(done.left) == [pack.hex()]
    assert "damaged" in done.left[pack.hex()]
    assert pack_path(repo.layout.packs, pack).exists()


def test_chains_that_are_kept_for_others_stay_within_their_depth(repo: Repository) -> None:
    made = line(repo, "main", 3 * SAVE_CHAIN_DEPTH)
    left = without(made, prune_to(repo, 3))
    collect(repo)
    assert max(depth for commit in left for depth in depths(repo, commit)) <= SAVE_CHAIN_DEPTH
    require_whole(repo, left)


# --- refusals -------------------------------------------------------------------------------------------------------


def test_a_damaged_tree_stops_it_until_that_commit_is_dropped(repo: Repository) -> None:
    made = line(repo, "main", 3)
    first = next(iter(made))
    damage(repo, repo.commit(first).items["model"])
    line(repo, "exp", 2, "exp")
    forget_branch(repo, "exp")
    before = stored(repo)
    with pytest.raises(Corrupt, match=r"nothing is removed: tree .* is damaged.*moonclip fsck"):
        collect(repo)
    assert stored(repo) == before
    dropped = prune_to(repo, 1)
    assert first in dropped
    assert collect(repo).commit_count == 2
    assert all(read(repo, commit) == state for commit, state in without(made, dropped).items())


@pytest.mark.parametrize("file", ["pins", "refs/branches/main", "logs/refs/branches/main"])
def test_a_damaged_root_stops_it(repo: Repository, file: str) -> None:
    line(repo, "main", 1)
    (repo.layout.root / file).write_bytes(b"rubbish\nrubbish\n")
    before = stored(repo)
    with pytest.raises(Corrupt):
        collect(repo)
    assert stored(repo) == before


def test_one_at_a_time(repo: Repository) -> None:
    with collecting(repo), pytest.raises(Busy, match="gc, repack or a check is at work"):
        collect(repo)
    assert collect(repo) == NOTHING


def test_a_store_that_can_only_be_read_is_refused_and_yet_told_of(repo: Repository) -> None:
    line(repo, "exp", 2)
    forget_branch(repo, "exp")
    with Repository.open(repo.layout.root, read_only=True) as reader:
        with pytest.raises(ReadOnly):
            collect(reader)
        assert collect(reader, dry_run=True).commit_count == 2


@pytest.mark.parametrize("dry_run", [False, True])
def test_features_that_are_unknown_are_refused_by_name(repo: Repository, dry_run: bool) -> None:
    line(repo, "exp", 1)
    forget_branch(repo, "exp")
    features = json.loads(repo.layout.format.read_bytes())
    features["gc"].append("moons")
    repo.layout.format.write_text(json.dumps(features))
    before = content_of(repo.layout.root)
    with pytest.raises(Incompatible, match="'moons' to gc"):
        collect(repo, dry_run=dry_run)
    assert content_of(repo.layout.root) == before


# --- dry runs -------------------------------------------------------------------------------------------------------


def messy(repo: Repository) -> dict[CommitId, State]:
    """A store with all there is to remove."""
    made = line(repo, "main", 14)
    line(repo, "exp", 5, "exp")
    forget_branch(repo, "exp")
    write(repo.layout.packs, [chunk(b"dead" * 500)])
    return without(made, prune_to(repo, 3))


def test_d8_a_dry_run_changes_nothing_and_tells_the_truth(repo: Repository) -> None:
    left = messy(repo)
    before = content_of(repo.layout.root)
    told = collect(repo, dry_run=True)
    assert content_of(repo.layout.root) == before
    before_bytes = pack_bytes(repo)
    done = collect(repo)
    told.is_dry_run = False
    assert told == done
    assert min(done.object_count, done.removed_count, done.compacted_count, done.commit_count) > 0
    assert done.freed_bytes == before_bytes - pack_bytes(repo)
    require_whole(repo, left)


def test_progress_is_told_to_the_end(repo: Repository) -> None:
    messy(repo)
    told: dict[str, list[tuple[int, int]]] = {}
    collect(repo, progress=lambda what, done, total: told.setdefault(what, []).append((done, total)))
    assert list(told) == ["marking", "sweeping", "removing packs", "compacting packs"]
    for seen in told.values():
        assert seen[-1][0] == seen[-1][1]
        assert seen == sorted(seen)


def test_ballast_that_is_missing_is_made_anew(repo: Repository) -> None:
    (repo.layout.root / "ballast").unlink()
    collect(repo)
    assert (repo.layout.root / "ballast").stat().st_size > 0


def test_an_empty_store(repo: Repository) -> None:
    assert collect(repo) == NOTHING
    with pytest.raises(NotFound):
        repo.resolve("main")
