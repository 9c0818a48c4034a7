"""What a check of a store finds, and what it says of it."""

import errno
import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.codec import Transform
from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, MoonclipError
from store.format import pack
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, Sealed
from store.fsck import Finding, fsck
from store.ids import CommitId, PackId, chunk_id
from store.naming.refnames import branch_name, tag_name
from store.opening.indexes import rebuild_index
from store.repository import Repository
from tests import packing
from tests.arrays import Array, Hiccuping, chunk_of, damage, depth, drifted, flip, noise, pack_file, read, save

OTHER = {"other": noise("other", 3000)}
STATE = {"encoder/w": noise("w", 3000), "head/w": noise("h", 400), "b": noise("b", 7)}


@pytest.fixture
def repo(tmp_path: Path) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def findings(repo: Repository, *, full: bool = False) -> dict[str, list[Finding]]:
    found: dict[str, list[Finding]] = {}
    for finding in fsck(repo, full=full).findings:
        found.setdefault(finding.kind, []).append(finding)
    return found


def other_store(tmp_path: Path, state: dict[str, Array]) -> Path:
    """The one pack of another store."""
    with Repository.init(tmp_path / "elsewhere", thread_count=1) as other:
        save(other, state)
        return pack_file(other, other.packs.pack_ids()[0])


def take(repo: Repository, path: Path) -> PackId:
    """Put a pack into a store and its index."""
    data = path.read_bytes()
    pack_id = packing.id_of(data)
    packing.place(repo.layout.packs, data, pack_id)
    repo.index.write(lambda writer: writer.add_pack(pack_id, repo.packs.table(pack_id).entries))
    return pack_id


def take_objects(repo: Repository, *sealed: Sealed) -> PackId:
    """Put a pack of these objects into a store and its index."""
    return take(repo, packing.place(repo.layout.root / "made", packing.join(list(sealed)), PackId(b"p" * 32)))


def until_a_delta(repo: Repository) -> tuple[CommitId, CommitId]:
    """Save until a tensor is stored as a delta; returns the commits of its base and of it."""
    state = {"w": noise("w", 3000)}
    base = saved = save(repo, state)
    while depth(repo, chunk_of(repo, saved.commit, "w")) == 0:
        state = {"w": drifted(state["w"], saved.last.ordinal)}
        base, saved = saved, save(repo, state, last=saved.last)
    return base.commit, saved.commit


# --- a sound store --------------------------------------------------------------------------------------------------


def test_a_sound_store(repo: Repository) -> None:
    first = save(repo, STATE)
    save(repo, {**STATE, "encoder/w": drifted(STATE["encoder/w"], 1)}, last=first.last)
    repo.set_ref(tag_name("best"), None, first.commit, "tag")
    repo.set_ref(branch_name("exp/lr3"), None, first.commit, "branch")
    seen: list[tuple[int, int]] = []
    report = fsck(repo, full=True, progress=lambda done, total: seen.append((done, total)))
    assert report.clean
    assert (report.pack_count, report.object_count, report.commit_count, report.full) == (2, 7, 2, True)
    done, total = zip(*seen, strict=True)
    assert list(done) == sorted(done)
    assert set(total) == {done[-1]}


def test_what_a_dead_save_left_is_no_fault(repo: Repository, tmp_path: Path) -> None:
    save(repo, STATE)
    data = other_store(tmp_path, OTHER).read_bytes()
    packing.place(repo.layout.packs, data, packing.id_of(data))
    (repo.layout.packs / "tmp-dead-1").write_bytes(b"half a pack")
    assert fsck(repo, full=True).clean


# --- one flipped byte -----------------------------------------------------------------------------------------------


