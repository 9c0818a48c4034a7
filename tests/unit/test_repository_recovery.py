"""A store whose index is lost, and one whose packs change under its readers."""

import errno
import shutil
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, NotFound
from store.fsck import fsck
from store.layout import Layout
from store.naming.refs import NotDurable
from store.opening.indexes import rebuild_index
from store.reading.packs import Unreadable
from store.repository import Repository
from store.saving.leases import living_leases
from tests import packing
from tests.arrays import Array, Hiccuping, chunk_of, drifted, noise, pack_file, read, require_whole, save

STATE = {"w": noise("w", 3000), "b": noise("b", 7)}


def changed(number: int) -> dict[str, Array]:
    return {**STATE, "w": drifted(STATE["w"], number)}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


# --- the index is lost ----------------------------------------------------------------------------------------------


def forget_index(layout: Layout) -> None:
    shutil.rmtree(layout.root / "index")


def garble_index(layout: Layout) -> None:
    for path in (layout.root / "index").rglob("data.mdb"):
        path.write_bytes(b"\xa5" * path.stat().st_size)


def cut_index(layout: Layout) -> None:
    for path in (layout.root / "index").rglob("data.mdb"):
        with path.open("r+b") as file:
            file.truncate(5000)


@pytest.mark.parametrize("harm", [forget_index, garble_index, cut_index])
@pytest.mark.parametrize("read_only", [False, True])
def test_c8_a_lost_index_is_rebuilt_from_packs(repo: Repository, harm: object, read_only: bool) -> None:
    commits = {save(repo, changed(number)).commit: changed(number) for number in range(3)}
    repo.close()
    harm(repo.layout)  # type: ignore[operator]
    with Repository.open(repo.layout.root, read_only=read_only) as reopened:
        assert {commit: read(reopened, commit) for commit in commits} == commits
        damaged = {finding.kind for finding in fsck(reopened, full=True).findings}
        assert damaged == ({"index"} if read_only and harm is not forget_index else set())
        assert [row.id for row in reopened.log(reopened.refs.list().values())] == list(commits)[::-1]
        if not read_only:
            again = save(reopened, changed(2))
            assert again.counts.new_raw_bytes == 0


def test_c8_an_old_index_is_brought_up_to_date(repo: Repository, tmp_path: Path) -> None:
    commits = {save(repo, changed(0)).commit: changed(0)}
    repo.close()
    shutil.copytree(repo.layout.root / "index", tmp_path / "backup")
    with Repository.open(repo.layout.root) as later:
        commits[save(later, changed(1)).commit] = changed(1)
    forget_index(repo.layout)
    shutil.copytree(tmp_path / "backup", repo.layout.root / "index")
    with Repository.open(repo.layout.root) as reopened:
        require_whole(reopened, commits)


class Listening(Disk):
    """Remembers which packs were opened."""

    def __init__(self) -> None:
        self.opened: list[str] = []

    def open(self, path: Path, flags: int) -> int:
        if path.suffix == ".pack":
            self.opened.append(path.stem)
        return super().open(path, flags)


def test_a_commit_that_is_mistyped_costs_no_reading_of_packs(repo: Repository) -> None:
    for number in range(3):
        save(repo, changed(number))
    disk = Listening()
    with Repository.open(repo.layout.root, files=Files(disk)) as other:
        for revision in ("00000000", "ff" * 32):
            with pytest.raises(NotFound):
                other.resolve(revision)
    assert disk.opened == []


def test_c8_a_commit_that_the_index_has_not_heard_of_is_found_in_the_packs_that_it_has_not_read(
    repo: Repository, tmp_path: Path
) -> None:
    first = save(repo, changed(0)).commit
    shutil.copytree(repo.layout.root, tmp_path / "behind")
    second, third = save(repo, changed(1)).commit, save(repo, changed(2)).commit
    disk = Listening()
    with Repository.open(tmp_path / "behind", files=Files(disk)) as behind:
        packs = [place.pack for each in (second, third) for place in repo.index.places(each)]
        for pack in packs:
            shutil.copy(pack_file(repo, pack), behind.layout.packs)
        assert behind.resolve(third.hex()) == third
        assert behind.lookup.commits_with_prefix(second.hex()[:8]) == [second]
        assert [row.id for row in behind.log([third])] == [third, second, first]
        assert [row.sequence for row in behind.log([third])] == [3, 2, 1]
        assert set(disk.opened) == {pack.hex() for pack in packs}


def test_c8_what_rotted_in_the_index_since_it_was_opened_is_reported(repo: Repository) -> None:
    save(repo, STATE)
    repo.close()
    with Repository.open(repo.layout.root, read_only=True) as reopened:
        for path in (repo.layout.root / "index").rglob("data.mdb"):
            data = bytearray(path.read_bytes())
            data[2 * 4096 + 10 :: 4096] = b"\x04" * len(data[2 * 4096 + 10 :: 4096])  # pages of another type
            path.write_bytes(data)
        findings = fsck(reopened).findings
    assert [finding.kind for finding in findings] == ["index"]
    assert "garbled" in findings[0].message


def test_c8_what_crashed_before_its_ref_is_no_commit_of_any_branch(repo: Repository) -> None:
    first = save(repo, STATE)

    class Dying(Files):
        def write_atomic(self, path: Path, data: object) -> None:
            raise OSError(5, "the disk died")

    with Repository.open(repo.layout.root, files=Dying()) as dying, pytest.raises(OSError, match="died"):
        save(dying, changed(1))
    rebuild_index(repo.layout, repo.files, repo.packs)
    assert repo.refs.list() == {"branches/main": first.commit}
    assert [row.id for row in repo.log([first.commit])] == [first.commit]
    assert fsck(repo, full=True).clean
    second = save(repo, changed(1))
    require_whole(repo, {first.commit: STATE, second.commit: changed(1)})


