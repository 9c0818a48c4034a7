"""Mending a store: what is kept, what is fetched, what is put aside, and what remains."""

import errno
import shutil
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from store.disk.files import Files
from store.errors import Corrupt
from store.format import pack
from store.format.objects import Kind
from store.fsck import Repair, Report, StoreSource, fsck, repair
from store.ids import ObjectId
from store.index import IndexWriter, LmdbIndex
from store.naming.refnames import branch_name, tag_name
from store.repository import Repository
from store.saving.leases import acquire_lease
from store.upkeep.quarantine import quarantined
from tests import packing
from tests.arrays import chunk_of, damage, flip, pack_file, read
from tests.mending import States, copied, fill, harm, require_no_less, require_sound
from tools.crash.faults import FaultyDisk, Killed


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


@pytest.fixture
def states(repo: Repository) -> States:
    return fill(repo)


@pytest.fixture
def copy(repo: Repository, states: States, tmp_path: Path) -> Iterator[Repository]:
    """Another copy, from before the damage."""
    assert states
    with copied(repo.layout.root, tmp_path / "copy") as copy:
        yield copy


def mend(repo: Repository, copy: Repository | None = None, *, full: bool = False, dry_run: bool = False) -> Repair:
    """Close a store, mend it, and see that doing so again changes nothing."""
    repo.close()
    source = None if copy is None else StoreSource(copy)
    done = repair(repo.layout.root, full=full, source=source, dry_run=dry_run)
    if not dry_run:
        assert done.after is not None
        again = repair(repo.layout.root, full=full, source=source)
        assert (again.steps, again.before.findings) == ([], done.after.findings)
    return done


def kinds(report: Report | None) -> set[str]:
    assert report is not None
    return {finding.kind for finding in report.findings}


# --- packs ----------------------------------------------------------------------------------------------------------


def test_a_sound_store_is_left_alone(repo: Repository, states: States) -> None:
    done = mend(repo)
    assert done.before.clean
    assert (done.after, done.steps) == (done.before, [])
    assert quarantined(repo.layout.root, Files()) == []
    require_sound(repo.layout.root, states)


@pytest.mark.parametrize("where", ["header", "footer", "table", "cut off"])
def test_a_pack_whose_structure_is_damaged_is_rewritten(repo: Repository, states: States, where: str) -> None:
    pack_id = repo.index.places(next(iter(states)))[0].pack
    path, table = pack_file(repo, pack_id), repo.packs.table(pack_id)
    sound = path.read_bytes()
    offset = {"header": 3, "footer": -3, "table": table.entries[-1].end + 7, "cut off": 0}[where]
    if where == "cut off":
        path.write_bytes(sound[: -pack.FOOTER_BYTES - 10])
    else:
        flip(path, offset)
    broken = path.read_bytes()
    done = mend(repo)
    assert kinds(done.before) == {"pack"}
    assert done.after is not None
    assert done.after.clean
    require_sound(repo.layout.root, states)
    (kept,) = quarantined(repo.layout.root, Files())
    assert (kept.name, kept.read_bytes()) == (path.name, broken)
    assert path.read_bytes() == sound  # the same objects in the same order have the same id
    assert [note.kind for note in done.after.notes] == ["quarantine"]


def test_what_is_whole_in_a_damaged_pack_is_kept_and_the_rest_is_told(repo: Repository, states: States) -> None:
    first, second, _ = states
    chunk = chunk_of(repo, second, "head/w")
    damage(repo, chunk)
    done = mend(repo)
    assert kinds(done.before) == {"object"}
    assert done.after is not None
    (finding,) = done.after.findings
    assert (finding.kind, finding.object_id) == ("missing", chunk)
    assert finding.affects[0] == f"{second.hex()[:8]} model::head/w"
    assert done.after.last_good == {"main": first}
    with Repository.open(repo.layout.root) as mended:
        assert read(mended, first) == states[first]
        with pytest.raises((Corrupt, KeyError)):
            read(mended, second)


