"""Indexes that are gone, cut off or garbled. What might end the process is done in a child."""

import errno
import os
import random
import shutil
from collections.abc import Callable
from pathlib import Path

import pytest

from store.disk.calls import Disk
from store.disk.files import Files
from store.index import BrokenIndex, IndexWriter, LmdbIndex
from store.index.metapages import HEAD_BYTES, meta_pages
from store.index.transaction import COMMITS, NUMBERS, PACKS, SEQUENCE
from store.index.treepages import Unsound, check_pages
from store.opening.generations import Generations
from tests.indexing import commit_id, data_of, entry, generations, make, object_id, pack_id, row, run

NAMES = [f"o{number}" for number in range(600)]
PAGE_BYTES = 4096
DIED = 100
COUNT = bytes(8) + (40).to_bytes(8, "big")
"""Key and beginning of the record that tells how many commits there are."""


def fill(writer: IndexWriter) -> None:
    writer.add_pack(pack_id("p"), [entry(name, offset=64 + at) for at, name in enumerate(NAMES)])
    for number in range(40):
        writer.add_commit(row(f"c{number}", [f"c{number - 1}"] if number else []))


@pytest.fixture
def root(tmp_path: Path) -> Path:
    """An index that was written several times, so that it has lists of free pages."""
    index = make(tmp_path, fill)
    for number in range(8):
        index.write(lambda writer, number=number: writer.add_pack(pack_id(f"q{number}"), [entry(f"q{number}")]))  # type: ignore[misc]
    index.close()
    return tmp_path


def in_child(body: Callable[[], int]) -> int:
    """What ``body`` gives, or ``DIED`` and the signal that ended it."""
    pid = os.fork()
    if not pid:
        try:
            os._exit(body())
        finally:
            os._exit(99)
    code = os.waitstatus_to_exitcode(os.waitpid(pid, 0)[1])
    return code if code >= 0 else DIED - code


def use(root: Path) -> int:
    """Read and write all of an index: 0 if all is well, 1 if it is found broken, 2 if it lies."""
    try:
        index = generations(root).open(writable=True)
    except BrokenIndex:
        return 1
    index.writable = False  # it is to say what is broken, not to rebuild it
    found_broken = False
    for at, name in enumerate(NAMES):
        try:
            if any((place.pack, place.offset) != (pack_id("p"), 64 + at) for place in index.places(object_id(name))):
                return 2
        except BrokenIndex:
            found_broken = True
    try:
        list(index.commits_since(0))
        index.commits_with_prefix("")
        index._write(lambda writer: writer.add_pack(pack_id("new"), [entry(f"new{each}") for each in range(300)]))
    except BrokenIndex:
        found_broken = True
    return int(found_broken)


def test_all_is_well_with_an_index_that_is_sound(root: Path) -> None:
    assert in_child(lambda: use(root)) == 0


LENGTHS = [0, 1, 15, 16, 100, 152, 4095, 4096, 4097, 4248, 8191, 8192, 8193, 12288, 20480, -8192, -4096, -4095, -1]


@pytest.mark.parametrize("length", LENGTHS)
def test_c8_an_index_that_was_cut_off(root: Path, length: int) -> None:
    data = data_of(root)
    os.truncate(data, length if length >= 0 else data.stat().st_size + length)
    assert in_child(lambda: use(root)) == 1


def test_c8_an_index_that_is_cut_off_while_it_is_open(root: Path) -> None:
    def cut() -> int:
        index = generations(root).open(writable=False)
        os.truncate(data_of(root), 3 * PAGE_BYTES)
        try:
            index.places(object_id("o1"))
        except BrokenIndex:
            return 1
        return 0

    assert in_child(cut) == 1


GARBAGE = {
    "zeros": bytes(40960),
    "text": b"not an index " * 4000,
    "random": random.Random(1).randbytes(65536),
}


@pytest.mark.parametrize("kind", GARBAGE)
def test_c8_garbage(root: Path, kind: str) -> None:
    data_of(root).write_bytes(GARBAGE[kind])
    assert in_child(lambda: use(root)) == 1


def leaves_of(data: bytes) -> list[int]:
    return [at for at in range(2 * PAGE_BYTES, len(data), PAGE_BYTES) if data[at + 10 : at + 12] == b"\2\0"]


