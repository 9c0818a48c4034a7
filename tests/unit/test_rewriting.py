"""Packs are replaced by others, and nobody notices."""

import errno
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest

from store.codec import Transform
from store.disk.files import Files
from store.format import pack as pack_format
from store.format.dtypes import Element
from store.format.objects import Kind
from store.ids import ChunkId, CommitId, ObjectId, PackId, chunk_id
from store.index import Copy, IndexWriter
from store.limits import CHECKED_OPEN_PACKS
from store.opening.indexes import memory_index
from store.reading.lookup import Lookup
from store.reading.packs import pack_path
from store.reading.reader import ObjectReader
from store.repository import Repository
from store.saving.leases import acquire_lease
from store.saving.packseries import PackSeries
from store.upkeep.retiring import retire_pack
from store.upkeep.rewriting import Rewriter
from store.upkeep.verifying import Verifier
from tests.arrays import State, chunk_of, damage, depth, drifted, noise, pack_file, read, require_whole, save
from tests.packing import chunk, write


@pytest.fixture
def repo(tmp_path: Path) -> Any:
    with Repository.init(tmp_path / "store", thread_count=2) as repo:
        yield repo


def history(repo: Repository, count: int = 6) -> dict[CommitId, State]:
    """A line of commits, in a pack each."""
    state: State = {"w": noise("w", 3000), "same": noise("same", 900), "tiny": noise("t", 3)}
    made: dict[CommitId, State] = {}
    for step in range(count):
        state = {**state, "w": drifted(state["w"], step)}
        made[save(repo, state, step=step).commit] = state
    return made


def names(repo: Repository) -> list[str]:
    return repo.files.list_directory(repo.layout.packs)


def stored(repo: Repository) -> dict[ObjectId, object]:
    tables = [repo.packs.table(pack) for pack in repo.packs.pack_ids()]
    return {entry.id: (entry.header, entry.checksum) for table in tables for entry in table.entries}


def everything(repo: Repository) -> set[ObjectId]:
    return {entry.id for pack in repo.packs.pack_ids() for entry in repo.packs.table(pack).entries}


def test_packs_become_one_and_every_commit_stays(repo: Repository) -> None:
    made = history(repo)
    before = everything(repo)
    old = repo.packs.pack_ids()
    told: list[int] = []
    done = Rewriter(repo, told.append).replace(old)
    assert done.damaged == done.left == {}
    assert sorted(done.removed) == old
    assert repo.packs.pack_ids() == repo.index.packs() == done.made
    assert names(repo) == [f"{done.made[0].hex()}.pack"]
    assert sum(told) == done.removed_bytes > done.made_bytes == pack_file(repo, done.made[0]).stat().st_size
    assert everything(repo) == before
    require_whole(repo, made)


def test_objects_come_as_they_were_stored_byte_for_byte(repo: Repository) -> None:
    history(repo)
    before = {
        entry.id: (entry.header, entry.checksum)
        for each in repo.packs.pack_ids()
        for entry in repo.packs.table(each).entries
    }
    (made,) = Rewriter(repo).replace(repo.packs.pack_ids()).made
    assert {entry.id: (entry.header, entry.checksum) for entry in repo.packs.table(made).entries} == before


def test_a_pack_that_comes_out_the_same_stays(repo: Repository) -> None:
    made = history(repo, 1)
    (pack,) = repo.packs.pack_ids()
    done = Rewriter(repo).replace([pack])
    assert (done.made, done.removed) == ([pack], [])
    require_whole(repo, made)


def test_the_order_is_as_asked(repo: Repository) -> None:
    history(repo)
    (made,) = Rewriter(repo).replace(repo.packs.pack_ids(), order=lambda entry: entry.id).made
    ids = [entry.id for entry in repo.packs.table(made).entries]
    assert ids == sorted(ids)


