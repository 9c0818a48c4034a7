"""gc on a file system that is full to the last byte, which is when people call for it."""

import os
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.gc import collect
from store.ids import CommitId
from store.limits import BALLAST_BYTES, MIB
from store.repository import Repository
from store.upkeep.prune import Pruner
from store.upkeep.retention import Keep
from tests.arrays import State, noise, read, require_whole, save
from tests.collecting import forget_branch, pack_bytes
from tests.mounting import small_file_system


@pytest.fixture
def full(tmp_path: Path) -> Iterator[Path]:
    with small_file_system(tmp_path / "mounted", 32 * MIB) as mounted:
        yield mounted


def fill(directory: Path) -> int:
    """Take every byte there is."""
    with (directory / "filler").open("wb", buffering=0) as filler:
        for size_bytes in (1 << 16, 4096, 1):
            try:
                while True:
                    filler.write(bytes(size_bytes))
            except OSError:
                continue
        return filler.tell()


def free_bytes(directory: Path) -> int:
    status = os.statvfs(directory)
    return status.f_bavail * status.f_frsize


def commits(repo: Repository, count: int) -> dict[CommitId, State]:
    """Commits of half a MiB, with a tensor in common."""
    made = {}
    for step in range(count):
        state = {"same": noise("same", 1000), "new": noise(step, 130_000)}
        made[save(repo, state, step=step).commit] = state
    return made


def drop_all_but_the_last(repo: Repository) -> None:
    pruner = Pruner(repo)
    pruner.apply(pruner.by_policy(Keep(last=1)))


def test_c7_gc_frees_space_without_needing_any_first(full: Path) -> None:
    with Repository.init(full / "store", thread_count=1) as repo:
        made = commits(repo, 10)
        drop_all_but_the_last(repo)
        before_bytes = pack_bytes(repo)
    fill(full)
    assert free_bytes(full) == 0
    with Repository.open(full / "store", thread_count=1) as repo:
        tip = repo.resolve("main")
        assert read(repo, tip) == made[tip]
        done = collect(repo)
        assert done.freed_bytes == before_bytes - pack_bytes(repo) > 4 * MIB
        assert free_bytes(full) > 4 * MIB
        assert (full / "store" / "ballast").stat().st_size == BALLAST_BYTES
        save(repo, {"next": noise("next", 1000)})
        require_whole(repo, {tip: made[tip]})


def test_c7_pruning_and_gc_on_a_full_disk(full: Path) -> None:
    """What is to go has to be written down first, into what is held back for that; gc needs some of that, too."""
    with Repository.init(full / "store", thread_count=1) as repo:
        made = commits(repo, 10)
        fill(full)
        drop_all_but_the_last(repo)
        assert 0 < (full / "store" / "ballast").stat().st_size < BALLAST_BYTES
        fill(full)
        tip = repo.resolve("main")
        assert collect(repo).freed_bytes > 4 * MIB
        assert (full / "store" / "ballast").stat().st_size == BALLAST_BYTES
        require_whole(repo, {tip: made[tip]})


def test_c7_ballast_that_cannot_be_made_anew_is_told_of(full: Path, caplog: pytest.LogCaptureFixture) -> None:
    """So little was garbage that the index took all the space that came free."""
    with Repository.init(full / "store", thread_count=1) as repo:
        made = commits(repo, 3)
        save(repo, {"gone": noise("gone", 100)}, branch="main")
        (full / "store" / "ballast").unlink()
        fill(full)
        done = collect(repo)
        assert done.freed_bytes == 0
        assert "has too little ballast" in caplog.text
        assert all(read(repo, commit) == state for commit, state in made.items())


def test_c7_what_cannot_be_written_anew_for_lack_of_space_stays(full: Path) -> None:
    """Little of a pack is needed, and there is no room even for that."""
    with Repository.init(full / "store", thread_count=1) as repo:
        shared = {"shared": noise("shared", 1_500_000)}
        save(repo, {**shared, "garbage": noise("garbage", 2_000_000)}, branch="gone")
        tip = save(repo, shared).commit
        forget_branch(repo, "gone")
        fill(full)
        done = collect(repo)
        assert done.freed_bytes == 0
        assert list(done.left.values()) == ["the disk is too full to write anew what is needed of it"]
        (full / "filler").unlink()
        require_whole(repo, {tip: shared})
        assert collect(repo).freed_bytes > 7 * MIB
        require_whole(repo, {tip: shared})
