"""What others do while a snapshot is in the making: gc, repair, and whatever takes what ranks count on."""

import multiprocessing
import os
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.disk.files import Files
from store.errors import Corrupt, PartsOutdated, SnapshotGone
from store.fsck import fsck
from store.gc import collect
from store.ids import CommitId, PackId
from store.naming.refnames import branch_name
from store.opening.indexes import rebuild_index
from store.reading.packs import pack_path
from store.repack import repack
from store.repository import Repository
from store.saving.leases import Lease, acquire_lease, living_leases
from store.saving.leftovers import remove_leftovers
from store.saving.parts import Part
from store.saving.ranks import save_rank
from store.saving.snapshots import Snapshot
from tests.arrays import State, drifted, entries_of, flip, noise, read, require_whole, save
from tests.collecting import expire_reflogs, forget_branch
from tools.crash.ranks import request, save_ranks, save_together, shards

STATE: State = {"w": noise("w", 512, 600), "same": noise("same", 512, 600), "tiny": noise("t", 7)}
NEWER: State = {**STATE, "w": drifted(STATE["w"], 1)}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


@pytest.fixture
def snapshot(repo: Repository) -> Iterator[Snapshot]:
    """One all of whose parts are handed in."""
    save(repo, STATE)
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, NEWER)
        yield snapshot


def test_d2_packs_that_parts_name_are_named_by_the_lease(repo: Repository, snapshot: Snapshot) -> None:
    (lease,) = living_leases(repo.layout.root, repo.files)
    assert lease.name == snapshot.id
    assert lease.packs == set(repo.packs.pack_ids()) - set(repo.index.packs())
    assert len(lease.packs) == 2


@pytest.mark.parametrize("others", ["gc", "repack", "reindex", "reindex and gc", "leftovers", "fsck"])
def test_d2_whatever_others_do_parts_of_a_living_snapshot_stay(
    repo: Repository, snapshot: Snapshot, others: str
) -> None:
    with Repository.open(repo.layout.root, thread_count=1) as other:
        if "reindex" in others:
            rebuild_index(other.layout, other.files, other.packs)
        if "gc" in others:
            collect(other)
            collect(other)
        if others == "repack":
            repack(other, "size")
        if others == "leftovers":
            remove_leftovers(other.layout, other.files, is_thorough=True)
        if others == "fsck":
            report = fsck(other, full=True)
            assert report.findings == []
            assert not [note for note in report.notes if note.kind in {"parts", "pack", "lease"}]
    commit = snapshot.finalize()
    require_whole(repo, {commit: NEWER})


def test_d1_what_was_swept_has_to_be_stored_again_by_those_who_counted_on_it(repo: Repository) -> None:
    save(repo, STATE, branch="exp")
    with repo.create_snapshot(request(repo, "exp"), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, NEWER)
        forget_branch(repo, "exp")
        collect(repo)
        with pytest.raises(PartsOutdated, match="ranks 0, 1 counted on") as outdated:
            snapshot.finalize()
        assert outdated.value.ranks == [0, 1]
    assert set(repo.packs.pack_ids()) == set(repo.index.packs())


@pytest.mark.parametrize("lost", ["chunk", "base", "pack", "damaged pack"])
def test_d3_only_the_ranks_concerned_store_again_and_nothing_is_lost(repo: Repository, lost: str) -> None:
    save(repo, STATE)
    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, NEWER)
        entries = entries_of(repo, request(repo).parent or pytest.fail("no parent"))
        if "pack" in lost:
            packs = snapshot_packs(repo, snapshot, 1)
            for pack in packs:
                path = pack_path(repo.layout.packs, pack)
                path.unlink() if lost == "pack" else flip(path, -30)
        else:
            # Of the rows of rank 1: what did not change, or what the changed ones are stored against.
            victim = entries["same" if lost == "chunk" else "w"].chunks[-1]
            for place in repo.index.places(victim):
                repo.index.mark_bad(victim, place.pack)
        with pytest.raises(PartsOutdated) as outdated:
            snapshot.finalize()
        assert outdated.value.ranks == [1]
        again = save_rank(repo.layout.root, snapshot.id, 1, shards(NEWER, 1, 2), again=True)
        assert again.counts.known_count == again.counts.delta_count == 0
        commit = snapshot.finalize()
    assert read(repo, commit) == NEWER
    state = {**NEWER, "w": drifted(NEWER["w"], 2)}
    later, _ = save_together(repo, state, 2)
    assert read(repo, later) == state


def snapshot_packs(repo: Repository, snapshot: Snapshot, rank: int) -> list[PackId]:
    return list(Part.decode((repo.layout.parts / snapshot.id / str(rank)).read_bytes(), "part").packs)