def test_chunks_are_encoded_anew_against_what_they_are_told(repo: Repository) -> None:
    made = history(repo)
    chunks = [chunk_of(repo, commit, "w") for commit in made]
    newest_first = dict(zip(chunks, [*chunks[1:], None], strict=True))
    done = Rewriter(repo).replace(repo.packs.pack_ids(), bases=newest_first)
    assert (done.damaged, done.left) == ({}, {})
    assert [depth(repo, each) for each in chunks] == [5, 4, 3, 2, 1, 0]
    require_whole(repo, made)


def test_deltas_the_other_way_round_pack_by_pack(repo: Repository) -> None:
    """On the way, objects in old packs are stored against those in new ones, and the other way round."""
    made = history(repo)
    chunks = [chunk_of(repo, commit, "w") for commit in made]
    newest_first = dict(zip(chunks, [*chunks[1:], None], strict=True))
    packs = [repo.index.places(each)[0].pack for each in chunks]
    rewriter = Rewriter(repo)
    stayed = 0
    for each in packs:
        stayed += len(rewriter.replace([each], bases=newest_first).left)
        require_whole(repo, made)
    done = rewriter.finish()
    assert stayed == len(done.removed) > 0
    assert done.left == {}
    assert not set(packs) & set(repo.packs.pack_ids())
    assert [depth(repo, each) for each in chunks] == [5, 4, 3, 2, 1, 0]
    require_whole(repo, made)


def test_what_the_index_does_not_tell_of_goes_unless_it_is_needed(repo: Repository) -> None:
    history(repo, 2)
    raw = [b"garbage", b"needed"]
    table = write(repo.layout.packs, [chunk(each) for each in raw])
    repo.index.write(lambda writer: writer.add_places(table.id, []))
    done = Rewriter(repo).replace([table.id], keep={chunk_id(b"needed")})
    assert done.removed == [table.id]
    assert [entry.id for entry in repo.packs.table(done.made[0]).entries] == [chunk_id(b"needed")]
    assert repo.index.places(chunk_id(b"needed"))
    assert not repo.index.places(chunk_id(b"garbage"))


def test_what_is_elsewhere_is_not_moved_again(repo: Repository) -> None:
    """So it is after a crash between the new places and the removal of the old."""
    made = history(repo)
    old = repo.packs.pack_ids()
    copies = [chunk_of(repo, commit, "w") for commit in made]
    with acquire_lease(repo.layout.root, repo.files) as lease:
        series = PackSeries(repo.files, repo.layout.packs, lease.name, lease.add_pack)
        for each in copies:
            header, payload = repo.reader.stored(each, Kind.CHUNK)
            series.append(pack_format.seal(header, [payload]))
        (table,) = series.publish()
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    done = Rewriter(repo).replace(old)
    assert not set(copies) & {entry.id for each in done.made for entry in repo.packs.table(each).entries}
    assert sorted(done.removed) == old
    require_whole(repo, made)


def test_a_copy_elsewhere_against_another_base_spares_nothing(repo: Repository) -> None:
    made = history(repo, 2)
    tip = list(made)[-1]
    each = chunk_of(repo, tip, "w")
    table = write(repo.layout.packs, [chunk(made[tip]["w"].data)])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    assert [place.depth for place in repo.index.places(each)] == [0, 1]
    done = Rewriter(repo).replace([table.id])
    assert done.made == [table.id]
    assert depth(repo, each) == 0
    require_whole(repo, made)


def test_a_damaged_copy_elsewhere_spares_nothing(repo: Repository) -> None:
    made = history(repo, 2)
    old = repo.packs.pack_ids()
    each = chunk_of(repo, next(iter(made)), "same")
    header, payload = repo.reader.stored(each, Kind.CHUNK)
    table = write(repo.layout.packs, [pack_format.seal(header, [payload])])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    copies = [place.pack for place in repo.index.places(each)]
    damage(repo, each, copies.index(table.id))
    Rewriter(repo).replace(old)
    for commit, state in made.items():
        assert read(repo, commit) == state


