"""What dead writers left goes when a store is opened; what living ones make does not."""

import logging
import time
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import FileLock, Files
from store.layout import Layout
from store.repository import Repository
from store.saving.leases import acquire_lease, lease_paths, living_leases
from store.saving.leftovers import remove_leftovers
from tests import packing
from tests.arrays import noise, require_whole, save

DEAD, GONE = "d" * 32, "a" * 32
DAY = 24 * 3600 * 1_000_000_000


@pytest.fixture
def layout(tmp_path: Path) -> Layout:
    """A store of a writer that died, of one whose lease is gone, and of files that are none of theirs."""
    layout = Layout(tmp_path)
    layout.packs.mkdir()
    layout.writers.mkdir()
    (layout.writers / DEAD).write_bytes(b"pack " + b"70" * 32 + b"\npa")
    for name in (f"tmp-{DEAD}-1", f"tmp-{DEAD}-2", f"tmp-{GONE}-1", "tmp-mine", "notes"):
        (layout.packs / name).touch()
    return layout


def names(directory: Path) -> set[str]:
    return {path.name for path in directory.iterdir()}


def test_b7_what_dead_writers_left_is_removed(layout: Layout) -> None:
    pack = packing.write(layout.packs, [packing.chunk(b"published and never indexed")]).id
    remove_leftovers(layout, Files())
    assert lease_paths(layout.root, Files()) == []
    assert names(layout.packs) == {f"{pack.hex()}.pack", "tmp-mine", "notes"}
    remove_leftovers(layout, Files())


def test_b7_what_a_living_writer_makes_stays(layout: Layout) -> None:
    files = Files()
    with acquire_lease(layout.root, files) as lease:
        made = layout.packs / f"tmp-{lease.name}-1"
        made.touch()
        remove_leftovers(layout, files)
        assert [living.name for living in living_leases(layout.root, files)] == [lease.name]
        assert made.exists()


class Counting(Files):
    """Counts how often the names of all packs are read."""

    def __init__(self) -> None:
        super().__init__()
        self.listing_count = 0

    def list_directory(self, path: Path) -> list[str]:
        self.listing_count += path.name == "packs"
        return super().list_directory(path)


def test_the_names_of_all_packs_are_read_once_a_day_and_after_a_writer_died(layout: Layout) -> None:
    files = Counting()
    for _ in range(3):
        remove_leftovers(layout, files)
    assert files.listing_count == 1
    (layout.writers / DEAD).touch()
    (layout.packs / f"tmp-{DEAD}-3").touch()
    for _ in range(3):
        remove_leftovers(layout, files)
    assert files.listing_count == 2
    assert names(layout.packs) == {"tmp-mine", "notes"}


@pytest.mark.parametrize("swept", [b"", b"not a time", -DAY, DAY // 2])
def test_b7_what_has_no_lease_is_found_later(layout: Layout, swept: bytes | int) -> None:
    if isinstance(swept, int):
        swept = b"%d" % (time.time_ns() + swept)
    remove_leftovers(layout, Files())
    (layout.packs / f"tmp-{GONE}-1").touch()
    remove_leftovers(layout, Files())
    assert f"tmp-{GONE}-1" in names(layout.packs)
    (layout.root / "swept").write_bytes(swept)
    remove_leftovers(layout, Files())
    assert names(layout.packs) == {"tmp-mine", "notes"}


def test_who_looks_thoroughly_finds_it_at_once(layout: Layout) -> None:
    remove_leftovers(layout, Files())
    (layout.packs / f"tmp-{GONE}-1").touch()
    remove_leftovers(layout, Files(), is_thorough=True)
    assert names(layout.packs) == {"tmp-mine", "notes"}


def test_opening_a_store_reads_no_names_of_packs(tmp_path: Path) -> None:
    with Repository.init(tmp_path) as repo:
        save(repo, {"w": noise("w", 100)})
    for read_only in (True, False):
        files = Counting()
        Repository.open(tmp_path, files=files, read_only=read_only).close()
        assert files.listing_count == 0


class Hurried(Files):
    """Somebody else has begun to clean up when we take a lease's lock."""

    def lock_exclusive(self, path: Path, *, blocking: bool = True, create: bool = True) -> FileLock:
        lock = super().lock_exclusive(path, blocking=blocking, create=create)
        (path.parents[1] / f"packs/tmp-{path.name}-1").unlink()
        return lock


def test_two_may_clean_up_at_once(layout: Layout) -> None:
    remove_leftovers(layout, Hurried())
    assert names(layout.packs) == {"tmp-mine", "notes"}
    assert lease_paths(layout.root, Files()) == []


def test_what_somebody_holds_locked_stays(layout: Layout) -> None:
    with Files().lock_exclusive(layout.writers / DEAD):
        remove_leftovers(layout, Files())
    assert names(layout.packs) >= {f"tmp-{DEAD}-1", f"tmp-{DEAD}-2"}


class Refusing(Disk):
    """Another user's temporary."""

    def unlink(self, path: Path) -> None:
        if path.name == f"tmp-{GONE}-1":
            raise PermissionError(13, "not yours", str(path))
        super().unlink(path)


def test_what_cannot_be_removed_stays_and_is_logged(layout: Layout, caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO, "store.saving.leftovers")
    remove_leftovers(layout, Files(Refusing()))
    assert names(layout.packs) == {f"tmp-{GONE}-1", "tmp-mine", "notes"}
    assert "not yours" in caplog.text
    remove_leftovers(Layout(layout.root / "nowhere"), Files())
    assert "nowhere" in caplog.text


@pytest.mark.parametrize("read_only", [True, False])
def test_b7_opening_a_store_to_write_cleans_up(tmp_path: Path, read_only: bool) -> None:
    state = {"w": noise("w", 100)}
    with Repository.init(tmp_path) as repo:
        commits = {save(repo, state).commit: state}
        (repo.layout.writers / DEAD).touch()
        (repo.layout.packs / f"tmp-{DEAD}-1").touch()
    with Repository.open(tmp_path, read_only=read_only) as repo:
        require_whole(repo, commits)
        assert (repo.layout.writers / DEAD).exists() == (repo.layout.packs / f"tmp-{DEAD}-1").exists() == read_only
