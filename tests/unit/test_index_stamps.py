"""When opening an index walks its pages, and when it need not."""

import os
import shutil
import struct
import time
from collections.abc import Callable
from pathlib import Path
from uuid import UUID

import pytest
from xxhash import xxh3_64_digest

from store.index import BrokenIndex, IndexWriter, stamps
from store.index import environment as environments
from store.index.records import seal, unseal
from store.index.stamps import Fit, Stamp
from store.limits import INDEX_WALK_NS
from tests.indexing import data_of, entry, generations, make, object_id, pack_id, run
from tests.unit.test_index_damage import NAMES, PAGE_BYTES, fill, in_child, leaves_of

Walks = list[int]


@pytest.fixture
def walks(monkeypatch: pytest.MonkeyPatch) -> Walks:
    """Grows by one with each walk."""
    counted: Walks = []
    walk = environments.check_pages

    def count(file: memoryview, meta: environments.Meta) -> None:
        counted.append(meta.page_count)
        walk(file, meta)

    monkeypatch.setattr(environments, "check_pages", count)
    return counted


@pytest.fixture
def root(tmp_path: Path) -> Path:
    make(tmp_path, fill).close()
    return tmp_path


def stamp_of(root: Path) -> Path:
    return data_of(root).with_name("stamp")


def opens(root: Path) -> None:
    index = generations(root).open(writable=True)
    assert index.places(object_id(NAMES[0]))
    index.close()


def add(root: Path, name: str) -> None:
    index = generations(root).open(writable=True)
    index.write(lambda writer: writer.add_pack(pack_id(name), [entry(name)]))
    index.close()


def fit_of(root: Path) -> Fit:
    """What would fit the index as it is."""
    index = generations(root).open(writable=False)
    number = index._attached().read(lambda transaction: transaction.number)
    index.close()
    return Fit.of(data_of(root).stat(), number)


def test_what_was_made_here_is_not_walked_nor_what_was_written_since(root: Path, walks: Walks) -> None:
    opens(root)
    add(root, "a")
    opens(root)
    add(root, "b")
    opens(root)
    assert walks == []


def test_what_another_process_wrote_is_not_walked(root: Path, walks: Walks) -> None:
    run("import sys; from tests.unit.test_index_stamps import *; add(Path(sys.argv[1]), 'a')", root)
    opens(root)
    assert walks == []


def test_a_write_that_changes_nothing_or_fails_leaves_the_stamp(root: Path, walks: Walks) -> None:
    index = generations(root).open(writable=True)
    index.write(lambda writer: writer.places(object_id("a")))

    def fail(writer: IndexWriter) -> None:
        writer.add_pack(pack_id("a"), [entry("a")])
        raise KeyError

    with pytest.raises(KeyError):
        index.write(fail)
    index.close()
    opens(root)
    assert walks == []


def test_a_stamp_that_the_writer_before_left_late_is_moved_on(root: Path, walks: Walks) -> None:
    index = generations(root).open(writable=True)
    stamp = stamp_of(root).read_bytes()
    stamp_of(root).unlink()

    def write(writer: IndexWriter) -> None:
        writer.add_pack(pack_id("a"), [entry("a")])
        stamp_of(root).write_bytes(stamp)

    index.write(write)
    index.close()
    opens(root)
    assert walks == []


def test_a_walk_during_which_somebody_writes_leaves_his_stamp(
    root: Path, walks: Walks, monkeypatch: pytest.MonkeyPatch
) -> None:
    stamp_of(root).unlink()
    walk = environments.check_pages

    def overtaken(file: memoryview, meta: environments.Meta) -> None:
        monkeypatch.setattr(environments, "check_pages", walk)
        program = "import sys; from tests.unit.test_index_stamps import *; add(Path(sys.argv[1]), 'a')"
        run(program, root)  # which finds no stamp, walks, and leaves one
        walk(file, meta)

    monkeypatch.setattr(environments, "check_pages", overtaken)
    opens(root)
    assert len(walks) == 1
    opens(root)
    assert len(walks) == 1


def touch(root: Path) -> None:
    os.utime(data_of(root), ns=(0, data_of(root).stat().st_mtime_ns + 1))


def alter_and_restore_the_time(root: Path) -> None:
    times = data_of(root).stat()
    while data_of(root).stat().st_ctime_ns == times.st_ctime_ns:  # until the kernel's clock ticks
        with data_of(root).open("r+b") as data:
            data.write(data.read(1))
        os.utime(data_of(root), ns=(times.st_atime_ns, times.st_mtime_ns))


def lengthen(root: Path) -> None:
    os.truncate(data_of(root), data_of(root).stat().st_size + PAGE_BYTES)


def restore_from_a_backup(root: Path) -> None:
    shutil.copytree(root / "index", root / "backup")
    shutil.rmtree(root / "index")
    (root / "backup").rename(root / "index")


def die_before_the_stamp(root: Path) -> None:
    stamp = stamp_of(root).read_bytes()
    add(root, "a")
    stamp_of(root).write_bytes(stamp)


def write_without_a_stamp(root: Path) -> None:
    index = generations(root).open(writable=True)
    stamp_of(root).unlink()
    index.write(lambda writer: writer.add_pack(pack_id("a"), [entry("a")]))
    index.close()
    assert not stamp_of(root).exists()  # on what pages was written nobody knows any more


