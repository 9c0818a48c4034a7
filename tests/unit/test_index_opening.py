"""Which index a store gets when it is opened."""

import json
import logging
import os
import shutil
import tempfile
import traceback
from collections.abc import Iterator
from pathlib import Path

import pytest

from store.disk import mounts
from store.disk.files import Files
from store.disk.mounts import Mount, mount_of
from store.errors import Incompatible, ReadOnly
from store.format.objects import Kind
from store.fsck import fsck
from store.index import BrokenIndex, LmdbIndex, MemoryIndex
from store.index.transaction import COMMITS
from store.layout import Layout
from store.limits import MAX_CHAIN_DEPTH
from store.opening.indexes import index_directory, rebuild_index
from store.opening.reindex import Digest, fill, place_all
from store.repository import Repository
from tests.indexing import data_of, entry, make, object_id, pack_id, start
from tests.mounting import make_read_only, small_file_system
from tests.storing import load, save, weights_of

NOBODY = 65534


@pytest.fixture
def root() -> Iterator[Path]:
    """A store with three commits, in a directory that any user can reach."""
    outer = Path(tempfile.mkdtemp())
    outer.chmod(0o755)
    make_store(outer / "store")
    yield outer / "store"
    shutil.rmtree(outer)


def make_store(root: Path) -> None:
    with Repository.init(root) as repository:
        for step in (1, 2, 3):
            save(repository, step)


def all_is_there(repository: Repository) -> bool:
    """Whether all can be read and nothing is damaged, but for an index that this handle may not mend."""
    allowed = {"index"} if repository.read_only else set()
    tip = repository.resolve("main")
    return (
        [row.step for row in repository.log([tip])] == [3, 2, 1]
        and [load(repository, f"main~{back}") for back in range(3)] == [weights_of(step) for step in (3, 2, 1)]
        and load(repository, tip.hex()[:10]) == weights_of(3)
        and {finding.kind for finding in fsck(repository, full=True).findings} <= allowed
    )


# --- damage ---------------------------------------------------------------------------------------------------------


def remove(root: Path) -> None:
    shutil.rmtree(root / "index")


def empty(root: Path) -> None:
    os.truncate(data_of(root), 0)


def cut_off(root: Path) -> None:
    os.truncate(data_of(root), 8192)


def garble(root: Path) -> None:
    data_of(root).write_bytes(b"garbage " * 5000)


@pytest.mark.parametrize("damage", [remove, empty, cut_off, garble])
def test_c8_a_damaged_index_is_rebuilt_and_kept_aside(
    root: Path, damage: "object", caplog: pytest.LogCaptureFixture
) -> None:
    assert callable(damage)
    damage(root)
    with caplog.at_level(logging.WARNING), Repository.open(root) as repository:
        assert isinstance(repository.index, LmdbIndex)
        assert all_is_there(repository)
        save(repository, 4)
    assert "rebuilt from the packs" in caplog.text
    kept = sorted(path.name for path in (root / "index").iterdir())
    assert kept == (["1"] if damage is remove else ["2", "old-1"])
    rebuild_index(Layout(root), Files(), repository.packs)
    assert not list((root / "index").glob("old-*"))


@pytest.mark.parametrize("damage", [remove, empty, cut_off, garble])
def test_c8_a_reader_leaves_a_damaged_index_as_it_is(root: Path, damage: "object") -> None:
    assert callable(damage)
    damage(root)
    before = sorted(root.rglob("*"))
    with Repository.open(root, read_only=True) as repository:
        assert isinstance(repository.index, MemoryIndex)
        assert all_is_there(repository)
    assert sorted(root.rglob("*")) == before


def flip_records(root: Path, needle: bytes) -> int:
    """Alter the byte after every occurrence of a key, which is its record's first."""
    data = bytearray(data_of(root).read_bytes())
    at, count = data.find(needle), 0
    while at >= 0:
        data[at + len(needle)] ^= 0x40
        at, count = data.find(needle, at + 1), count + 1
    data_of(root).write_bytes(data)
    return count


