"""Of an object that is stored in several ways one copy stays that can be read, and a dry run knows which."""

from collections.abc import Callable, Iterator
from itertools import count
from pathlib import Path

import pytest

from store.format.dtypes import Element
from store.format.pack import Sealed
from store.gc import Collected, collect
from store.history.stats import collect as stats_of
from store.ids import ChunkId, CommitId, PackId, chunk_id
from store.index import Place
from store.repack import repack
from store.repository import Repository
from store.upkeep.rewriting import Rewriter
from tests.arrays import Array, State, chunk_of, damage, depths, drifted, noise, read, require_whole, save
from tests.collecting import forget_branch, line
from tests.copies import against, copied, index_pack, lying
from tests.packing import chunk, id_of, join

IndexBad = Callable[[Repository, bytes], None]


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


@pytest.fixture
def made(repo: Repository) -> dict[CommitId, State]:
    """Commits of which the last takes two other chunks to decode."""
    return line(repo, "main", 4)


@pytest.fixture
def deep(repo: Repository, made: dict[CommitId, State]) -> ChunkId:
    """The chunk at the end of that chain."""
    tip = list(made)[-1]
    each = chunk_of(repo, tip, "drifts")
    assert [place.depth for place in repo.index.places(each)] == [2]
    return each


@pytest.fixture
def raw(made: dict[CommitId, State]) -> bytes:
    """What it decodes to."""
    return list(made.values())[-1]["drifts"].data


def garbage(seed: object = 0) -> Sealed:
    """What nothing needs, and so much of it that its pack is sparse."""
    return chunk(noise(("garbage", seed), 9000).data)


def index_base(repo: Repository, made: dict[CommitId, State], seed: object) -> bytes:
    """A chunk much like that one which no commit is made of, in a pack of its own."""
    base = drifted(list(made.values())[-1]["drifts"], seed)
    index_pack(repo, [chunk(base.data, Element.FP32)])
    return base.data


# --- copies that cannot be read --------------------------------------------------------------------------------------


def index_against_a_damaged_base(repo: Repository, made: dict[CommitId, State], raw: bytes, packs: int) -> None:
    base = index_base(repo, made, "base")
    for number in range(packs):
        index_pack(repo, [against(base, raw), garbage(number)])
    damage(repo, chunk_id(base))


def index_lying(repo: Repository, raw: bytes) -> None:
    index_pack(repo, [lying(raw), garbage()])


def index_rotten(repo: Repository, raw: bytes) -> None:
    index_pack(repo, [chunk(raw), garbage()])
    damage(repo, chunk_id(raw))


def require_spared(repo: Repository, made: dict[CommitId, State], done: Collected, before: list[Place]) -> None:
    """Sparse packs went, and of the chunk nothing is left but the copy that was intact; nothing was written."""
    assert (done.left, done.made_count) == ({}, 0)
    assert repo.index.places(chunk_of(repo, list(made)[-1], "drifts")) == before
    again = repack(repo)
    assert (again.left, again.damaged) == ({}, {})
    assert all(read(repo, commit) == state for commit, state in made.items())


def test_a_delta_whose_base_is_damaged_gives_way_to_a_deeper_one_that_stays(
    repo: Repository, made: dict[CommitId, State], deep: ChunkId, raw: bytes
) -> None:
    before = repo.index.places(deep)
    index_against_a_damaged_base(repo, made, raw, 2)
    assert [place.depth for place in repo.index.places(deep)] == [1, 1, 2]
    done = collect(repo)
    assert done.compacted_count == 2
    require_spared(repo, made, done, before)


@pytest.mark.parametrize("index_bad", [index_lying, index_rotten])
def test_a_bad_copy_in_full_gives_way_to_a_delta_that_stays(
    repo: Repository, made: dict[CommitId, State], deep: ChunkId, raw: bytes, index_bad: IndexBad
) -> None:
    before = repo.index.places(deep)
    index_bad(repo, raw)
    assert [place.depth for place in repo.index.places(deep)] == [0, 2]
    done = collect(repo)
    assert done.compacted_count == 1
    require_spared(repo, made, done, before)
    require_whole(repo, made)