def test_d3_trees_that_were_swept_are_made_again(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A tree that another branch has is found stored, and goes before the transaction."""
    save(repo, STATE, branch="exp")
    add_commit = Lease.add_commit
    swept: list[CommitId] = []

    def sweep(lease: Lease, commit: CommitId) -> None:
        add_commit(lease, commit)
        if not swept:
            swept.append(commit)
            forget_branch(repo, "exp")
            collect(repo)

    with repo.create_snapshot(request(repo), 2) as snapshot:
        save_ranks(repo.layout.root, snapshot, STATE)
        monkeypatch.setattr(Lease, "add_commit", sweep)
        commit = snapshot.finalize()
    assert swept != [commit]
    require_whole(repo, {commit: STATE})


def test_a_damaged_part_stops_gc_and_can_be_stored_again(repo: Repository, snapshot: Snapshot) -> None:
    part = repo.layout.parts / snapshot.id / "1"
    part.write_bytes(b"rubbish")
    with pytest.raises(Corrupt, match="part"):
        collect(repo)
    with pytest.raises(Corrupt, match="part of rank 1"):
        snapshot.finalize()
    save_rank(repo.layout.root, snapshot.id, 1, shards(NEWER, 1, 2))
    collect(repo)
    require_whole(repo, {snapshot.finalize(): NEWER})


def test_b7_parts_of_a_dead_creator_go_and_their_ranks_are_told(repo: Repository, snapshot: Snapshot) -> None:
    (repo.layout.writers / snapshot.id).unlink()  # as if it had died and been cleaned up after by halves
    report = fsck(repo, full=True)
    assert [note.kind for note in report.notes if "snapshots whose creator died" in note.message] == ["parts"]
    with pytest.raises(SnapshotGone):
        save_rank(repo.layout.root, snapshot.id, 0, shards(NEWER, 0, 2))
    remove_leftovers(repo.layout, repo.files, is_thorough=True)
    assert list(repo.layout.parts.iterdir()) == []
    strays = set(repo.packs.pack_ids()) - set(repo.index.packs())
    assert len(strays) == 2
    collect(repo)
    assert strays.isdisjoint(repo.packs.pack_ids())


def test_leftovers_of_a_rank_that_is_handing_in_stay_for_the_next_time(repo: Repository) -> None:
    dead = repo.layout.parts / ("d" * 32)
    (dead / "directory").mkdir(parents=True)  # cannot be removed, as if something new came in meanwhile
    (repo.layout.writers / dead.name).touch()
    remove_leftovers(repo.layout, repo.files)
    assert (repo.layout.writers / dead.name).exists()
    (dead / "directory").rmdir()
    remove_leftovers(repo.layout, repo.files)
    assert not dead.exists()
    assert not (repo.layout.writers / dead.name).exists()


def test_between_hand_in_and_the_end_of_the_lease_packs_are_named_twice(repo: Repository) -> None:
    """So that whoever reads leases at any moment finds them: the parts are read after all leases."""
    seen: list[int] = []

    class Watching(Files):
        def remove(self, path: Path) -> None:
            if path.parent.name == "writers":
                seen.append(sum(len(lease.packs) for lease in living_leases(repo.layout.root, Files())))
            super().remove(path)

    with repo.create_snapshot(request(repo), 1) as snapshot:
        save_rank(repo.layout.root, snapshot.id, 0, shards(STATE, 0, 1), files=Watching())
        assert seen == [2]
        (lease,) = living_leases(repo.layout.root, repo.files)
        assert len(lease.packs) == 1


def test_e2_a_forked_child_gives_nothing_up(repo: Repository, snapshot: Snapshot) -> None:
    child = multiprocessing.get_context("fork").Process(target=lambda: os._exit(_give_up(snapshot)))
    child.start()
    child.join()
    assert child.exitcode == 0
    require_whole(repo, {snapshot.finalize(): NEWER})


def _give_up(snapshot: Snapshot) -> int:
    snapshot.abandon()
    with pytest.raises(SnapshotGone):
        snapshot.finalize()
    return 0


def test_d2_a_merge_parent_is_kept_from_the_beginning(repo: Repository) -> None:
    base, other = save(repo, STATE).commit, save(repo, NEWER, branch="exp").commit
    with repo.create_snapshot(replace(request(repo), merged=(other,)), 2) as snapshot:
        forget_branch(repo, "exp")
        collect(repo)
        save_ranks(repo.layout.root, snapshot, NEWER)
        commit = snapshot.finalize()
    assert repo.commit(commit).parents == (base, other)
    expire_reflogs(repo)
    collect(repo)
    assert repo.refs.read(branch_name("main")) == commit
    require_whole(repo, {commit: NEWER, other: NEWER})


def test_a_writer_without_a_snapshot_names_its_own_packs_only(repo: Repository) -> None:
    with acquire_lease(repo.layout.root, repo.files):
        assert [lease.packs for lease in living_leases(repo.layout.root, repo.files)] == [frozenset()]
