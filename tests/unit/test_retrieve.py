"""Reading whole tensors, rows and spans of bytes; and how little of a store that touches."""

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from store.codec import encode
from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, Incompatible, NotFound
from store.format.dtypes import Element
from store.format.entries import Piece, TensorEntry
from store.format.objects import Kind
from store.format.pack import ObjectHeader, seal
from store.ids import ChunkId, ObjectId, chunk_id
from store.reading.retrieve import ChunkCopy, gather, plan_rows, plan_span
from store.repository import Repository
from tests import packing
from tests.arrays import damage, drifted, entries_of, noise, read, save

BIG = noise("big", 3000, 512)  # 6 MB, eight chunks
A, B = ChunkId(ObjectId(b"a" * 32)), ChunkId(ObjectId(b"b" * 32))


class CountingDisk(Disk):
    """Counts the bytes that are read."""

    def __init__(self) -> None:
        self.read_bytes = 0

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        data = super().pread(fd, size_bytes, offset)
        self.read_bytes += len(data)
        return data

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        size_bytes = super().pread_into(fd, out, offset)
        self.read_bytes += size_bytes
        return size_bytes


@pytest.fixture
def disk() -> CountingDisk:
    return CountingDisk()


@pytest.fixture
def repo(tmp_path: Path, disk: CountingDisk) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", files=Files(disk), thread_count=2) as repo:
        yield repo


@pytest.fixture
def big(repo: Repository) -> TensorEntry:
    return entries_of(repo, save(repo, {"w": BIG}).commit)["w"]


def test_whole(repo: Repository, big: TensorEntry) -> None:
    assert repo.read_tensor(big) == BIG.data


@pytest.mark.parametrize(
    ("start", "stop"), [(0, 0), (0, 1), (749, 751), (10, 2990), (2999, 3000), (3000, 3000), (0, 3000)]
)
def test_rows(repo: Repository, big: TensorEntry, start: int, stop: int) -> None:
    out = bytearray((stop - start) * 2048)
    repo.read_rows(big, start, stop, memoryview(out))
    assert out == BIG.data[start * 2048 : stop * 2048]


def test_a_scalar_is_one_row(repo: Repository) -> None:
    scalar = noise("s")
    entry = entries_of(repo, save(repo, {"s": scalar}).commit)["s"]
    out = bytearray(4)
    repo.read_rows(entry, 0, 1, memoryview(out))
    assert out == scalar.data


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (3, 2), (0, 3001)])
def test_rows_outside(repo: Repository, big: TensorEntry, start: int, stop: int) -> None:
    with pytest.raises(Incompatible, match="outside"):
        repo.read_rows(big, start, stop, memoryview(bytearray(max(0, (stop - start) * 2048))))


@pytest.mark.parametrize(("start", "stop"), [(0, 1), (5, 5), (1_536_000 - 1, 1_536_000 + 1), (6_143_999, 6_144_000)])
def test_spans(repo: Repository, big: TensorEntry, start: int, stop: int) -> None:
    out, more = bytearray(stop - start), bytearray(3)
    repo.read_spans(big, [(start, memoryview(out)), (7, memoryview(more))])
    assert out == BIG.data[start:stop]
    assert more == BIG.data[7:10]


@pytest.mark.parametrize(("start", "stop"), [(-1, 3), (6_144_000, 6_144_001), (0, 6_144_001)])
def test_spans_outside(repo: Repository, big: TensorEntry, start: int, stop: int) -> None:
    with pytest.raises(Incompatible, match="outside"):
        repo.read_spans(big, [(start, memoryview(bytearray(stop - start)))])


def test_memory_of_another_size_is_refused_before_anything_is_read(repo: Repository, big: TensorEntry) -> None:
    small, good = entries_of(repo, save(repo, {"x": noise("x", 10)}).commit)["x"], bytearray(len(BIG.data))
    with pytest.raises(Incompatible, match="bytes of memory"):
        repo.read_tensors([(big, memoryview(good)), (small, memoryview(bytearray(41)))])
    assert not any(good)


def test_a15_one_tensor_of_a_large_commit_reads_only_its_bytes(repo: Repository, disk: CountingDisk) -> None:
    commit = save(repo, {"w": BIG, "small": noise("small", 1000)}).commit
    entry = entries_of(repo, commit)["small"]
    disk.read_bytes = 0
    repo.read_tensor(entry)
    assert disk.read_bytes < 4000 + 200


def test_rows_read_only_the_chunks_that_hold_them(repo: Repository, big: TensorEntry, disk: CountingDisk) -> None:
    disk.read_bytes = 0
    repo.read_rows(big, 0, 5, memoryview(bytearray(5 * 2048)))
    assert 0 < disk.read_bytes <= len(BIG.data) / 8 + 200


def test_a_chunk_wanted_in_many_places_is_read_once(repo: Repository, disk: CountingDisk) -> None:
    state = {name: noise("same", 1000) for name in "abcdef"}
    commit = save(repo, state).commit
    entries = entries_of(repo, commit).values()
    disk.read_bytes = 0
    out = [bytearray(4000) for _ in entries]
    repo.read_tensors([(entry, memoryview(each)) for entry, each in zip(entries, out, strict=True)])
    assert disk.read_bytes < 2 * 4000
    assert {bytes(each) for each in out} == {noise("same", 1000).data}


def test_gather_groups_by_chunk_and_length() -> None:
    out = memoryview(bytearray(10))
    copies = [ChunkCopy(A, 10, 0, out), ChunkCopy(B, 10, 0, out), ChunkCopy(A, 10, 5, out), ChunkCopy(A, 20, 0, out)]
    assert [(read.chunk, read.chunk_bytes, len(read.copies)) for read in gather(copies)] == [
        (A, 10, 2),
        (B, 10, 1),
        (A, 20, 1),
    ]


