"""Delta chains on the short way: what is shared is decoded once, and what comes out is what the long way gives."""

from collections.abc import Collection, Iterator, Sequence
from dataclasses import replace
from pathlib import Path

import pytest

from store.codec import encode
from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, NotFound
from store.format.dtypes import Element
from store.format.objects import Kind
from store.format.pack import ObjectHeader, PackTable, Sealed, seal
from store.ids import ChunkId, ObjectId, PackId, chunk_id
from store.index import Place
from store.reading import chains
from store.reading.chains import Kept
from store.reading.packs import pack_path
from store.reading.reader import ObjectReader
from store.reading.retrieve import ChunkCopy, execute, gather
from store.repository import Repository
from tests import packing
from tests.arrays import chunk_of, depths, drifted, entries_of, noise, save

BASE = noise("base", 4000)
A, B = ChunkId(ObjectId(b"a" * 32)), ChunkId(ObjectId(b"b" * 32))


class Counting(Disk):
    """Notes the offset and the length of each read."""

    def __init__(self) -> None:
        self.offsets: list[int] = []
        self.sizes_bytes: list[int] = []

    def pread_into(self, fd: int, out: memoryview, offset: int) -> int:
        self.offsets.append(offset)
        self.sizes_bytes.append(len(out))
        return super().pread_into(fd, out, offset)


@pytest.fixture
def disk() -> Counting:
    return Counting()


@pytest.fixture
def repo(tmp_path: Path, disk: Counting) -> Iterator[Repository]:
    with Repository.init(tmp_path / "store", files=Files(disk), thread_count=1) as repo:
        yield repo


def delta(raw: bytes, base: bytes) -> Sealed:
    encoded = encode(memoryview(raw), Element.FP32, memoryview(base))
    assert encoded.uses_base
    header = ObjectHeader(
        Kind.CHUNK, encoded.transform, encoded.grouped, Element.FP32, len(raw), chunk_id(raw), chunk_id(base)
    )
    return seal(header, encoded.payload)


def store(repo: Repository, sealed: list[Sealed]) -> PackTable:
    table = packing.write(repo.layout.packs, sealed)
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    return table


def read(repo: Repository, raws: Sequence[bytes]) -> list[bytes]:
    """The chunks of these bytes, all in one load."""
    outs = [bytearray(len(raw)) for raw in raws]
    copies = [ChunkCopy(chunk_id(raw), len(raw), 0, memoryview(out)) for raw, out in zip(raws, outs, strict=True)]
    execute(repo.reader, gather(copies), repo.threads, verify_hash=False)
    return list(map(bytes, outs))


def test_a_base_that_several_share_is_read_once(repo: Repository, disk: Counting) -> None:
    raws = [drifted(BASE, number).data for number in range(5)]
    table = store(repo, [packing.chunk(BASE.data), *(delta(raw, BASE.data) for raw in raws)])
    assert read(repo, raws) == raws
    assert disk.offsets.count(table.entries[0].offset) == 1


@pytest.mark.parametrize("is_base_first", [False, True])
def test_a_chunk_that_is_wanted_and_a_base_is_read_once(repo: Repository, disk: Counting, is_base_first: bool) -> None:
    raw = drifted(BASE, 1).data
    sealed = [packing.chunk(BASE.data), delta(raw, BASE.data)]
    store(repo, sealed if is_base_first else sealed[::-1])
    assert read(repo, [raw, BASE.data]) == [raw, BASE.data]
    assert disk.sizes_bytes == [sum(one.stored_bytes for one in sealed)]


def test_what_finds_no_room_is_decoded_again(repo: Repository, disk: Counting, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "KEPT_CHUNKS_BYTES", len(BASE.data))
    bases = [BASE.data, noise("other", 4000).data]
    raws = [drifted(replace(BASE, data=bases[number % 2]), number).data for number in range(6)]
    table = store(
        repo, [*map(packing.chunk, bases), *(delta(raw, bases[number % 2]) for number, raw in enumerate(raws))]
    )
    assert read(repo, raws) == raws
    assert sum(disk.offsets.count(entry.offset) for entry in table.entries[:2]) > 2


def test_chunks_are_read_in_the_order_of_their_pack(repo: Repository, disk: Counting) -> None:
    raws = [noise(number, 100_000).data for number in range(9)]
    store(repo, list(map(packing.chunk, raws)))
    assert read(repo, raws[::-1]) == raws[::-1]
    assert len(disk.offsets) > 1
    assert disk.offsets == sorted(disk.offsets)


def test_small_neighbours_are_read_at_once_and_what_lies_between_others_is_not(
    repo: Repository, disk: Counting
) -> None:
    raws = [noise(number, 100).data for number in range(9)] + [noise("large", 40_000).data, noise("last", 100).data]
    sealed = list(map(packing.chunk, raws))
    table = store(repo, sealed)
    wanted = [*raws[:9], raws[10]]
    assert read(repo, wanted) == wanted
    assert disk.offsets == [table.entries[0].offset, table.entries[10].offset]
    assert sum(disk.sizes_bytes) == sum(one.stored_bytes for one in [*sealed[:9], sealed[10]])