@pytest.mark.parametrize("stride", [11, pytest.param(1, marks=pytest.mark.slow)])
def test_a10_one_flipped_byte_anywhere_in_a_pack(tmp_path: Path, stride: int) -> None:
    """Whatever the byte: what it affects is an error that names it, all else loads, and a check tells."""
    with Repository.init(tmp_path / "store", thread_count=1) as repo:
        kept, hit = save(repo, OTHER), save(repo, {"w": noise("w", 70), "b": noise("b", 7)})
        (pack_id,) = (place.pack for place in repo.index.places(hit.commit))
    path, layout = pack_file(repo, pack_id), repo.layout
    whole, states = path.read_bytes(), {kept.commit: OTHER, hit.commit: {"w": noise("w", 70), "b": noise("b", 7)}}
    errors = 0
    for offset in range(0, len(whole), stride):
        flip(path, offset, 1 << (offset % 8))
        with Repository.open(layout.root, thread_count=1, read_only=True) as repo:
            assert read(repo, kept.commit) == OTHER
            try:
                assert read(repo, hit.commit) == states[hit.commit]
            except Corrupt as error:
                errors += 1
                assert pack_id.hex() in str(error)
                assert error.details["object"] in str(error)
            found = findings(repo)
            assert found.keys() & {"pack", "object"}
            assert all(
                hit.commit.hex()[:8] in affected for each in found.get("object", []) for affected in each.affects
            )
            assert pack_id.hex() in "".join(each.message for kind in found.values() for each in kind)
        path.write_bytes(whole)
    assert errors > len(whole) / stride / 3  # header, table and footer are not needed to read what the index knows


def test_a10_a_check_names_commit_and_tensor(repo: Repository) -> None:
    first = save(repo, STATE)
    second = save(repo, {**STATE, "b": noise("new", 7)})
    third = save(repo, OTHER)
    chunk = chunk_of(repo, first.commit, "encoder/w")
    pack_id = damage(repo, chunk)
    (finding,) = findings(repo)["object"]
    assert finding.object_id == chunk
    assert pack_id.hex() in finding.message
    assert set(finding.affects) == {f"{commit.hex()[:8]} model::encoder/w" for commit in (first.commit, second.commit)}
    assert read(repo, third.commit) == OTHER


def test_a_damaged_tree_affects_all_its_tensors(repo: Repository) -> None:
    saved = save(repo, STATE)
    tree = repo.commit(saved.commit).items["model"]
    damage(repo, tree)
    (finding,) = findings(repo)["object"]
    assert (finding.object_id, finding.affects) == (tree, (f"{saved.commit.hex()[:8]} model::(all its tensors)",))


def test_a_damaged_commit(repo: Repository) -> None:
    saved = save(repo, STATE)
    damage(repo, saved.commit)
    (finding,) = findings(repo)["object"]
    named = "branch 'main', the reflog of HEAD, the reflog of branch 'main'"
    assert (finding.object_id, finding.affects) == (saved.commit, (f"commit {saved.commit.hex()[:8]} ({named})",))


def test_a_damaged_base_affects_its_deltas(repo: Repository) -> None:
    previous, last = until_a_delta(repo)
    base = chunk_of(repo, previous, "w")
    damage(repo, base)
    for full in (False, True):
        found = {finding.object_id: finding for finding in findings(repo, full=full)["object"]}
        affected = {affected for finding in found.values() for affected in finding.affects}
        assert base in found
        assert affected == {f"{commit.hex()[:8]} model::w" for commit in (previous, last)}


def test_many_affected_are_abridged(repo: Repository) -> None:
    first = save(repo, {f"w{number:02}": noise("same", 1000) for number in range(20)})
    damage(repo, chunk_of(repo, first.commit, "w00"))
    (finding,) = findings(repo)["object"]
    assert len(finding.affects) == 9
    assert finding.affects[-1] == "and 12 more"


# --- packs ----------------------------------------------------------------------------------------------------------


def test_a_pack_that_is_gone(repo: Repository) -> None:
    saved, other = save(repo, STATE), save(repo, OTHER)
    (place,) = repo.index.places(saved.commit)
    pack_file(repo, place.pack).unlink()
    repo.packs.close()
    found = findings(repo)
    assert place.pack.hex() in found["index"][0].message
    assert any(f"commit {saved.commit.hex()[:8]}" in "".join(finding.affects) for finding in found["missing"])
    assert read(repo, other.commit) == OTHER


