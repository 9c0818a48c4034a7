"""Parts that ranks store apart from the snapshot that is made of them."""

from collections.abc import Iterator
from pathlib import Path

import pytest

from store.errors import Incompatible, SnapshotGone
from store.fsck import fsck
from store.gc import collect
from store.repository import Repository
from store.saving.apart import NOTHING_TOLD, Apart, begin_apart, told_on
from store.saving.leftovers import remove_leftovers
from store.saving.rankbases import RankMemory
from store.saving.ranks import RankSaved, save_rank
from store.saving.snapshots import Snapshot
from tests.arrays import State, noise, require_whole, save
from tools.crash.ranks import request, shards

STATE: State = {"w": noise("w", 512, 600), "tiny": noise("t", 7)}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        yield repo


def store_apart(repo: Repository, rank: int, last: RankMemory | None = None) -> tuple[Apart, RankSaved]:
    """One of two ranks' part; without memory it looks for what it is told of its branch."""
    root = repo.layout.root
    apart = begin_apart(root, repo.files, NOTHING_TOLD if last else told_on(root, repo.files, "main"))
    return apart, save_rank(root, apart.id, 0, shards(STATE, rank, 2), last=last)


def take_over(snapshot: Snapshot, aparts: list[Apart]) -> None:
    for rank, apart in enumerate(aparts):
        snapshot.take_over(rank, apart.id)


def test_parts_that_are_taken_over_are_published_and_their_ranks_learn_it(repo: Repository) -> None:
    aparts, saved = map(list, zip(*(store_apart(repo, rank) for rank in range(2)), strict=True))
    with repo.create_snapshot(request(repo), 3) as snapshot:
        take_over(snapshot, aparts)
        snapshot.take_over(2, None)
        assert not any(apart.is_published for apart in aparts)
        snapshot.describe({"note": "known late"})
        commit = snapshot.finalize()
    assert repo.commit(commit).metadata == {"note": "known late"}
    require_whole(repo, {commit: STATE})
    assert all(apart.is_published for apart in aparts)
    for apart in aparts:
        apart.release()
        apart.release()
    assert all(apart.is_published for apart in aparts)
    again, counts = zip(
        *((apart, each.counts) for apart, each in (store_apart(repo, rank, saved[rank].memory) for rank in range(2))),
        strict=True,
    )
    assert [each.new_raw_bytes for each in counts] == [0, 0]
    with repo.create_snapshot(request(repo), 2, ranks_remember=True) as snapshot:
        take_over(snapshot, list(again))
        require_whole(repo, {snapshot.finalize(): STATE})
    for apart in again:
        apart.release()
    assert list(repo.layout.parts.iterdir()) == list(repo.layout.writers.iterdir()) == []


def test_a_part_that_its_rank_let_go_of_is_not_published(repo: Repository) -> None:
    apart, _ = store_apart(repo, 0)
    apart.release()
    assert not apart.is_published
    with repo.create_snapshot(request(repo), 1) as snapshot, pytest.raises(SnapshotGone):
        snapshot.take_over(0, apart.id)
    collect(repo)
    assert list(repo.layout.parts.iterdir()) == list(repo.packs.pack_ids()) == []


def test_d2_what_others_do_leaves_parts_of_living_ranks_alone(repo: Repository) -> None:
    aparts = [store_apart(repo, rank)[0] for rank in range(2)]
    with Repository.open(repo.layout.root, thread_count=1) as other:
        collect(other)
        remove_leftovers(other.layout, other.files, is_thorough=True)
        assert fsck(other, full=True).findings == []
    with repo.create_snapshot(request(repo), 2) as snapshot:
        take_over(snapshot, aparts)
        require_whole(repo, {snapshot.finalize(): STATE})
    for apart in aparts:
        apart.release()


def test_a_rank_without_memory_is_told_what_its_branch_holds(repo: Repository) -> None:
    save(repo, STATE)
    root = repo.layout.root
    assert told_on(root, repo.files, "main") == NOTHING_TOLD
    with repo.create_snapshot(request(repo), 2):
        assert told_on(root, repo.files, "other") == NOTHING_TOLD
        aparts = []
        for rank in range(2):
            apart, saved = store_apart(repo, rank)
            assert saved.counts.known_count == saved.counts.chunk_count
            aparts.append(apart)
    assert told_on(root, repo.files, "main") == NOTHING_TOLD
    for apart in aparts:
        apart.release()


def test_what_a_commit_says_of_itself_has_to_be_plain(repo: Repository) -> None:
    with repo.create_snapshot(request(repo), 1) as snapshot, pytest.raises(Incompatible):
        snapshot.describe({"x": object()})  # type: ignore[dict-item]