def garble(data: bytes, how: str, seed: int) -> bytes:
    chance = random.Random(seed)
    garbled = bytearray(data)
    if how == "a bit":
        garbled[chance.randrange(len(data))] ^= 1 << chance.randrange(8)
        return bytes(garbled)
    if how == "the meta pages":
        garbled[chance.choice([0, PAGE_BYTES]) + chance.randrange(156)] = chance.randrange(256)
        return bytes(garbled)
    if how == "nodes of leaves":
        for page in leaves_of(data):
            offset = int.from_bytes(data[page + 16 : page + 18], "little")
            garbled[page + offset + chance.randrange(8)] ^= 1 << chance.randrange(8)
        return bytes(garbled)
    page, other = (chance.randrange(2, len(data) // PAGE_BYTES) * PAGE_BYTES for _ in range(2))
    new = {
        "a page of zeros": bytes(PAGE_BYTES),
        "a page of garbage": chance.randbytes(PAGE_BYTES),
        "a page of another place": data[other : other + PAGE_BYTES],
        "a page's head": chance.randbytes(40) + data[page + 40 : page + PAGE_BYTES],
    }
    garbled[page : page + PAGE_BYTES] = new[how]
    return bytes(garbled)


@pytest.mark.parametrize(
    "how",
    [
        "a bit",
        "the meta pages",
        "a page of zeros",
        "a page of garbage",
        "a page of another place",
        "a page's head",
        "nodes of leaves",
    ],
)
def test_c8_no_damage_kills_the_process_or_makes_the_index_lie(root: Path, how: str) -> None:
    data = data_of(root)
    sound = data.read_bytes()
    outcomes = set()
    for seed in range(25):
        shutil.rmtree(data.parent)
        data.parent.mkdir()
        data.write_bytes(garble(sound, how, seed))
        outcomes.add(in_child(lambda: use(root)))
    assert outcomes <= {0, 1}
    assert 1 in outcomes


# --- the check of pages itself --------------------------------------------------------------------------------------


def is_sound(data: bytes) -> bool:
    metas = meta_pages(data[:HEAD_BYTES])
    if metas is None:
        return False
    newest = max(metas, key=lambda meta: meta.transaction)
    if len(data) < newest.needed_bytes:
        return False
    try:
        check_pages(memoryview(data), newest)
    except Unsound:
        return False
    return True


FIELDS = {  # offset in a meta page: sizes or numbers that it cannot have
    10: [(2, 0), (2, 1)],  # kind of page
    16: [(4, 0), (4, 0xBEEFC0DF)],  # magic
    20: [(4, 0), (4, 2), (4, 3)],  # version
    32: [(8, 0), (8, 4096), (8, 1 << 60)],  # size of the map
    40: [(4, 0), (4, 3), (4, 256), (4, 8192), (4, 131072)],  # size of a page
    44: [(2, 0), (2, 4)],  # what the list of free pages is
    46: [(2, 0), (2, 2), (2, 200)],  # its depth
    80: [(8, 0), (8, 1), (8, 1 << 40)],  # its root
    92: [(2, 4), (2, 8)],  # what the records are
    94: [(2, 0), (2, 1), (2, 200)],  # their depth
    128: [(8, 0), (8, 1), (8, 1 << 40), (8, 2**64 - 1)],  # their root
    136: [(8, 0), (8, 1), (8, 1 << 50), (8, 2**64 - 1)],  # the last page
}


@pytest.mark.parametrize(("offset", "size", "number"), [(at, *each) for at, every in FIELDS.items() for each in every])
def test_c8_a_meta_page_with_an_impossible_number(root: Path, offset: int, size: int, number: int) -> None:
    data = bytearray(data_of(root).read_bytes())
    assert is_sound(bytes(data))
    metas = meta_pages(bytes(data[:HEAD_BYTES]))
    assert metas
    newest = PAGE_BYTES * (metas[1].transaction > metas[0].transaction)
    data[newest + offset : newest + offset + size] = number.to_bytes(size, "little")
    assert not is_sound(bytes(data))
    data_of(root).write_bytes(data)
    assert in_child(lambda: use(root)) == 1


def test_c8_a_meta_page_in_the_place_of_the_other(root: Path) -> None:
    data = data_of(root).read_bytes()
    assert not is_sound(data[PAGE_BYTES : 2 * PAGE_BYTES] + data[:PAGE_BYTES] + data[2 * PAGE_BYTES :])
    assert not is_sound(data[:PAGE_BYTES] * 2 + data[2 * PAGE_BYTES :])


def test_lists_of_free_pages_are_part_of_the_check(root: Path) -> None:
    """A page that is free and in use would be written over."""
    data = bytearray(data_of(root).read_bytes())
    metas = meta_pages(bytes(data[:HEAD_BYTES]))
    assert metas
    newest = max(metas, key=lambda meta: meta.transaction)
    assert newest.free.page is not None
    assert newest.free.depth == 1
    assert newest.records.page is not None
    assert is_sound(bytes(data))
    start = newest.free.page * PAGE_BYTES
    last_number = slice(start + PAGE_BYTES - 8, start + PAGE_BYTES)  # LMDB fills pages from their end
    data[last_number] = newest.records.page.to_bytes(8, "little")
    assert not is_sound(bytes(data))


def test_within_leaves_of_records_lmdb_itself_checks(root: Path) -> None:
    """Looking at every node would take most of the time that opening takes."""
    data = bytearray(data_of(root).read_bytes())
    metas = meta_pages(bytes(data[:HEAD_BYTES]))
    assert metas
    free = max(metas, key=lambda meta: meta.transaction).free.page
    leaves = [page for page in leaves_of(bytes(data)) if page != PAGE_BYTES * (free or 0)]
    for page in leaves:
        offset = int.from_bytes(data[page + 16 : page + 18], "little")
        data[page + offset : page + offset + 8] = b"\xff" * 8  # size of the value, flags, size of the key
    assert is_sound(bytes(data))
    data_of(root).write_bytes(data)
    assert in_child(lambda: use(root)) == 1


def test_long_lists_of_free_pages_lie_on_pages_of_their_own(tmp_path: Path) -> None:
    index = make(tmp_path)
    index.write(lambda writer: writer.add_pack(pack_id("p"), [entry(f"{each:05}") for each in range(20_000)]))
    for number in range(3):  # each copies all leaves of the table, since it touches them all
        names = [f"{each:05}+{number}" for each in range(0, 20_000, 20)]
        index.write(lambda writer, names=names: writer.add_pack(pack_id(names[0]), map(entry, names)))  # type: ignore[misc]
    index.close()
    data = data_of(tmp_path).read_bytes()
    metas = meta_pages(data[:HEAD_BYTES])
    assert metas
    assert is_sound(data)
    overflow = [at for at in range(0, len(data), PAGE_BYTES) if data[at + 10 : at + 12] == b"\4\0"]
    assert overflow
    broken = [is_sound(data[: at + 10] + b"\2" + data[at + 11 :]) for at in overflow]
    assert False in broken  # others are of lists that are out of use


# --- healing --------------------------------------------------------------------------------------------------------


def names_of(index: LmdbIndex) -> int:
    return sum(bool(index.places(object_id(name))) for name in NAMES)


def garble_record(root: Path) -> None:
    """A copy says that it is in another pack."""
    data = data_of(root)
    garbled = data.read_bytes().replace(object_id("o7") + bytes(4), object_id("o7") + b"\0\0\0\1")
    with data.open("r+b") as file:
        file.write(garbled)


def test_c8_a_reader_says_that_a_record_is_garbled(root: Path) -> None:
    index = generations(root, fill).open(writable=False)
    garble_record(root)
    with pytest.raises(BrokenIndex):
        index.places(object_id("o7"))
    assert index.places(object_id("o8"))
    index.close()


@pytest.mark.parametrize("writes", [True, False])
def test_c8_one_who_may_write_rebuilds_an_index_that_is_garbled(root: Path, writes: bool) -> None:
    index = generations(root, fill).open(writable=True)
    garble_record(root)
    if writes:
        assert index.write(lambda writer: writer.lacking([object_id(name) for name in NAMES])) == []
    assert names_of(index) == len(NAMES)
    assert sorted(path.name for path in (root / "index").iterdir()) == ["2", "old-1"]
    index.close()


def alter(root: Path, old: bytes, new: bytes) -> None:
    data = data_of(root).read_bytes()
    assert old in data
    with data_of(root).open("r+b") as file:
        file.write(data.replace(old, new))


def number_in(table: bytes, number: int, size: int) -> bytes:
    return table + number.to_bytes(size, "big")


@pytest.mark.parametrize(
    ("old", "new"),
    [
        (number_in(SEQUENCE, 7, 8) + commit_id("c6"), number_in(SEQUENCE, 7, 8) + commit_id("c7")),
        (number_in(SEQUENCE, 7, 8) + commit_id("c6"), number_in(SEQUENCE, 8, 8) + commit_id("c6")),
        (number_in(SEQUENCE, 1, 8) + commit_id("c0"), number_in(SEQUENCE, 0, 8) + commit_id("c0")),
        (SEQUENCE + bytes(7) + b"\7", COMMITS + bytes(7) + b"\7"),
        (number_in(SEQUENCE, 40, 8) + commit_id("c39"), number_in(COMMITS, 40, 8) + commit_id("c39")),
        (SEQUENCE + COUNT, COMMITS + COUNT),
        (COMMITS + commit_id("c6"), COMMITS + commit_id("c6")[:-1] + b"-"),
    ],
    ids=["another commit", "another number", "no number", "another table", "no last", "no count", "no row"],
)
def test_c8_no_commit_is_passed_over_in_silence(root: Path, old: bytes, new: bytes) -> None:
    alter(root, old, new)
    index = generations(root, fill).open(writable=False)
    with pytest.raises(BrokenIndex):
        list(index.commits_since(0))
    index.close()


def test_c8_a_garbled_last_number_is_not_counted_on_from(root: Path) -> None:
    """A commit would take the number of another, and a pack that of the one whose objects are there already."""
    alter(root, SEQUENCE + COUNT, COMMITS + COUNT)
    alter(root, number_in(PACKS, 8, 4), number_in(PACKS, 0, 4))
    index = generations(root, fill).open(writable=True)
    index.writable = False
    for add in (
        lambda writer: writer.add_commit(row("new")),
        lambda writer: writer.add_pack(pack_id("new"), [entry("new")]),
    ):
        with pytest.raises(BrokenIndex):
            index._write(add)
    index.close()


def test_c8_a_pack_number_used_twice_leads_to_no_other_pack(root: Path) -> None:
    alter(root, number_in(PACKS, 8, 4), number_in(NUMBERS, 8, 4))  # so that the last of the table is 7
    index = generations(root, fill).open(writable=True)
    index.write(lambda writer: writer.add_pack(pack_id("new"), [entry("new")]))
    index.writable = False
    with pytest.raises(BrokenIndex):
        index.places(object_id("q7"))
    with pytest.raises(BrokenIndex):
        index._write(lambda writer: writer.lacking([object_id("q7")]))
    index.close()


@pytest.mark.parametrize("is_replaced", [True, False])
def test_c8_a_lock_that_goes_away_is_noticed_and_the_index_rebuilt(root: Path, is_replaced: bool) -> None:
    """Whoever opens the index next makes another lock, and both could write at a time."""
    index, reader = (generations(root, fill).open(writable=writable) for writable in (True, False))
    (data_of(root).parent / "lock.mdb").unlink()
    if is_replaced:
        run("import sys\nfrom tests.indexing import *\ngenerations(Path(sys.argv[1])).open(writable=True)", root)
    with pytest.raises(BrokenIndex, match="lock"):
        reader.places(object_id("o7"))
    index.write(lambda writer: writer.add_commit(row("new")))
    assert data_of(root).parent.name == "2"
    assert reader.commit(commit_id("new"))
    index.close()
    reader.close()


def test_an_index_that_is_removed_goes_all_at_once(root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Otherwise a reader meanwhile sees its lock gone, or LMDB makes a file anew beside what is left."""
    index = generations(root).open(writable=False)
    found: list[int] = []

    def remove_slowly(directory: Path, **_: bool) -> None:
        (directory / "lock.mdb").unlink()
        found.append(names_of(index))

    monkeypatch.setattr("store.opening.generations.shutil.rmtree", remove_slowly)
    generations(root, fill).rebuild()
    assert found == [len(NAMES)]
    index.close()


def test_c8_what_is_found_garbled_within_a_write_is_rebuilt_outside_of_it(root: Path) -> None:
    """Within, this process itself would be in the way of the rebuild."""
    index = generations(root, fill).open(writable=True)
    garble_record(root)
    attempts: list[int] = []

    def look(writer: IndexWriter) -> int:
        attempts.append(1)
        writer.add_commit(row("new"))
        return len(index.places(object_id("o7")))

    assert index.write(look) == 1
    assert len(attempts) == 2
    assert index.commit(commit_id("new"))
    index.close()


def test_c7_a_rebuild_that_finds_no_space_does_not_keep_anybody_from_reading(root: Path) -> None:
    def no_space(_: IndexWriter) -> None:
        raise OSError(errno.ENOSPC, "No space left on device")

    index = generations(root, no_space).open(writable=True)
    garble_record(root)
    with pytest.raises(BrokenIndex):
        index.places(object_id("o7"))
    assert index.places(object_id("o8"))
    with pytest.raises(OSError, match="No space"):
        index.write(lambda writer: writer.lacking([object_id("o7")]))
    index.close()


@pytest.mark.parametrize("damage", ["deleted", "directory deleted", "cut off"])
def test_c8_one_whose_index_goes_away_rebuilds_it(root: Path, damage: str) -> None:
    def save() -> int:
        index = generations(root, fill).open(writable=True)
        data = data_of(root)
        if damage == "deleted":
            data.unlink()
        elif damage == "cut off":
            os.truncate(data, 8192)
        else:
            shutil.rmtree(root / "index")
        index.write(lambda writer: writer.add_commit(row("new")))
        return 0 if index.commit(commit_id("new")) and names_of(index) == len(NAMES) else 3

    assert in_child(save) == 0


def test_of_several_who_find_an_index_broken_one_rebuilds_it(root: Path) -> None:
    counted: list[int] = []

    def fill_and_count(writer: IndexWriter) -> None:
        counted.append(1)
        fill(writer)

    seen = data_of(root).parent
    for _ in range(3):
        generations(root, fill_and_count).renew(seen, is_broken=True)
    shutil.rmtree(root / "index")
    for _ in range(3):
        generations(root, fill_and_count).renew(None, is_broken=True)
    assert len(counted) == 2


def test_a_rebuild_that_fails_leaves_the_old_one_in_use_and_garbage_that_goes_with_the_next(root: Path) -> None:
    index = generations(root).open(writable=True)

    def die(writer: IndexWriter) -> None:
        fill(writer)
        raise KeyboardInterrupt

    with pytest.raises(KeyboardInterrupt):
        generations(root, die).rebuild()
    names = sorted(path.name for path in (root / "index").iterdir())
    assert names[0] == "1"
    assert names[1].startswith("tmp-")
    assert names_of(index) == len(NAMES)
    (root / "index" / "0").mkdir()  # of one that died between the rename and the removal
    generations(root, fill).rebuild()
    assert [path.name for path in (root / "index").iterdir()] == ["2"]
    assert names_of(index) == len(NAMES)
    index.close()


class DyingDisk(Disk):
    """Dies at one of the calls that alter something."""

    def __init__(self, steps: int) -> None:
        self._steps = steps

    def _step(self) -> None:
        self._steps -= 1
        if self._steps == 0:
            os._exit(77)

    def mkdir(self, path: Path) -> None:
        self._step()
        super().mkdir(path)

    def rename(self, source: Path, target: Path) -> None:
        self._step()
        super().rename(source, target)
        self._step()

    def sync_directory(self, path: Path) -> None:
        self._step()
        super().sync_directory(path)


def test_a_rebuild_killed_at_any_step_leaves_an_index_that_opens(root: Path) -> None:
    outcomes = []
    for step in range(1, 16):

        def rebuild(step: int = step) -> int:
            Generations(root / "index", Files(DyingDisk(step)), lambda: fill).rebuild()
            return 0

        outcomes.append(in_child(rebuild))
        index = generations(root, fill).open(writable=True)
        assert names_of(index) == len(NAMES)
        index.close()
    assert outcomes[-1] == 0
    assert outcomes.count(77) >= 5
    assert len(list((root / "index").iterdir())) == 1


class SlowFiles(Files):
    """Somebody rebuilds the index between our look at which is in use and the opening of it."""

    rebuilds = 1

    def exists(self, path: Path) -> bool:
        found = super().exists(path)
        if self.rebuilds:
            self.rebuilds -= 1
            generations(path.parents[2], fill).rebuild()
        return found


@pytest.mark.parametrize("leftover", [True, False])
def test_an_index_replaced_while_it_is_opened(root: Path, leftover: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    if leftover:  # the rebuild died before it moved the old one away
        monkeypatch.setattr(Generations, "_set_aside", lambda *_: root / "nowhere")
    index = Generations(root / "index", SlowFiles(), lambda: fill).open(writable=False)
    assert index.path == root / "index" / "2"
    assert names_of(index) == len(NAMES)
    index.close()