@pytest.mark.parametrize("offset", [3, -3])
def test_a_pack_whose_ends_are_damaged(repo: Repository, offset: int) -> None:
    saved = save(repo, STATE)
    (place,) = repo.index.places(saved.commit)
    flip(pack_file(repo, place.pack), offset)
    found = findings(repo)
    assert "index" not in found
    assert place.pack.hex() in found["pack"][0].message
    assert read(repo, saved.commit) == STATE  # the index knows where it all is


def test_a_damaged_copy_beside_a_whole_one(repo: Repository, tmp_path: Path) -> None:
    saved = save(repo, OTHER)
    chunk = chunk_of(repo, saved.commit, "other")
    take(repo, other_store(tmp_path, OTHER))
    damage(repo, chunk, copy=1)
    for full in (False, True):
        found = findings(repo, full=full)
        assert found.keys() == {"copy"}
        assert found["copy"][0].object_id == chunk


class Denying(Disk):
    """Opens no pack."""

    def open(self, path: Path, flags: int) -> int:
        if path.suffix == ".pack":
            raise PermissionError(errno.EACCES, "denied", str(path))
        return super().open(path, flags)


def test_a_pack_that_cannot_be_opened(repo: Repository) -> None:
    saved = save(repo, STATE)
    (place,) = repo.index.places(saved.commit)
    with Repository.open(repo.layout.root, files=Files(Denying())) as denied:
        found = findings(denied)
    assert place.pack.hex() in found["pack"][0].message
    assert "denied" in found["pack"][0].message


@pytest.mark.parametrize("error_number", [errno.EIO, errno.ENOMEM])
def test_an_object_that_cannot_be_read(repo: Repository, error_number: int) -> None:
    chunk = chunk_of(repo, save(repo, STATE).commit, "encoder/w")
    (place,) = repo.index.places(chunk)
    disk = Hiccuping(error_number, place.offset)
    with Repository.open(repo.layout.root, files=Files(disk)) as failing:
        (finding,) = findings(failing, full=True)["object"]
        assert finding.object_id == chunk
        assert place.pack.hex() in finding.message
        disk.offset = -1
        assert fsck(failing).clean


# --- contents -------------------------------------------------------------------------------------------------------


def liar(kind: Kind, raw: bytes) -> Sealed:
    """An object that is whole but not what its id says."""
    header = ObjectHeader(kind, Transform.RAW, False, Element.INT8, len(raw), chunk_id(b"something else"), None)
    return pack.seal(header, [raw])


@pytest.mark.parametrize("kind", Kind)
def test_content_that_is_not_what_its_id_says_shows_in_a_full_check(repo: Repository, kind: Kind) -> None:
    save(repo, STATE)
    pack_id = take_objects(repo, liar(kind, b"x" * 100))
    assert fsck(repo).clean
    (finding,) = findings(repo, full=True)["object"]
    assert pack_id.hex() in finding.message
    assert "does not match its id" in finding.message


def test_a_table_that_says_something_else_than_the_object(repo: Repository) -> None:
    sealed = packing.chunk(b"c" * 4096)
    entry = pack.table_entry(sealed, pack.HEADER_BYTES)._replace(element=Element.INT16)
    table = pack.encode_table([entry])
    footer = pack.footer_of(table, pack.HEADER_BYTES + sealed.stored_bytes)
    data = b"".join([pack.encode_header(), *sealed.buffers, table, pack.encode_footer(footer)])
    path = repo.layout.root / "made"
    path.write_bytes(data)
    take(repo, path)
    (finding,) = findings(repo)["object"]
    assert "differs from the pack's table" in finding.message


def test_every_copy_is_hashed(repo: Repository) -> None:
    saved = save(repo, OTHER)
    chunk = chunk_of(repo, saved.commit, "other")
    header = ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.FP32, 12_000, chunk, None)
    take_objects(repo, pack.seal(header, [bytes(12_000)]))
    assert fsck(repo).clean
    (finding,) = findings(repo, full=True)["copy"]
    assert finding.object_id == chunk