# --- a disk that stumbles -------------------------------------------------------------------------------------------


class Stumbling(Disk):
    """Some calls on some path fail, as often as told."""

    def __init__(self, call: str, name: str, failure_count: int = 1) -> None:
        self.failure_count = failure_count
        self._call = call
        self._name = name

    def sync_directory(self, path: Path) -> None:
        self._stumble("sync_directory", path)
        super().sync_directory(path)

    def unlink(self, path: Path) -> None:
        self._stumble("unlink", path)
        super().unlink(path)

    def _stumble(self, call: str, path: Path) -> None:
        if call == self._call and self._name in str(path) and self.failure_count:
            self.failure_count -= 1
            raise OSError(errno.EIO, "stumbled", str(path))


def test_c1_a_branch_that_moved_is_made_durable_at_the_second_try(repo: Repository) -> None:
    first = save(repo, STATE)
    disk = Stumbling("sync_directory", "refs/branches")
    with Repository.open(repo.layout.root, files=Files(disk)) as stumbling:
        second = save(stumbling, changed(1))
        assert disk.failure_count == 0
    require_whole(repo, {first.commit: STATE, second.commit: changed(1)})
    assert repo.resolve("main") == second.commit


def test_c1_a_branch_that_moved_but_not_durably_says_so(repo: Repository) -> None:
    save(repo, STATE)
    with Repository.open(repo.layout.root, files=Files(Stumbling("sync_directory", "refs/branches", 2))) as stumbling:
        with pytest.raises(NotDurable, match=r"branch 'main' holds .*stumbled") as caught:
            save(stumbling, changed(1))
        assert isinstance(caught.value, OSError)
        assert caught.value.details["commit"] == repo.resolve("main").hex()
        require_whole(repo, {repo.resolve("main"): changed(1), save(stumbling, changed(2)).commit: changed(2)})


def test_c1_a_lease_that_stays_fails_no_save(repo: Repository) -> None:
    with Repository.open(repo.layout.root, files=Files(Stumbling("unlink", "writers"))) as stumbling:
        saved = save(stumbling, STATE)
    require_whole(repo, {saved.commit: STATE})
    assert len(list(repo.layout.writers.iterdir())) == 1
    assert living_leases(repo.layout.root, repo.files) == []


@pytest.mark.parametrize(("error_number", "error"), [(errno.EIO, Unreadable), (errno.ENOMEM, OSError)])
def test_what_the_disk_once_did_not_give_is_read_the_next_time(
    repo: Repository, error_number: int, error: type[Exception]
) -> None:
    saved = save(repo, STATE)
    chunk = chunk_of(repo, saved.commit, "w")
    (place,) = repo.index.places(chunk)
    disk = Hiccuping(error_number, place.offset)
    with Repository.open(repo.layout.root, files=Files(disk)) as stumbling:
        with pytest.raises(error):
            read(stumbling, saved.commit)
        disk.offset = -1
        assert read(stumbling, saved.commit) == STATE
    assert repo.index.places(chunk) == [place]


def test_another_copy_is_read_where_the_disk_does_not_give_one(repo: Repository, tmp_path: Path) -> None:
    """Copies in two packs, the first of which cannot be read: the second is, and neither is marked."""
    saved = save(repo, STATE)
    with Repository.init(tmp_path / "elsewhere", thread_count=1) as other:  # "more" comes first: other offsets
        save(other, {"more": noise("more", 100), **STATE})
        (pack,) = other.packs.pack_ids()
        packing.place(repo.layout.packs, pack_file(other, pack).read_bytes(), pack)
    repo.index.write(lambda writer: writer.add_pack(pack, repo.packs.table(pack).entries))
    chunk = chunk_of(repo, saved.commit, "w")
    places = repo.index.places(chunk)
    assert len({place.offset for place in places}) == 2
    disk = Hiccuping(errno.EIO, places[0].offset)
    with Repository.open(repo.layout.root, files=Files(disk)) as stumbling:
        assert read(stumbling, saved.commit) == STATE
    assert repo.index.places(chunk) == places


# --- packs that change under a reader -------------------------------------------------------------------------------


def cut_pack(path: Path) -> None:
    with path.open("r+b") as file:
        file.truncate(200)


def fill_pack(path: Path) -> None:
    with path.open("r+b") as file:
        file.write(b"\xa5" * path.stat().st_size)


def remove_pack(path: Path) -> None:
    path.unlink()


@pytest.mark.parametrize("harm", [cut_pack, fill_pack, remove_pack])
def test_c6_a_pack_that_changes_under_a_reader_is_an_error_that_names_it(repo: Repository, harm: object) -> None:
    first, second = save(repo, STATE), save(repo, {"other": noise("other", 3000)})
    read(repo, first.commit)  # the pack is open now
    (pack,) = (place.pack for place in repo.index.places(chunk_of(repo, first.commit, "w")))
    harm(pack_file(repo, pack))  # type: ignore[operator]
    if harm is not remove_pack:  # who has it open can go on reading
        with pytest.raises(Corrupt, match=pack.hex()):
            read(repo, first.commit)
    with Repository.open(repo.layout.root) as other, pytest.raises((Corrupt, NotFound), match="moonclip fsck"):
        read(other, first.commit)
    for reader in (repo, Repository.open(repo.layout.root)):
        assert read(reader, second.commit)["other"] == noise("other", 3000)
    reader.close()