def test_a_damaged_chunk_is_told_of_and_its_neighbours_are_read(repo: Repository) -> None:
    raws = [noise(number, 100).data for number in range(3)]
    table = store(repo, list(map(packing.chunk, raws)))
    path, damaged = pack_path(repo.layout.packs, table.id), table.entries[1]
    data = bytearray(path.read_bytes())
    data[damaged.offset + 100] ^= 1
    path.write_bytes(data)
    assert read(repo, raws[::2]) == raws[::2]
    with pytest.raises(Corrupt, match=f"offset {damaged.offset}"):
        read(repo, raws)


def test_a_run_that_ends_beyond_its_pack_is_read_one_by_one(repo: Repository) -> None:
    raws = [noise(number, 100).data for number in range(3)]
    table = store(repo, list(map(packing.chunk, raws)))
    path, last = pack_path(repo.layout.packs, table.id), table.entries[2]
    path.write_bytes(path.read_bytes()[: last.end - 1])
    with pytest.raises(Corrupt, match=f"offset {last.offset}"):
        read(repo, raws)
    assert read(repo, raws[:2]) == raws[:2]


def test_the_short_way_gives_what_the_long_way_gives(repo: Repository) -> None:
    state = {"w": noise("w", 3000, 100), "small": noise("small", 100)}
    for number in range(5):
        commit = save(repo, state).commit
        state = {**state, "w": drifted(state["w"], number)}
    assert max(depths(repo, commit)) > 1
    for entry in entries_of(repo, commit).values():
        for chunk, cut in zip(entry.chunks, entry.cuts, strict=True):
            short, long = bytearray(cut), bytearray(cut)
            repo.reader.chunk_into(chunk, memoryview(short))
            repo.reader._decode_any(chunk, memoryview(long))
            assert short == long
            assert chunk_id(short) == chunk


def test_a_chain_that_the_index_has_wrong_is_read_the_long_way(repo: Repository) -> None:
    raw = drifted(BASE, 1).data
    table = packing.write(repo.layout.packs, [packing.chunk(BASE.data), delta(raw, BASE.data)])
    lying = [entry._replace(base=None) for entry in table.entries]
    repo.index.write(lambda writer: writer.add_pack(table.id, lying))
    assert len(repo.reader.chain(chunk_id(raw))) == 1
    assert read(repo, [raw]) == [raw]


def test_a_base_of_which_the_index_lies_is_not_decoded_against(repo: Repository) -> None:
    raw, other = drifted(BASE, 1).data, noise("other", 4000).data
    sealed = [packing.chunk(BASE.data), packing.chunk(other), delta(raw, BASE.data)]
    table = packing.write(repo.layout.packs, sealed)
    lying = [entry._replace(base=chunk_id(other)) if entry.base else entry for entry in table.entries]
    repo.index.write(lambda writer: writer.add_pack(table.id, lying))
    assert [link.id for link in repo.reader.chain(chunk_id(raw))] == [chunk_id(raw), chunk_id(other)]
    assert read(repo, [raw]) == [raw]


def test_what_is_kept_is_not_overwritten_by_other_chains(repo: Repository) -> None:
    raws = [drifted(BASE, number).data for number in range(2)]
    others = [noise("other", 4000)]
    for number in range(2):
        others.append(drifted(others[-1], number))
    deltas = [delta(others[number + 1].data, others[number].data) for number in range(2)]
    first, last = (delta(raw, BASE.data) for raw in raws)
    store(repo, [packing.chunk(BASE.data), first, packing.chunk(others[0].data), *deltas, last])
    wanted = [raws[0], others[-1].data, raws[1]]
    assert read(repo, wanted) == wanted


def test_a_chain_names_every_base(repo: Repository) -> None:
    commits = [save(repo, {"w": drifted(BASE, number)}).commit for number in range(3)]
    chunk = chunk_of(repo, commits[-1], "w")
    chain = repo.reader.chain(chunk)
    assert chain[0].id == chunk
    assert [link.place.base for link in chain] == [link.id for link in chain[1:]] + [None]
    assert len(chain) == chain[0].place.depth + 1
    with pytest.raises(NotFound):
        repo.reader.chain(A)


class Cyclic:
    """An index that says that A and B are deltas against each other."""

    def places_of_each(self, object_ids: Collection[ObjectId]) -> dict[ObjectId, list[Place]]:
        return {sought: self.places(sought) for sought in object_ids}

    def places(self, object_id: ObjectId) -> list[Place]:
        return [Place(PackId(bytes(32)), 12, 100, 100, Kind.CHUNK, B if object_id == A else A, 1)]

    def mark_bad(self, object_id: ObjectId, pack: PackId) -> None:
        raise AssertionError


def test_a_cycle_in_the_index_is_an_error(repo: Repository) -> None:
    reader = ObjectReader(Cyclic(), repo.packs)
    with pytest.raises(Corrupt, match="too deep or a cycle"):
        reader.chain(A)
    assert reader.chains([A, B]) == {}


def test_only_what_is_shared_is_kept_and_the_least_recently_used_goes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(chains, "KEPT_CHUNKS_BYTES", 10)
    kept = Kept({A, B, chunk_id(b"c")})
    assert not kept.wants(chunk_id(b"d"))
    for object_id in (A, B):
        kept.put(object_id, memoryview(bytes(5)))
    assert kept.get(A) == bytes(5)
    kept.put(chunk_id(b"c"), memoryview(bytes(4)))
    assert (kept.get(A), kept.get(B), kept.get(chunk_id(b"c"))) == (bytes(5), None, bytes(4))