def test_c8_garbled_records_are_found_through_packs(root: Path) -> None:
    with Repository.open(root) as repository:
        entries = [entry for pack in repository.packs.pack_ids() for entry in repository.packs.table(pack).entries]
    chunks = [entry.id for entry in entries if entry.kind == Kind.CHUNK]
    assert len(chunks) == 3
    for chunk in chunks:
        assert flip_records(root, chunk)
    with Repository.open(root, read_only=True) as repository:
        with pytest.raises(BrokenIndex):
            repository.index.places(chunks[0])
        assert len(repository.lookup.places(chunks[0])) == 1
        assert [load(repository, f"main~{back}") for back in range(3)] == [weights_of(step) for step in (3, 2, 1)]
    with Repository.open(root) as repository:
        save(repository, 4)  # its base is one of the garbled
        assert [load(repository, f"main~{back}") for back in range(4)] == [weights_of(step) for step in (4, 3, 2, 1)]
        assert isinstance(repository.index, LmdbIndex)
        assert repository.index.path.name == "2"


@pytest.mark.parametrize("read_only", [True, False])
def test_c8_a_garbled_row_of_a_tip_does_not_keep_the_store_from_opening(root: Path, read_only: bool) -> None:
    with Repository.open(root) as repository:
        tip = repository.resolve("main")
    assert flip_records(root, COMMITS + tip)
    with Repository.open(root, read_only=read_only) as repository:
        assert isinstance(repository.index, MemoryIndex if read_only else LmdbIndex)
        assert all_is_there(repository)


def test_c8_an_index_from_a_backup_is_brought_up_to_date(root: Path) -> None:
    backup = data_of(root).read_bytes()
    with Repository.open(root) as repository:
        save(repository, 4)
    data_of(root).write_bytes(backup)
    with Repository.open(root, read_only=True) as repository:
        assert isinstance(repository.index, MemoryIndex)
        assert load(repository, "main") == weights_of(4)
    with Repository.open(root) as repository:
        assert repository.index.commit(repository.resolve("main"))
        assert load(repository, "main") == weights_of(4)
    assert data_of(root).parent.name == "2"


def test_a_lost_pack_does_not_make_every_opening_rebuild_the_index(root: Path) -> None:
    with Repository.open(root) as repository:
        tip = repository.resolve("main")
        (place,) = repository.index.places(tip)
    path = next((root / "packs").glob(f"{place.pack.hex()}*"))
    for damaged in (path.read_bytes()[:-1], None):
        path.unlink()
        if damaged is not None:
            path.write_bytes(damaged)
        shutil.rmtree(root / "index")
        for _ in range(3):
            Repository.open(root).close()
        assert [each.name for each in (root / "index").iterdir()] == ["1"]


def test_c8_a_process_whose_index_is_behind_finds_commits_through_packs(root: Path) -> None:
    with Repository.open(root) as repository:
        backup = data_of(root).read_bytes()
        tip = save(repository, 4)
        repository.index.close()
        data_of(root).write_bytes(backup)
        repository.lookup._index = Repository.open(root, read_only=True).index
        repository.lookup._index = MemoryIndex([], [])
        assert repository.resolve(tip.hex()[:8]) == tip
        assert repository.lookup.commit(tip)
        assert load(repository, "main") == weights_of(4)


# --- read-only ------------------------------------------------------------------------------------------------------


def look(root: Path) -> str:
    with Repository.open(root) as repository:
        assert repository.read_only
        assert all_is_there(repository)
        with pytest.raises(ReadOnly):
            save(repository, 4)
        return type(repository.index).__name__


def look_as_somebody_else(root: Path) -> str:
    """As :func:`look`, by a user who is not root."""
    if os.geteuid() != 0:
        return look(root)
    heard, told = os.pipe()
    pid = os.fork()
    if not pid:
        try:
            os.setgroups([])
            os.setgid(NOBODY)
            os.setuid(NOBODY)
            os.write(told, look(root).encode())
        except BaseException:
            traceback.print_exc()
        finally:
            os._exit(0)
    os.close(told)
    os.waitpid(pid, 0)
    with os.fdopen(heard, encoding="utf-8") as answer:
        return answer.read()


def set_writable(root: Path, writable: bool) -> None:
    for path in (root, *root.rglob("*")):
        path.chmod((0o755 if writable else 0o555) if path.is_dir() else (0o644 if writable else 0o444))