def test_d10_a_damaged_object_stays_where_it_is_and_the_rest_moves(repo: Repository) -> None:
    made = history(repo, 3)
    first = next(iter(made))
    broken = chunk_of(repo, first, "same")
    pack = damage(repo, broken)
    old = repo.packs.pack_ids()
    done = Rewriter(repo).replace(old)
    assert set(done.damaged) == {broken}
    assert set(done.left) == {pack}
    assert sorted(repo.packs.pack_ids()) == sorted([pack, *done.made])
    again = Rewriter(repo).replace([pack], keep={broken})
    assert set(again.left) == {pack}
    for commit, state in made.items():
        tree = repo.tree(repo.commit(commit), "model")
        assert bytes(repo.read_tensor(tree["w"])) == state["w"].data  # type: ignore[arg-type]


def test_the_good_copy_is_taken_where_one_is_damaged(repo: Repository) -> None:
    made = history(repo, 3)
    each = chunk_of(repo, next(iter(made)), "same")
    header, payload = repo.reader.stored(each, Kind.CHUNK)
    good = write(repo.layout.packs, [pack_format.seal(header, [payload])])
    damage(repo, each)
    repo.index.write(lambda writer: writer.add_pack(good.id, good.entries))
    old = repo.packs.pack_ids()
    done = Rewriter(repo).replace(old)
    assert (done.damaged, done.left) == ({}, {})
    require_whole(repo, made)


def test_c10_content_that_does_not_match_its_id_is_not_moved(repo: Repository) -> None:
    made = history(repo, 2)
    lying_id = ObjectId(chunk_id(b"another"))
    header = pack_format.ObjectHeader(Kind.CHUNK, Transform.RAW, False, Element.INT8, 5, lying_id)
    table = write(repo.layout.packs, [pack_format.seal(header, [b"lying"]), chunk(b"honest")])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    done = Rewriter(repo).replace([table.id], order=lambda entry: -entry.offset)
    assert set(done.damaged) == {lying_id}
    assert set(done.left) == {table.id}
    assert [place.pack for place in repo.index.places(chunk_id(b"honest"))] == done.made
    assert [place.pack for place in repo.index.places(lying_id)] == [table.id]
    require_moved(repo, made)


def require_moved(repo: Repository, made: dict[CommitId, State]) -> None:
    for commit, state in made.items():
        assert read(repo, commit) == state


def test_a_pack_whose_table_is_damaged_stays(repo: Repository) -> None:
    history(repo, 2)
    pack = repo.packs.pack_ids()[0]
    repo.packs.close()
    path = pack_file(repo, pack)
    path.write_bytes(path.read_bytes()[:-1])
    done = Rewriter(repo).replace([pack])
    assert set(done.left) == {pack}
    assert path.exists()


def test_a_reader_that_looked_up_an_old_place_goes_on(repo: Repository) -> None:
    made = history(repo)
    commit, state = list(made.items())[-1]
    wanted = chunk_of(repo, commit, "w")
    chain = repo.reader.chain(wanted)
    Rewriter(repo).replace(repo.packs.pack_ids())
    out = memoryview(bytearray(len(state["w"].data)))
    repo.reader.chunk_into(wanted, out, verify_hash=True, chain=chain)
    assert bytes(out) == state["w"].data


def put_back_index(repo: Repository, backup: Path) -> Repository:
    repo.close()
    shutil.rmtree(repo.layout.root / "index")
    shutil.copytree(backup, repo.layout.root / "index")
    return Repository.open(repo.layout.root, thread_count=1)


def test_c8_an_index_from_before_is_found_out_and_rebuilt(repo: Repository, tmp_path: Path) -> None:
    made = history(repo)
    shutil.copytree(repo.layout.root / "index", tmp_path / "backup")
    Rewriter(repo).replace(repo.packs.pack_ids())
    with put_back_index(repo, tmp_path / "backup") as again:
        require_whole(again, made)
        assert again.index.packs() == again.packs.pack_ids()


def test_a_reader_that_cannot_write_goes_on_with_the_packs(repo: Repository) -> None:
    made = history(repo)
    with Repository.open(repo.layout.root, read_only=True, thread_count=1) as reader:
        reader.index.close()
        memory = memory_index(reader.packs)
        reader.lookup = Lookup(memory, reader.packs)
        reader.reader = ObjectReader(reader.lookup, reader.packs)
        Rewriter(repo).replace(repo.packs.pack_ids())
        for commit, state in made.items():
            assert read(reader, commit) == state