@pytest.mark.parametrize("kind", Kind)
def test_what_is_lost_is_fetched_from_another_copy(
    repo: Repository, states: States, copy: Repository, kind: Kind
) -> None:
    _, second, third = states
    lost: dict[Kind, ObjectId] = {
        Kind.CHUNK: chunk_of(repo, second, "head/w"),
        Kind.TREE: repo.commit(second).items["model"],
        Kind.COMMIT: third,
    }
    damage(repo, lost[kind])
    done = mend(repo, copy)
    assert done.after is not None
    assert done.after.clean
    assert any("fetched" in step for step in done.steps)
    require_sound(repo.layout.root, states)


def test_a_base_that_is_lost_takes_its_deltas_along_and_comes_back(
    repo: Repository, states: States, copy: Repository
) -> None:
    first = next(iter(states))
    damage(repo, chunk_of(repo, first, "encoder/w"))
    assert len(fsck(repo).affected) == 3
    assert mend(repo).after.clean is False  # type: ignore[union-attr]
    done = mend(repo, copy)  # deltas were kept although their base was lost
    assert done.after is not None
    assert done.after.clean
    require_sound(repo.layout.root, states)


def test_all_packs_are_lost_and_come_back(repo: Repository, states: States, copy: Repository) -> None:
    for path in repo.layout.packs.glob("*.pack"):
        path.unlink()
    done = mend(repo, copy)
    assert done.after is not None
    assert done.after.clean
    require_sound(repo.layout.root, states)


def test_with_all_packs_their_directory_is_lost(repo: Repository, states: States, copy: Repository) -> None:
    shutil.rmtree(repo.layout.packs)
    assert kinds(mend(repo, copy).after) == set()
    require_sound(repo.layout.root, states)


