"""Finding objects in a pack whose table cannot be used."""

import random
from pathlib import Path

import pytest

from store.disk.files import Files
from store.format import pack
from store.fsck import searching
from store.fsck.searching import search
from store.ids import ObjectId
from tests import packing

CHUNKS = [packing.chunk(random.Random(number).randbytes(400 + number)) for number in range(20)]
DATA = packing.join(CHUNKS)


def found(path: Path, data: bytes) -> list[ObjectId]:
    path.write_bytes(data)
    with Files().open_read(path) as handle:
        entries = search(handle)
    for entry in entries:  # each lies where it is said to
        header, _ = pack.unseal(data[entry.offset : entry.end], "object")
        assert header == entry.header
    return [entry.id for entry in entries]


def ids(*numbers: int) -> list[ObjectId]:
    return [CHUNKS[number].header.id for number in numbers]


def test_all_of_a_pack_in_order(tmp_path: Path) -> None:
    assert found(tmp_path / "p", DATA) == ids(*range(20))


def test_a_table_that_was_searched_says_what_the_packs_own_does(tmp_path: Path) -> None:
    (tmp_path / "p").write_bytes(DATA)
    footer = pack.decode_footer(DATA[-pack.FOOTER_BYTES :], len(DATA), "pack")
    table = pack.decode_table(DATA[footer.table_offset : -pack.FOOTER_BYTES], footer, "pack")
    with Files().open_read(tmp_path / "p") as handle:
        assert search(handle) == table.entries


@pytest.mark.parametrize("kept_bytes", [0, 63, 64, 100, 600, len(DATA) - 70, len(DATA) - 1])
def test_a_pack_that_is_cut_off(tmp_path: Path, kept_bytes: int) -> None:
    end, whole = pack.HEADER_BYTES, []
    for each in CHUNKS:
        end += each.stored_bytes
        if end <= kept_bytes:
            whole.append(each.header.id)
    assert found(tmp_path / "p", DATA[:kept_bytes]) == whole


@pytest.mark.parametrize("at", range(0, 164, 9))
def test_a_damaged_object_costs_no_other(tmp_path: Path, at: int) -> None:
    start = pack.HEADER_BYTES + sum(each.stored_bytes for each in CHUNKS[:7])
    data = bytearray(DATA)
    data[start + at] ^= 0xFF
    assert found(tmp_path / "p", bytes(data)) == ids(*range(7), *range(8, 20))


def test_bytes_that_are_missing_or_too_many_cost_what_they_are_in(tmp_path: Path) -> None:
    start = pack.HEADER_BYTES + sum(each.stored_bytes for each in CHUNKS[:7])
    without = DATA[: start + 100] + DATA[start + 150 :]
    assert found(tmp_path / "p", without) == ids(*range(7), *range(8, 20))
    beside = DATA[:start] + b"MCO1" * 50 + DATA[start:]
    assert found(tmp_path / "p", beside) == ids(*range(20))


def test_objects_within_a_damaged_one_are_passed_over(tmp_path: Path) -> None:
    """A chunk may hold a pack: somebody's imported file."""
    outer = packing.chunk(packing.join(CHUNKS[:3]))
    data = bytearray(packing.join([outer, CHUNKS[5]]))
    assert found(tmp_path / "p", bytes(data)) == [outer.header.id, CHUNKS[5].header.id]
    data[pack.HEADER_BYTES + 70] ^= 1
    assert found(tmp_path / "p", bytes(data)) == ids(5)


def test_an_object_twice_is_taken_once(tmp_path: Path) -> None:
    objects = b"".join(b"".join(each.buffers) for each in (CHUNKS[0], CHUNKS[1], CHUNKS[0]))
    assert found(tmp_path / "p", pack.encode_header() + objects) == ids(0, 1)


def test_magic_across_windows_is_seen(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(searching, "_WINDOW_BYTES", 64)
    garbage = random.Random(3).randbytes(997)
    for cut in range(60, 70):
        data = pack.encode_header() + garbage[:cut] + b"".join(CHUNKS[2].buffers)
        assert found(tmp_path / "p", data) == ids(2)
