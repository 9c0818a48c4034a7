"""Writing packs and reading objects out of them."""

import errno
import os
import signal
import threading
from pathlib import Path

import pytest

from store import limits
from store.disk.calls import Disk
from store.disk.files import Files
from store.errors import Corrupt, NotFound
from store.ids import ObjectId, PackId, chunk_id
from store.limits import WRITE_BLOCK_BYTES
from store.reading import packs
from store.reading.packs import PackGone, PackStore, PackWriter, Unreadable, pack_path
from store.saving.packseries import PackSeries
from tests import packing
from tests.descriptors import left_open
from tools.crash.faults import FaultyDisk

FIRST, SECOND = b"the first chunk", bytes(10_000)


class Failing(Disk):
    """Fails to read. Other than EIO no failure says anything of the pack."""

    def __init__(self, error_number: int) -> None:
        self._error_number = error_number

    def pread(self, fd: int, size_bytes: int, offset: int) -> bytes:
        raise OSError(self._error_number, "not now")


def test_what_was_written_is_read(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST), packing.chunk(SECOND)])
    store = PackStore(Files(), tmp_path)
    assert store.pack_ids() == [table.id]
    assert store.table(table.id) == packing.verified(store, table.id) == table
    for entry, raw in zip(table.entries, (FIRST, SECOND), strict=True):
        header, payload = store.read(table.id, entry.offset, entry.stored_bytes, chunk_id(raw))
        assert (header, payload) == (entry.header, raw)


def test_the_writer_writes_what_the_format_says(tmp_path: Path) -> None:
    sealed = [packing.chunk(FIRST), packing.delta(SECOND, FIRST, b"little")]
    table = packing.write(tmp_path, sealed)
    assert pack_path(tmp_path, table.id).read_bytes() == packing.join(sealed)


def test_a_pack_larger_than_a_block(tmp_path: Path) -> None:
    raws = [os.urandom(3 * limits.MIB + number) for number in range(4)]
    table = packing.write(tmp_path, [packing.chunk(raw) for raw in raws])
    assert table.entries[-1].end > WRITE_BLOCK_BYTES
    store = PackStore(Files(), tmp_path)
    for entry, raw in zip(table.entries, raws, strict=True):
        assert store.read_entry(table.id, entry)[1] == raw


def test_packs_that_go_while_they_are_counted_count_for_nothing(tmp_path: Path) -> None:
    class Late(Files):
        """Tells of a file that is gone by now."""

        def list_directory(self, path: Path) -> list[str]:
            return [*super().list_directory(path), f"{'ab' * 32}.pack"]

    packing.write(tmp_path, [packing.chunk(FIRST)])
    packing.write(tmp_path, [packing.chunk(SECOND)])
    assert PackStore(Late(), tmp_path).total_bytes() == sum(path.stat().st_size for path in tmp_path.iterdir())