def test_packs_that_others_have_open_are_closed_once_they_open_another(repo: Repository) -> None:
    made = history(repo, CHECKED_OPEN_PACKS)
    with Repository.open(repo.layout.root, thread_count=1) as reader:
        for commit in made:
            read(reader, commit)
        Rewriter(repo).replace(repo.packs.pack_ids())
        assert len(reader.packs._handles) > 1
        assert read(reader, commit) == made[commit]
        assert list(reader.packs._handles) == repo.packs.pack_ids()


def test_d2_a_save_meanwhile_keeps_its_base(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    made = history(repo, 4)
    state = made[list(made)[-1]]
    newer = {**state, "w": drifted(state["w"], "newer")}
    publish = PackSeries.publish

    def overtaken(self: PackSeries) -> Any:
        monkeypatch.setattr(PackSeries, "publish", publish)
        tables = self.publish()
        made[save(repo, newer).commit] = newer
        return tables

    monkeypatch.setattr(PackSeries, "publish", overtaken)
    done = Rewriter(repo).replace(repo.packs.pack_ids())
    assert done.left == {}
    assert len(repo.packs.pack_ids()) == 2
    require_whole(repo, made)


def test_c7_a_full_disk_leaves_the_store_as_it_was(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    made = history(repo)
    before = names(repo)
    rename = Files.rename_durable

    def full(self: Files, source: Path, target: Path) -> None:
        if target.suffix == ".pack":
            raise OSError(errno.ENOSPC, "No space left on device", str(target))
        rename(self, source, target)

    monkeypatch.setattr(Files, "rename_durable", full)
    with pytest.raises(OSError, match="No space"):
        Rewriter(repo).replace(repo.packs.pack_ids())
    assert names(repo) == before
    assert names_in(repo.layout.writers) == []
    require_whole(repo, made)


def names_in(directory: Path) -> list[str]:
    return [path.name for path in directory.iterdir()]


@pytest.mark.parametrize("at", ["require", "chunk"])
def test_an_interruption_leaves_the_store_as_it_was(repo: Repository, monkeypatch: pytest.MonkeyPatch, at: str) -> None:
    made = history(repo)
    before = names(repo)
    bases = {chunk_of(repo, commit, "w"): None for commit in made}

    def interrupted(*_: object) -> None:
        raise KeyboardInterrupt

    monkeypatch.setattr(Verifier, at, interrupted)
    with pytest.raises(KeyboardInterrupt):
        Rewriter(repo).replace(repo.packs.pack_ids(), bases=bases)
    monkeypatch.undo()
    assert names(repo) == before
    require_whole(repo, made)


def test_whoever_watches_is_told_between_windows_of_what_is_written_and_of_what_is_read_back(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    history(repo)
    old = repo.packs.pack_ids()
    size_bytes = sum(map(repo.packs.size_bytes, old))
    object_count = len(everything(repo))
    monkeypatch.setattr("store.upkeep.rewriting.REWRITE_WINDOW_BYTES", 1)
    told: list[int] = []
    Rewriter(repo, told.append).replace(old)
    assert sum(told) == size_bytes
    assert told[object_count : 2 * object_count] == [0] * object_count


def test_a_write_that_does_not_stick_removes_nothing(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """What is read back from the new pack is another content than was written."""
    made = history(repo)
    old = repo.packs.pack_ids()
    publish = PackSeries.publish

    def forgetful(self: PackSeries) -> Any:
        tables = publish(self)
        for table in tables:
            path = pack_path(repo.layout.packs, table.id)
            data = bytearray(path.read_bytes())
            for entry in table.entries:
                data[entry.end - 1] ^= 1
            path.write_bytes(data)
        return tables

    monkeypatch.setattr(PackSeries, "publish", forgetful)
    done = Rewriter(repo).replace(old)
    assert done.removed == []
    for commit, state in made.items():
        assert read(repo, commit) == state


def test_a_pack_that_comes_out_just_as_it_was_outlives_a_failure(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The index has lost its places, so nothing but its name tells that it is needed."""
    made = history(repo, 1)
    (pack,) = repo.packs.pack_ids()
    entries = repo.packs.table(pack).entries
    repo.index.write(lambda writer: writer.remove_places([Copy(entry.id, pack) for entry in entries], spare_last=False))
    publish = PackSeries.publish

    def failing(self: PackSeries) -> Any:
        assert [table.id for table in publish(self)] == [pack]
        raise OSError(errno.EIO, "I/O error")

    monkeypatch.setattr(PackSeries, "publish", failing)
    with pytest.raises(OSError, match="I/O error"):
        Rewriter(repo).replace([pack], keep=everything(repo))
    assert repo.packs.pack_ids() == [pack]
    for commit, state in made.items():
        assert read(repo, commit) == state


# --- taking packs away ----------------------------------------------------------------------------------------------


def retire(repo: Repository, pack: PackId, ids: list[ObjectId]) -> bool:
    with acquire_lease(repo.layout.root, repo.files) as lease:
        return retire_pack(repo, lease, pack, ids)


def test_a_pack_with_places_or_a_living_writer_stays(repo: Repository) -> None:
    table = write(repo.layout.packs, [chunk(b"one")])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    ids = [entry.id for entry in table.entries]
    assert not retire(repo, table.id, ids)
    other = write(repo.layout.packs, [chunk(b"two")])
    with acquire_lease(repo.layout.root, repo.files) as lease:
        lease.add_pack(other.id)
        assert not retire(repo, other.id, [])
    assert retire(repo, other.id, [])
    assert repo.packs.pack_ids() == [table.id]


def test_c7_a_pack_keeps_its_name_if_the_index_could_not_forget_it(
    repo: Repository, monkeypatch: pytest.MonkeyPatch
) -> None:
    table = write(repo.layout.packs, [chunk(b"one")])
    repo.index.write(lambda writer: writer.add_pack(table.id, table.entries))
    copies = [Copy(entry.id, table.id) for entry in table.entries]
    repo.index.write(lambda writer: writer.remove_places(copies, spare_last=False))
    write_index = repo.index.write

    def full(body: Callable[[IndexWriter], Any]) -> Any:
        def without_room(writer: IndexWriter) -> None:
            assert body(writer)
            raise OSError(errno.ENOSPC, "No space left on device")

        return write_index(without_room)

    monkeypatch.setattr(repo.index, "write", full)
    with pytest.raises(OSError, match="No space"):
        retire(repo, table.id, [copy.id for copy in copies])
    assert names(repo) == [pack_path(repo.layout.packs, table.id).name]
    monkeypatch.undo()
    assert retire(repo, table.id, [copy.id for copy in copies])
    assert names(repo) == []


def test_d1_a_save_whose_pack_was_taken_away_stores_it_again(repo: Repository, monkeypatch: pytest.MonkeyPatch) -> None:
    """A pack of the same content was about to go, and took the new one's name along."""
    made: dict[CommitId, State] = {}
    state: State = {"w": noise("w", 3000)}
    write_index = repo.index.write
    taken: list[PackId] = []

    def after_retiring(body: Callable[[IndexWriter], Any]) -> Any:
        if not taken:
            taken.extend(repo.packs.pack_ids())
            for pack in taken:
                pack_path(repo.layout.packs, pack).unlink()
        return write_index(body)

    monkeypatch.setattr(repo.index, "write", after_retiring)
    made[save(repo, state).commit] = state
    assert len(taken) == 1
    require_whole(repo, made)


def test_chunk_ids_are_what_the_store_is_asked_for(repo: Repository) -> None:
    made = history(repo, 1)
    Rewriter(repo).replace(repo.packs.pack_ids())
    for commit in made:
        assert repo.reader.chunk(ChunkId(chunk_of(repo, commit, "w")))