def test_a20_an_entry_that_lies_about_its_chunks_is_an_error(repo: Repository) -> None:
    """Shape, dtype and bytes disagree: told, and never filled with the wrong bytes."""
    entry = entries_of(repo, save(repo, {"w": noise("w", 1000)}).commit)["w"]
    lying = replace(entry, shape=(2000,), pieces=(Piece((0,), (2000,), (4000, 4000), entry.chunks * 2),))
    assert repo.read_tensor(lying) == noise("w", 1000).data * 2
    for cuts in ((4004, 3996), (3996, 4004), (4000, 3000)):
        worse = replace(lying, pieces=(replace(lying.pieces[0], cuts=cuts),))
        with pytest.raises(Corrupt, match="bytes where"):
            repo.read_tensors([(worse, memoryview(bytearray(8000)))])


def test_rows_come_from_pieces_that_are_no_runs_of_rows() -> None:
    half = Piece((0, 0), (10, 5), (50,), (A,))
    entry = TensorEntry(0, "uint8", (10, 10), pieces=(half, replace(half, offsets=(0, 5), chunks=(B,))))
    out = bytearray(40)
    for copy in plan_rows(entry, 4, 8, memoryview(out)):
        copy.put(memoryview(bytes(range(50) if copy.chunk == A else range(100, 150))))
    assert [list(out[row : row + 10]) for row in range(0, 40, 10)] == [
        [*range(5 * row, 5 * row + 5), *range(100 + 5 * row, 105 + 5 * row)] for row in range(4, 8)
    ]


def test_pieces_that_are_runs_of_rows_are_read_in_any_order() -> None:
    pieces = (Piece((6, 0), (4, 10), (40,), (A,)), Piece((0, 0), (6, 10), (30, 30), (B, A)))
    entry = TensorEntry(0, "uint8", (10, 10), pieces=pieces)
    out = memoryview(bytearray(100))
    placed = {(copy.chunk, copy.start, len(copy.out)) for copy in plan_span(entry, 20, out[:50])}
    assert placed == {(B, 20, 10), (A, 0, 30), (A, 0, 10)}  # rows 2, 3 to 5, and 6


def test_a_chunk_that_is_nowhere(repo: Repository) -> None:
    with pytest.raises(NotFound, match=A.hex()):
        repo.reader.chunk(A)


def test_an_object_of_another_kind_is_refused(repo: Repository) -> None:
    commit = save(repo, {"w": noise("w", 100)}).commit
    with pytest.raises(Corrupt, match="not a chunk"):
        repo.reader.stored(commit, Kind.CHUNK)


# --- several copies -------------------------------------------------------------------------------------------------


def two_copies(tmp_path: Path) -> Repository:
    """A store whose one tensor lies in two packs: two saves that did not know of each other."""
    repo = Repository.init(tmp_path / "two", thread_count=1)
    other = Repository.init(tmp_path / "other", thread_count=1)
    with other:
        save(other, {"w": noise("w", 1000)})
        save(repo, {"w": noise("w", 1000)})
        for path in other.layout.packs.iterdir():
            (repo.layout.packs / path.name).write_bytes(path.read_bytes())
        for pack in other.packs.pack_ids():
            repo.index.write(lambda writer, pack=pack: writer.add_pack(pack, repo.packs.table(pack).entries))  # type: ignore[misc]
    return repo


@pytest.mark.parametrize("copy", [0, 1])
def test_a10_a_second_intact_copy_is_used(tmp_path: Path, copy: int) -> None:
    with two_copies(tmp_path) as repo:
        commit = repo.resolve("main")
        (chunk,) = entries_of(repo, commit)["w"].chunks
        assert len(repo.index.places(chunk)) == 2
        damage(repo, chunk, copy)
        assert read(repo, commit) == {"w": noise("w", 1000)}
        assert len(repo.index.places(chunk)) == (1 if copy == 0 else 2)  # a damaged first one was noticed


@pytest.mark.parametrize("lost", [0, 1])
def test_a10_a_copy_whose_base_is_lost_gives_way_to_another(repo: Repository, tmp_path: Path, lost: int) -> None:
    """Two deltas of one chunk, against different bases: intact both, but only one of them can be decoded."""
    raw, bases = noise("w", 2000).data, [drifted(noise("w", 2000), seed).data for seed in (1, 2)]
    for base in bases:
        encoded = encode(memoryview(raw), Element.FP32, memoryview(base))
        assert encoded.uses_base
        header = ObjectHeader(
            Kind.CHUNK, encoded.transform, encoded.grouped, Element.FP32, len(raw), chunk_id(raw), chunk_id(base)
        )
        table = packing.write(repo.layout.packs, [packing.chunk(base), seal(header, encoded.payload)])
        repo.index.write(lambda writer, table=table: writer.add_pack(table.id, table.entries))  # type: ignore[misc]
    damage(repo, chunk_id(bases[lost]))
    assert repo.reader.chunk(chunk_id(raw)) == raw
    damage(repo, chunk_id(bases[1 - lost]))
    with pytest.raises(Corrupt, match="damaged"):
        repo.reader.chunk(chunk_id(raw))


def test_a10_no_copy_is_intact(tmp_path: Path) -> None:
    with two_copies(tmp_path) as repo:
        commit = repo.resolve("main")
        (chunk,) = entries_of(repo, commit)["w"].chunks
        packs = [damage(repo, chunk, copy) for copy in (0, 1)]
        for reader in (repo, Repository.open(repo.layout.root)):
            with pytest.raises(Corrupt) as caught:
                read(reader, commit)
            assert all(pack.hex() in str(caught.value) for pack in packs)
            assert chunk.hex() in str(caught.value)
        reader.close()