def test_d14_a_store_of_somebody_else(root: Path) -> None:
    set_writable(root, writable=False)
    try:
        assert look_as_somebody_else(root) == "MemoryIndex"
    finally:
        set_writable(root, writable=True)


def test_d14_a_directory_of_ours_with_files_of_somebody_else(root: Path) -> None:
    if os.geteuid() != 0:
        pytest.skip("only root can give files away")
    for path in (root, *root.rglob("*")):
        if path.is_dir():
            path.chmod(0o777)
    assert look_as_somebody_else(root) == "MemoryIndex"


@pytest.mark.parametrize(("everywhere", "kind"), [(True, LmdbIndex), (False, MemoryIndex)])
def test_d14_a_read_only_file_system(tmp_path: Path, everywhere: bool, kind: type) -> None:
    """A mount of it that is read-only says nothing about other mounts of it: somebody may be writing."""
    with small_file_system(tmp_path / "mounted", 16 << 20) as mounted:
        make_store(mounted / "store")
        make_read_only(mounted, everywhere=everywhere)
        with Repository.open(mounted / "store") as repository:
            assert type(repository.index) is kind
            assert all_is_there(repository)
            with pytest.raises(ReadOnly):
                save(repository, 4)


def test_d14_a_read_only_file_system_with_a_damaged_index(tmp_path: Path) -> None:
    with small_file_system(tmp_path / "mounted", 16 << 20) as mounted:
        make_store(mounted / "store")
        garble(mounted / "store")
        make_read_only(mounted, everywhere=True)
        with Repository.open(mounted / "store") as repository:
            assert isinstance(repository.index, MemoryIndex)
            assert all_is_there(repository)


def test_d14_commits_made_after_opening_are_found(root: Path) -> None:
    with Repository.open(root, read_only=True) as reader:
        reader.lookup._index = MemoryIndex([], [])
        with Repository.open(root) as repository:
            save(repository, 4)
        assert load(reader, "main") == weights_of(4)
        assert load(reader, "main~3") == weights_of(1)


# --- the place of the index -----------------------------------------------------------------------------------------


def test_the_index_can_lie_elsewhere(root: Path, tmp_path: Path) -> None:
    config = json.loads((root / "config").read_text(encoding="utf-8"))
    (root / "config").write_text(json.dumps({**config, "index": str(tmp_path / "fast")}), encoding="utf-8")
    shutil.rmtree(root / "index")
    with Repository.open(root) as repository:
        assert all_is_there(repository)
        save(repository, 4)
    assert not (root / "index").exists()
    (place, lock) = sorted((tmp_path / "fast").iterdir())
    assert place == index_directory(Layout(root), Files())
    assert lock.name == f"{place.name}.lock"
    shutil.copytree(root, root.with_name("copy"))
    assert index_directory(Layout(root.with_name("copy")), Files()) != place
    with Repository.open(root.with_name("copy")) as copy:
        assert load(copy, "main") == weights_of(4)


@pytest.mark.parametrize("config", ["{", "7", '{"index": 7}', '{"index": "relative/path"}', "null"])
def test_a_config_that_cannot_be_understood(root: Path, config: str) -> None:
    (root / "config").write_text(config, encoding="utf-8")
    with pytest.raises(Incompatible, match="config"):
        Repository.open(root)


def test_a_store_without_config_has_its_index_inside(tmp_path: Path) -> None:
    assert index_directory(Layout(tmp_path), Files()) == tmp_path / "index"


TABLE = """\
22 27 0:21 / /proc rw,relatime - proc proc rw
27 1 254:0 / / rw,relatime - ext4 /dev/vda rw,discard
30 27 0:30 / /lab rw,relatime shared:7 - nfs4 server:/export rw,vers=4.2
31 30 0:31 / /lab/scratch\\040disk rw,relatime - xfs /dev/sdb rw
32 27 0:32 / /image ro,relatime - squashfs /dev/loop0 ro,errors=continue
33 27 0:33 / /bound ro,relatime - ext4 /dev/vda rw,discard
34 27 0:34 / /keys rw - fuse.sshfs me@there:/ rw,user_id=0
35 27 0:35 / /over rw - tmpfs tmpfs rw
36 27 0:36 / /over rw - cifs //server/share rw
a line that makes no sense
"""