def test_threads_append_to_one_series(tmp_path: Path) -> None:
    series = PackSeries(Files(), tmp_path, "1", lambda _: None)
    raws = [os.urandom(5000) for _ in range(64)]
    threads = [
        threading.Thread(target=lambda part: [series.append(packing.chunk(raw)) for raw in part], args=(raws[n::4],))
        for n in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    (table,) = series.publish()
    assert {entry.id for entry in packing.verified(PackStore(Files(), tmp_path), table.id).entries} == set(
        map(chunk_id, raws)
    )


def test_a_pack_has_no_name_before_it_is_published(tmp_path: Path) -> None:
    writer = PackWriter(Files(), tmp_path, "tmp-1")
    writer.append(packing.chunk(FIRST))
    with pytest.raises(ValueError, match="not finished"):
        writer.publish()
    writer.finish()
    assert PackStore(Files(), tmp_path).pack_ids() == []
    writer.publish()
    assert len(PackStore(Files(), tmp_path).pack_ids()) == 1


def test_an_abandoned_pack_leaves_nothing_and_a_published_one_stays(tmp_path: Path) -> None:
    abandoned = PackWriter(Files(), tmp_path, "tmp-1")
    abandoned.append(packing.chunk(FIRST))
    abandoned.abandon()
    assert list(tmp_path.iterdir()) == []
    published = PackWriter(Files(), tmp_path, "tmp-2")
    table = published.finish()
    published.publish()
    published.abandon()
    assert PackStore(Files(), tmp_path).pack_ids() == [table.id]


def test_c1_a_full_disk_leaves_no_file_and_ends_the_writer(tmp_path: Path) -> None:
    files = Files(FaultyDisk(fail_at_byte=100, error_number=errno.ENOSPC, is_lasting=True))
    writer = PackWriter(files, tmp_path, "tmp-1")
    writer.append(packing.chunk(FIRST))
    with pytest.raises(OSError, match="No space"):
        writer.finish()
    assert list(tmp_path.iterdir()) == []
    with pytest.raises(ValueError, match="not being written"):
        writer.append(packing.chunk(SECOND))


def test_publishing_again_repairs_a_damaged_pack(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST)])
    pack_path(tmp_path, table.id).write_bytes(b"garbage")
    assert packing.write(tmp_path, [packing.chunk(FIRST)]) == table
    assert packing.verified(PackStore(Files(), tmp_path), table.id) == table


def test_other_files_are_no_packs(tmp_path: Path) -> None:
    for name in ("tmp-1", "x.pack", "F" * 64 + ".pack", "0" * 64 + ".idx", "0" * 64):
        (tmp_path / name).touch()
    assert PackStore(Files(), tmp_path).pack_ids() == []


def test_a_pack_that_is_not_there_is_gone(tmp_path: Path) -> None:
    store = PackStore(Files(), tmp_path)
    nowhere = PackId(bytes(32))
    with pytest.raises(PackGone, match="00000000") as caught:
        store.read(nowhere, 64, 100, ObjectId(bytes(32)))
    assert isinstance(caught.value, NotFound)
    assert caught.value.details["pack"] == nowhere.hex()


def test_another_object_than_expected_is_noticed(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST)])
    entry = table.entries[0]
    with pytest.raises(Corrupt, match="lies there instead") as caught:
        PackStore(Files(), tmp_path).read(table.id, entry.offset, entry.stored_bytes, chunk_id(SECOND))
    assert caught.value.details == {"pack": table.id.hex(), "offset": 64, "object": chunk_id(SECOND).hex()}


@pytest.mark.parametrize("stored_bytes", [0, -1, 2**40])
def test_an_index_that_lies_about_lengths_allocates_nothing(tmp_path: Path, stored_bytes: int) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST)])
    with pytest.raises(Corrupt, match="bytes long"):
        PackStore(Files(), tmp_path).read(table.id, 64, stored_bytes, chunk_id(FIRST))


def test_a_table_and_an_object_that_disagree_are_noticed(tmp_path: Path) -> None:
    sealed = packing.chunk(FIRST)
    data = bytearray(packing.join([sealed]))
    other = packing.chunk(FIRST[:-1] + b"!")
    data[64 : 64 + other.stored_bytes] = b"".join(other.buffers)
    pack_id = packing.id_of(bytes(data))
    packing.place(tmp_path, bytes(data), pack_id)
    with pytest.raises(Corrupt, match="instead"):
        packing.verified(PackStore(Files(), tmp_path), pack_id)


def test_what_the_disk_does_not_give_is_named_and_not_called_damaged(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST)])
    with pytest.raises(Unreadable, match="not now") as caught:
        PackStore(Files(Failing(errno.EIO)), tmp_path).read_entry(table.id, table.entries[0])
    assert caught.value.details["pack"] == table.id.hex()
    with pytest.raises(OSError, match="not now"):
        PackStore(Files(Failing(errno.ENOMEM)), tmp_path).read_entry(table.id, table.entries[0])