def test_a_delta_that_does_not_decode(repo: Repository) -> None:
    base = packing.chunk(b"b" * 4096)
    take_objects(repo, base, packing.delta(b"d" * 4096, b"b" * 4096, b"garbage"))
    assert fsck(repo).clean
    (finding,) = findings(repo, full=True)["object"]
    assert finding.object_id == chunk_id(b"d" * 4096)


# --- index and refs -------------------------------------------------------------------------------------------------


def test_an_index_that_misplaces_something(repo: Repository) -> None:
    saved = save(repo, STATE)
    chunk = chunk_of(repo, saved.commit, "encoder/w")
    (place,) = repo.index.places(chunk)
    repo.index.mark_bad(chunk, place.pack)  # which it is not
    (finding,) = findings(repo)["index"]
    assert finding.object_id == chunk
    assert "moonclip reindex" in finding.message
    rebuild_index(repo.layout, repo.files, repo.packs)
    assert fsck(repo, full=True).clean


def test_deltas_that_no_index_can_place_are_not_the_indexs_fault(repo: Repository) -> None:
    previous, _ = until_a_delta(repo)
    (place,) = repo.index.places(chunk_of(repo, previous, "w"))
    pack_file(repo, place.pack).unlink()
    repo.packs.close()
    rebuild_index(repo.layout, repo.files, repo.packs)
    assert findings(repo).keys() == {"missing"}


def test_damaged_refs_are_named_and_the_others_checked(repo: Repository) -> None:
    saved = save(repo, STATE)
    repo.set_ref(tag_name("best"), None, saved.commit, "tag")
    (repo.layout.root / "refs" / "branches" / "main").write_text("garbage\n")
    (repo.layout.root / "HEAD").write_text("garbage\n")
    damage(repo, chunk_of(repo, saved.commit, "encoder/w"))
    found = findings(repo)
    assert any("main" in finding.message for finding in found["ref"])
    assert any("HEAD" in finding.message for finding in found["ref"])
    assert found["object"][0].affects == (f"{saved.commit.hex()[:8]} model::encoder/w",)


def test_a_ref_to_nothing(repo: Repository) -> None:
    save(repo, STATE)
    (repo.layout.root / "refs" / "branches" / "lost").write_text("ab" * 32 + "\n")
    (finding,) = findings(repo)["missing"]
    assert finding.affects == ("commit abababab (branch 'lost')",)


def test_a_ref_to_what_is_no_commit(repo: Repository) -> None:
    saved = save(repo, STATE)
    chunk = chunk_of(repo, saved.commit, "encoder/w")
    (repo.layout.root / "refs" / "branches" / "odd").write_text(chunk.hex() + "\n")
    (finding,) = findings(repo)["content"]
    assert "not the commit" in finding.message


def test_a_check_raises_nothing_and_alters_nothing(repo: Repository) -> None:
    saved = save(repo, STATE)
    for object_id in (saved.commit, repo.commit(saved.commit).items["model"], chunk_of(repo, saved.commit, "head/w")):
        damage(repo, object_id)
    with pytest.raises(MoonclipError):
        read(repo, saved.commit)

    def everything() -> dict[str, bytes]:
        root = repo.layout.root
        files = (path for path in root.rglob("*") if path.is_file() and path.suffix != ".lock")
        return {str(path): path.read_bytes() for path in files if "index" not in str(path)}

    before = everything()
    assert not fsck(repo, full=True).clean
    assert everything() == before
    assert json.loads(repo.layout.config.read_text())["id"]


def test_a_lost_branch_file_is_a_finding(repo: Repository) -> None:
    save(repo, STATE)
    tip = save(repo, OTHER).commit
    (repo.layout.root / "refs" / "branches" / "main").unlink()
    report = fsck(repo)
    assert [finding.kind for finding in report.findings] == ["ref"]
    assert tip.hex() in report.findings[0].message
    assert report.commit_count == 2  # its log still leads to them