def test_c7_a_pack_keeps_its_name_if_the_index_could_not_forget_it(
    repo: Repository, states: States, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index would go on to name it while it lies in quarantine."""
    damaged = damage(repo, chunk_of(repo, list(states)[-1], "encoder/w"))
    repo.close()
    write, moved = LmdbIndex.write, list[bool]()

    def full(index: LmdbIndex, body: Callable[[IndexWriter], Any]) -> Any:
        def without_room(writer: IndexWriter) -> Any:
            result = body(writer)
            if quarantined(repo.layout.root, repo.files):
                moved.append(True)
                raise OSError(errno.ENOSPC, "No space left on device")
            return result

        return write(index, without_room)

    monkeypatch.setattr(LmdbIndex, "write", full)
    with pytest.raises(OSError, match="No space left"):
        repair(repo.layout.root)
    assert moved
    assert pack_file(repo, damaged).exists()
    assert quarantined(repo.layout.root, repo.files) == []


def test_a_copy_that_lies_is_not_believed(repo: Repository, states: States) -> None:
    chunk = chunk_of(repo, next(iter(states)), "head/w")
    damage(repo, chunk)
    repo.close()

    class Liar:
        def get(self, object_id: ObjectId, kind: Kind) -> bytes:
            assert (object_id, kind) == (chunk, Kind.CHUNK)
            return bytes(1600)

    done = repair(repo.layout.root, source=Liar())
    assert kinds(done.after) == {"missing"}


def test_content_that_is_not_what_its_id_says_is_replaced(repo: Repository, states: States, copy: Repository) -> None:
    first = next(iter(states))
    chunk = chunk_of(repo, first, "head/w")
    place = repo.index.places(chunk)[0]
    entries = repo.packs.table(place.pack).entries
    sealed = []
    for entry in entries:
        header, payload = repo.packs.read_entry(place.pack, entry)
        raw = bytes(payload) if entry.id != chunk else bytes([payload[0] ^ 1]) + bytes(payload[1:])
        sealed.append(pack.seal(header, [raw]))
    data = packing.join(sealed)
    pack_file(repo, place.pack).unlink()
    packing.place(repo.layout.packs, data, packing.id_of(data))
    assert kinds(mend(repo, copy).before) == {"index"}  # a quick check does not hash
    with Repository.open(repo.layout.root) as opened:
        assert kinds(fsck(opened, full=True)) == {"object"}
        done = mend(opened, copy, full=True)
    assert done.after is not None
    assert done.after.clean
    require_sound(repo.layout.root, states)


def test_a_dry_run_says_the_same_and_changes_nothing(repo: Repository, states: States, copy: Repository) -> None:
    _, second, _ = states
    damage(repo, chunk_of(repo, second, "head/w"))
    (repo.layout.root / "refs" / "branches" / "main").write_text("garbage\n")
    repo.close()

    def everything() -> dict[Path, bytes]:
        files = (
            path for path in repo.layout.root.rglob("*") if path.is_file() and path.suffix not in (".lock", ".mdb")
        )
        return {path: path.read_bytes() for path in files if path.name != "stamp"}

    before = everything()
    planned = mend(repo, copy, dry_run=True)
    assert everything() == before
    assert planned.after is None
    assert mend(repo, copy).steps == planned.steps


def test_a_pack_in_quarantine_keeps_the_one_that_is_there(repo: Repository, states: States, copy: Repository) -> None:
    first = next(iter(states))
    path = pack_file(repo, repo.index.places(first)[0].pack)
    sound = path.read_bytes()
    for _ in range(2):
        flip(path, 3)
        assert mend(repo, copy).after.clean  # type: ignore[union-attr]
        path.write_bytes(sound)
    assert [kept.name for kept in quarantined(repo.layout.root, Files())] == [path.name, f"{path.name}.1"]


def test_a_pack_that_a_living_writer_is_making_is_left(repo: Repository, states: States, copy: Repository) -> None:
    path = pack_file(repo, repo.index.places(next(iter(states)))[0].pack)
    flip(path, 3)
    with acquire_lease(repo.layout.root, Files()) as lease:
        lease.add_pack(repo.index.places(next(iter(states)))[0].pack)
        repo.close()
        assert kinds(repair(repo.layout.root, source=StoreSource(copy)).after) == {"pack"}
    assert path.exists()
    assert mend(repo, copy).after.clean  # type: ignore[union-attr]


# --- index ----------------------------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["lies", "garbled"])
def test_the_index_is_made_anew(repo: Repository, states: States, harm: str) -> None:
    if harm == "lies":
        repo.index.mark_bad(chunk_of(repo, next(iter(states)), "head/w"), repo.index.places(next(iter(states)))[0].pack)
    repo.close()
    if harm == "garbled":
        for path in (repo.layout.root / "index").rglob("data.mdb"):
            path.write_bytes(b"\xa5" * path.stat().st_size)
    done = repair(repo.layout.root)
    assert kinds(done.before) == {"index"}
    assert done.steps
    assert done.after is not None
    assert done.after.clean
    require_sound(repo.layout.root, states)


# --- refs and other small files -------------------------------------------------------------------------------------


@pytest.mark.parametrize("harm", ["garbled", "lost"])
def test_a_damaged_ref_is_put_on_what_its_reflog_tells_of(repo: Repository, states: States, harm: str) -> None:
    path = repo.layout.root / "refs" / "branches" / "main"
    if harm == "lost":
        path.unlink()
    else:
        path.write_text("garbage\n")
    done = mend(repo)
    assert kinds(done.before) == {"ref"}
    assert done.after is not None
    assert done.after.clean
    with Repository.open(repo.layout.root) as mended:
        assert mended.resolve("main") == list(states)[-1]
        assert mended.refs.reflog("branches/main")[0].action == "repair"
    kept = [each.read_text() for each in quarantined(repo.layout.root, Files())]
    assert kept == ([] if harm == "lost" else ["garbage\n"])


def test_a_ref_whose_last_commit_is_lost_goes_to_the_one_before(repo: Repository, states: States) -> None:
    _, second, third = states
    damage(repo, third)
    (repo.layout.root / "refs" / "branches" / "main").write_text("garbage\n")
    done = mend(repo)
    assert any(third.hex()[:8] in step and "lost" in step for step in done.steps)
    with Repository.open(repo.layout.root) as mended:
        assert mended.resolve("main") == second
        assert read(mended, second) == states[second]


def test_a_ref_without_a_reflog_cannot_be_mended(repo: Repository, states: States) -> None:
    assert states
    (repo.layout.root / "refs" / "branches" / "lost").write_text("garbage\n")
    assert kinds(mend(repo).after) == {"ref"}


def test_a_deleted_ref_whose_file_came_back_garbled_is_removed(repo: Repository, states: States) -> None:
    repo.delete_ref(tag_name("best"))
    path = repo.layout.root / "refs" / "tags" / "best"
    path.parent.mkdir(exist_ok=True)
    path.write_text("garbage\n")
    assert mend(repo).after.clean  # type: ignore[union-attr]
    assert not path.exists()
    require_sound(repo.layout.root, states)


def test_head_is_put_on_the_branch_that_moved_last(repo: Repository, states: States) -> None:
    repo.set_ref(branch_name("a"), None, next(iter(states)), "branch")
    (repo.layout.root / "HEAD").write_text("garbage\n")
    assert mend(repo).after.clean  # type: ignore[union-attr]
    with Repository.open(repo.layout.root) as mended:
        assert mended.refs.head() == "main"


def test_damaged_lines_are_cut_out_of_small_files(repo: Repository, states: States) -> None:
    root = repo.layout.root
    repo.pin(next(iter(states)), "good")
    log = root / "logs" / "refs" / "branches" / "main"
    lines = log.read_bytes().splitlines(keepends=True)
    log.write_bytes(b"".join([lines[0], b"garbage\n", *lines[1:], b"torn"]))
    with (root / "pins").open("ab") as pins:
        pins.write(b"garbage\n")
    (root / "absent").write_bytes(b"garbage\n")
    done = mend(repo)
    assert kinds(done.before) == {"ref", "pins", "absent"}
    assert done.after is not None
    assert done.after.clean
    assert log.read_bytes() == b"".join(lines)
    with Repository.open(root) as mended:
        assert [pin.message for pin in mended.pins.all().values()] == ["good"]
    assert {path.name for path in quarantined(root, Files())} == {"logs~refs~branches~main", "pins", "absent"}


# --- killed ---------------------------------------------------------------------------------------------------------


@pytest.fixture
def harmed(repo: Repository, states: States, copy: Repository) -> Path:
    harm(repo, states)
    repo.close()
    (repo.layout.root / "ballast").unlink()
    return repo.layout.root


@pytest.mark.parametrize("stride", [9, pytest.param(1, marks=pytest.mark.slow)])
def test_wherever_it_is_killed_nothing_is_lost_and_another_completes(
    harmed: Path, states: States, copy: Repository, tmp_path: Path, stride: int
) -> None:
    source, target = StoreSource(copy), tmp_path / "killed"
    for number in range(0, 1000, stride):
        shutil.copytree(harmed, target)
        try:
            repair(target, source=source, files=Files(FaultyDisk(fail_at_operation=number, error_number=None)))
        except Killed:
            require_no_less(target, states)
            assert repair(target, source=source).after.clean  # type: ignore[union-attr]
            require_sound(target, states)
            shutil.rmtree(target)
        else:
            break
    assert number > 60


def test_a_disk_that_is_full_loses_nothing(harmed: Path, states: States, copy: Repository) -> None:
    source = StoreSource(copy)
    with pytest.raises(OSError):
        repair(harmed, source=source, files=Files(FaultyDisk(fail_at_byte=1000, is_lasting=True)))
    assert repair(harmed, source=source).after.clean  # type: ignore[union-attr]
    require_sound(harmed, states)