@pytest.mark.parametrize("left_bytes", [0, 63, 64, 200, 10_200])
def test_c6_a_pack_truncated_under_an_open_reader(tmp_path: Path, left_bytes: int) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST), packing.chunk(SECOND)])
    store = PackStore(Files(), tmp_path)
    packing.verified(store, table.id)
    os.truncate(pack_path(tmp_path, table.id), left_bytes)
    with pytest.raises(Corrupt, match=table.id.hex()):
        store.read_entry(table.id, table.entries[1])
    with pytest.raises(Corrupt, match=table.id.hex()):
        store.table(table.id)


def test_c6_a_pack_changed_under_an_open_reader(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST), packing.chunk(SECOND)])
    store = PackStore(Files(), tmp_path)
    packing.verified(store, table.id)
    with pack_path(tmp_path, table.id).open("r+b") as file:
        file.seek(table.entries[1].end - 1)
        file.write(b"\1")
    assert store.read_entry(table.id, table.entries[0])[1] == FIRST
    with pytest.raises(Corrupt, match=f"{table.id.hex()} at offset {table.entries[1].offset}"):
        store.read_entry(table.id, table.entries[1])


def test_an_open_reader_outlives_the_packs_removal(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST)])
    store = PackStore(Files(), tmp_path)
    store.table(table.id)
    pack_path(tmp_path, table.id).unlink()
    assert store.read_entry(table.id, table.entries[0])[1] == FIRST
    store.close()
    with pytest.raises(PackGone):
        store.read_entry(table.id, table.entries[0])


def test_few_packs_are_kept_open(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_OPEN_PACKS", 2)
    tables = [packing.write(tmp_path, [packing.chunk(bytes([n]))]) for n in range(5)]
    store = PackStore(Files(), tmp_path)
    with left_open():
        with left_open(2):
            for table in [*tables, *tables]:
                assert packing.verified(store, table.id) == table
        store.close()


def test_threads_read_while_packs_are_evicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(packs, "MAX_OPEN_PACKS", 1)
    tables = [packing.write(tmp_path, [packing.chunk(os.urandom(20_000))]) for _ in range(4)]
    store = PackStore(Files(), tmp_path)
    failures: list[BaseException] = []

    def work() -> None:
        try:
            for table in tables * 25:
                store.read_entry(table.id, table.entries[0])
        except BaseException as error:
            failures.append(error)

    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert failures == []


class Pausing(Disk):
    """Opens one path only when told to."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self.entered, self.go_on = threading.Event(), threading.Event()

    def open(self, path: Path, flags: int) -> int:
        if path == self._path:
            self.entered.set()
            assert self.go_on.wait(60)
        return super().open(path, flags)


def test_a_pack_that_opens_slowly_keeps_nobody_from_another(tmp_path: Path) -> None:
    slow, quick = (packing.write(tmp_path, [packing.chunk(raw)]) for raw in (FIRST, SECOND))
    disk = Pausing(pack_path(tmp_path, slow.id))
    store = PackStore(Files(disk), tmp_path)
    threads = [threading.Thread(target=store.table, args=(table.id,), daemon=True) for table in (slow, quick)]
    threads[0].start()
    assert disk.entered.wait(60)
    threads[1].start()
    threads[1].join(10)
    try:
        assert not threads[1].is_alive()
    finally:
        disk.go_on.set()
        threads[0].join()
    assert store.table(slow.id) == slow


@pytest.mark.filterwarnings("ignore:.*multi-threaded.*:DeprecationWarning")
def test_e2_a_child_reads_though_its_parent_forked_amid_a_look_up(tmp_path: Path) -> None:
    table = packing.write(tmp_path, [packing.chunk(FIRST)])
    store = PackStore(Files(), tmp_path)
    entered, go_on = threading.Event(), threading.Event()

    def look_up() -> None:
        with store._guard():
            entered.set()
            go_on.wait(60)

    thread = threading.Thread(target=look_up)
    thread.start()
    assert entered.wait(60)
    child = os.fork()
    if not child:
        signal.alarm(10)  # instead of hanging for ever
        os._exit(0 if store.table(table.id) == table else 1)
    status = os.waitpid(child, 0)[1]
    go_on.set()
    thread.join()
    assert status == 0