def tear(root: Path) -> None:
    os.truncate(stamp_of(root), 60)


def flip(root: Path) -> None:
    data = bytearray(stamp_of(root).read_bytes())
    data[-10] ^= 1  # when the walk was
    stamp_of(root).write_bytes(data)


def restart(root: Path) -> None:
    body = unseal(stamps._KEY, stamp_of(root).read_bytes())
    stamp_of(root).write_bytes(seal(stamps._KEY, body[:-24] + bytes(16) + body[-8:]))  # another boot of the machine


def expire(root: Path) -> None:
    Stamp(data_of(root).parent).write(fit_of(root), time.time_ns() - INDEX_WALK_NS)


def come_from_the_future(root: Path) -> None:
    Stamp(data_of(root).parent).write(fit_of(root), time.time_ns() + INDEX_WALK_NS // 2)


HARMS = [
    touch,
    alter_and_restore_the_time,
    lengthen,
    restore_from_a_backup,
    die_before_the_stamp,
    write_without_a_stamp,
    tear,
    flip,
    restart,
    expire,
    come_from_the_future,
]


@pytest.mark.parametrize("harm", HARMS)
def test_whatever_else_happens_the_pages_are_walked_once(
    root: Path, walks: Walks, harm: Callable[[Path], None]
) -> None:
    harm(root)
    assert walks == []
    opens(root)
    assert len(walks) == 1
    opens(root)
    add(root, "b")
    opens(root)
    assert len(walks) == 1


def test_writing_does_not_put_off_the_next_walk(root: Path, walks: Walks) -> None:
    Stamp(data_of(root).parent).write(fit_of(root), time.time_ns() - INDEX_WALK_NS)
    index = generations(root).open(writable=True)
    Stamp(data_of(root).parent).write(fit_of(root), 7)
    for name in "ab":
        index.write(lambda writer, name=name: writer.add_pack(pack_id(name), [entry(name)]))  # type: ignore[misc]
    index.close()
    assert len(walks) == 1
    opens(root)
    assert len(walks) == 2


@pytest.mark.parametrize("has_stamp", [True, False])
def test_where_nothing_can_be_written_a_stamp_is_honoured_and_none_is_made(
    root: Path, walks: Walks, has_stamp: bool
) -> None:
    if not has_stamp:
        stamp_of(root).unlink()
    for _ in range(2):
        generations(root, locked=False).open(writable=False).close()
    assert len(walks) == (0 if has_stamp else 2)
    assert stamp_of(root).exists() == has_stamp


def test_a_stamp_that_cannot_be_written_fails_nothing(root: Path) -> None:
    stamp_of(root).unlink()
    stamp_of(root).mkdir()
    add(root, "a")
    opens(root)


# --- pages that rot under a stamp that fits ---------------------------------------------------------------------------


def rot(root: Path) -> None:
    """Alter a page so that nothing but a walk can tell."""
    number = fit_of(root).transaction
    data = bytearray(data_of(root).read_bytes())
    for page in leaves_of(bytes(data)):
        data[page + 10] = 4  # another type: LMDB ends the process when it meets that
    data_of(root).write_bytes(data)
    Stamp(data_of(root).parent).write(Fit.of(data_of(root).stat(), number), time.time_ns())


def test_what_opening_trusts_a_check_walks(root: Path, walks: Walks) -> None:
    index = generations(root).open(writable=True)
    index.check()
    index.check()
    index.close()
    assert len(walks) == 2


def test_c8_what_a_check_finds_rotten_is_not_touched_again(root: Path) -> None:
    rot(root)

    def use() -> int:
        index = generations(root).open(writable=False)
        found = 0
        for ask in (index.check, lambda: index.places(object_id("o1")), lambda: list(index.commits_since(1))):
            try:
                ask()
            except BrokenIndex:
                found += 1
        return found

    assert in_child(use) == 3
    assert not stamp_of(root).exists()
    with pytest.raises(BrokenIndex):
        generations(root).open(writable=False)


def test_c8_who_may_write_rebuilds_what_a_check_finds_rotten(root: Path) -> None:
    rot(root)

    def use() -> int:
        index = generations(root, fill).open(writable=True)
        try:
            index.check()
        except BrokenIndex:
            return len(index.places(object_id("o1")))
        return 0

    assert in_child(use) == 1
    assert data_of(root).parent.name == "2"


def test_a_stamp_is_what_the_format_says(root: Path) -> None:
    data = stamp_of(root).read_bytes()
    status = data_of(root).stat()
    assert data[:24] == struct.pack("<3Q", status.st_dev, status.st_ino, status.st_size)
    assert data[24:40] == struct.pack("<2q", status.st_mtime_ns, status.st_ctime_ns)
    assert data[40:48] == struct.pack("<Q", fit_of(root).transaction)
    boot = Path("/proc/sys/kernel/random/boot_id")
    assert data[48:64] == (UUID(boot.read_text().strip()).bytes if boot.exists() else bytes(16))
    assert abs(time.time_ns() - int.from_bytes(data[64:72], "little")) < 3600 * 10**9
    assert data[72:] == xxh3_64_digest(b"moonclip pages 1" + data[:72])
