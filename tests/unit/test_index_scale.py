"""What a save and an opening do does not grow with the history. Counted, not timed; ``tools.bench scale`` times it."""

from collections import Counter
from functools import partial
from pathlib import Path

from store.disk.calls import Disk
from store.disk.files import Files
from store.ids import Buffer
from store.index import IndexWriter
from store.repository import Repository
from tests.indexing import data_of, entry, make, pack_id, row
from tests.storing import save

PAGE_BYTES = 4096


class Counting(Files):
    """Counts system calls, and the names that listing directories gives."""

    def __init__(self) -> None:
        self.counts: Counter[str] = Counter()
        super().__init__(_CountingDisk(self.counts))

    def list_directory(self, path: Path) -> list[str]:
        names = super().list_directory(path)
        self.counts["names"] += len(names)
        return names


class _CountingDisk(Disk):
    def __init__(self, counts: Counter[str]) -> None:
        self._counts = counts

    def open(self, path: Path, flags: int) -> int:
        self._counts["open"] += 1
        return super().open(path, flags)

    def write(self, fd: int, data: Buffer) -> int:
        self._counts["write"] += 1
        return super().write(fd, data)

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        self._counts["pread"] += 1
        return super().pread(fd, size_bytes, offset)

    def fsync(self, fd: int) -> None:
        self._counts["fsync"] += 1
        super().fsync(fd)

    def sync_directory(self, path: Path) -> None:
        self._counts["sync_directory"] += 1
        super().sync_directory(path)


def test_a22_a_later_save_makes_as_many_calls(tmp_path: Path) -> None:
    files = Counting()
    with Repository.init(tmp_path, files=files, thread_count=1) as repository:
        taken = []
        for step in range(30):
            before = files.counts.copy()
            save(repository, step)
            taken.append(files.counts - before)
    assert taken[29] == taken[3]


def test_a22_opening_makes_as_many_calls(tmp_path: Path) -> None:
    Repository.init(tmp_path).close()
    taken = []
    for step in range(30):
        files = Counting()
        with Repository.open(tmp_path, files=files, thread_count=1) as repository:
            taken.append(files.counts.copy())
            save(repository, step)
    assert taken[29] == taken[3]


def test_a22_a_commit_writes_as_many_pages_of_the_index_as_its_objects_need(tmp_path: Path) -> None:
    """For each object the leaf that it goes to, and the branches above; some more for the commit and for free pages."""
    names = [f"{number:x}" for number in range(20_000)]
    index = make(tmp_path, lambda writer: writer.add_pack(pack_id("p"), [entry(name[::-1]) for name in names]))
    counts = []
    for number in range(5):
        before = pages(tmp_path)
        index.write(partial(add_commit, number))
        after = pages(tmp_path)
        counts.append(len(after) - len(before) + sum(map(bytes.__ne__, before, after)))
    index.close()
    assert len(before) > 400
    assert max(counts) < 40


def add_commit(number: int, writer: IndexWriter) -> None:
    writer.add_pack(pack_id(f"{number}"), [entry(f"{each}-{number}") for each in (1, 5, 9)])
    writer.add_commit(row(f"{number}"))


def pages(root: Path) -> list[bytes]:
    data = data_of(root).read_bytes()
    return [data[at : at + PAGE_BYTES] for at in range(0, len(data), PAGE_BYTES)]