@pytest.mark.parametrize(
    ("path", "expected"),
    [
        ("/home/me/store/index", Mount("/", "ext4", False)),
        ("/lab/store/index", Mount("/lab", "nfs4", False)),
        ("/lab", Mount("/lab", "nfs4", False)),
        ("/laboratory", Mount("/", "ext4", False)),
        ("/lab/scratch disk/store", Mount("/lab/scratch disk", "xfs", False)),
        ("/image/store", Mount("/image", "squashfs", True)),
        ("/bound/store", Mount("/bound", "ext4", False)),
        ("/over/store", Mount("/over", "cifs", False)),
    ],
)
def test_the_mount_of_a_path(path: str, expected: Mount) -> None:
    assert mount_of(Path(path), TABLE) == expected


@pytest.mark.parametrize(
    ("path", "is_network"),
    [("/", False), ("/lab", True), ("/lab/scratch disk", False), ("/keys", True), ("/over", True)],
)
def test_network_file_systems(path: str, is_network: bool) -> None:
    mount = mount_of(Path(path), TABLE)
    assert mount
    assert mount.is_network == is_network


def test_where_the_system_does_not_say() -> None:
    assert mount_of(Path("/"), "") is None


def test_a_network_file_system_is_noticed(
    root: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr("store.opening.indexes.mount_of", lambda _: Mount("/lab", "nfs4", False))
    with caplog.at_level(logging.WARNING), Repository.open(root) as repository:
        assert isinstance(repository.index, LmdbIndex)
    (record,) = caplog.records
    assert "nfs4" in record.getMessage()
    assert "`index`" in record.getMessage()


def test_this_machine_has_mounts() -> None:
    if not Path("/proc/self/mountinfo").exists():
        pytest.skip("no /proc")
    assert mounts.mount_of(Path("/proc/self")) == Mount("/proc", "proc", False)


# --- reindex beside others ------------------------------------------------------------------------------------------

REINDEX = """
import sys
from tests.unit.test_index_opening import *
with Repository.open(sys.argv[1], read_only=True) as repository:
    print(flush=True)
    for _ in range(15):
        rebuild_index(repository.layout, repository.files, repository.packs)
"""


def test_d16_saves_go_on_while_somebody_reindexes(root: Path) -> None:
    with Repository.open(root) as repository, start(REINDEX, root) as process:
        assert process.stdout
        process.stdout.readline()
        step = 3
        while process.poll() is None or step < 10:
            step += 1
            save(repository, step)
            assert load(repository, "main") == weights_of(step)
        assert process.returncode == 0
        tip = repository.resolve("main")
        assert [row.step for row in repository.log([tip])] == list(range(step, 0, -1))
        assert not fsck(repository, full=True).findings
        assert repository.index.commit(tip)


def test_reindex_reports_what_it_left_out(root: Path) -> None:
    (root / "packs" / f"{'ab' * 32}.pack").write_bytes(b"not a pack")
    with Repository.open(root) as repository:
        digest = rebuild_index(repository.layout, repository.files, repository.packs)
        assert len(digest.problems) == 1
        assert "abababab" in digest.problems[0]
        assert load(repository, "main") == weights_of(3)


def test_d11_chains_that_are_too_deep_and_orphans_are_left_out_of_the_index_and_told_of(tmp_path: Path) -> None:
    chain = [entry(f"c{number}", f"c{number - 1}" if number else None) for number in range(100)]
    orphans = [entry("o1", "o2"), entry("o2", "nowhere")]
    circle = [entry("x", "y"), entry("y", "x")]
    digest = Digest({pack_id("good"): (entry("g"),), pack_id("bad"): (*chain, *orphans, *circle)})
    placed = place_all(digest)
    index = make(tmp_path, lambda writer: fill(writer, digest, placed))
    assert index.places(object_id("g"))
    assert index.places(object_id(f"c{MAX_CHAIN_DEPTH}"))
    assert index.places(object_id(f"c{MAX_CHAIN_DEPTH + 1}")) == []
    (problem,) = digest.problems
    assert f"pack {pack_id('bad').hex()}: {99 - MAX_CHAIN_DEPTH + len(circle)} deltas" in problem
    assert digest.orphan_count == len(orphans)
    index.close()