@pytest.mark.parametrize("index_bad", [index_lying, index_rotten])
def test_the_intact_one_is_moved_where_all_copies_go(
    repo: Repository, made: dict[CommitId, State], deep: ChunkId, raw: bytes, index_bad: IndexBad
) -> None:
    (good,) = repo.index.places(deep)
    index_bad(repo, raw)
    done = Rewriter(repo).replace(repo.packs.pack_ids())
    assert (done.damaged, done.left) == ({}, {})
    assert [(place.pack, place.base) for place in repo.index.places(deep)] == [(done.made[0], good.base)]
    require_whole(repo, made)


# --- what a dry run tells --------------------------------------------------------------------------------------------


def require_told(repo: Repository, made: dict[CommitId, State]) -> Collected:
    """A dry run, and what stats promise, are what gc then does."""
    before = [depths(repo, commit) for commit in made]
    promised_bytes = stats_of(repo).gc_bytes
    told = collect(repo, dry_run=True)
    done = collect(repo)
    told.is_dry_run = False
    assert told == done
    assert promised_bytes == done.freed_bytes > 0
    assert [depths(repo, commit) for commit in made] == before
    require_whole(repo, made)
    return done


@pytest.fixture
def one_by_one(monkeypatch: pytest.MonkeyPatch) -> None:
    """Each sparse pack is a group of its own."""
    monkeypatch.setattr("store.gc.planning.REWRITE_PACK_BYTES", 1)


def index_later(repo: Repository, sealed: Sealed, pack: PackId) -> None:
    """A sparse pack that gc goes about after another."""
    choices = ([sealed, garbage(number)] for number in count())
    index_pack(repo, next(choice for choice in choices if id_of(join(choice)) > pack))


@pytest.mark.usefixtures("one_by_one")
def test_copies_in_packs_of_several_groups_are_moved_once(
    repo: Repository, made: dict[CommitId, State], raw: bytes
) -> None:
    for number in range(3):
        index_pack(repo, [chunk(raw), garbage(number)])
    done = require_told(repo, made)
    assert (done.compacted_count, done.made_count) == (3, 1)


def test_of_a_delta_and_a_copy_in_full_in_one_group_the_latter_is_moved(
    repo: Repository, made: dict[CommitId, State], deep: ChunkId, raw: bytes
) -> None:
    first = index_pack(repo, [copied(repo, deep), garbage()])
    index_later(repo, chunk(raw), first)
    done = require_told(repo, made)
    assert (done.compacted_count, done.made_count) == (2, 1)
    assert repo.index.places(deep)[0].base is None


@pytest.mark.usefixtures("one_by_one")
def test_of_copies_in_full_that_take_more_and_less_the_last_to_go_is_moved(repo: Repository) -> None:
    state = {"z": Array("float32", (1000,), bytes(4000))}
    save(repo, {**state, "gone": noise("gone", 9000)}, branch="gone")
    made = {save(repo, state).commit: state}
    forget_branch(repo, "gone")
    (small,) = repo.index.places(chunk_id(state["z"].data))
    index_later(repo, chunk(state["z"].data), small.pack)
    assert require_told(repo, made).compacted_count == 2
    (left,) = repo.index.places(chunk_id(state["z"].data))
    assert left.stored_bytes > small.stored_bytes


@pytest.mark.usefixtures("one_by_one")
def test_copies_as_deep_as_each_other_against_two_bases_in_two_groups(
    repo: Repository, made: dict[CommitId, State], deep: ChunkId, raw: bytes
) -> None:
    bases = [index_base(repo, made, seed) for seed in range(2)]
    first = index_pack(repo, [against(bases[0], raw), garbage()])
    index_later(repo, against(bases[1], raw), first)
    assert [place.depth for place in repo.index.places(deep)] == [1, 1, 2]
    assert require_told(repo, made).compacted_count == 2
